"""The sandbox: runs agents' programs without access to the host, the service and the programs of other tasks.

`Sandbox.open` proves that the sandbox confines programs, or raises SandboxUnavailable (a requirement is missing) or
SandboxEscaped (a probe escaped). `Sandbox.run_python` runs one program. The sandbox works on Linux only; on other
systems the package can be imported, and `open` raises SandboxUnavailable. docs/sandbox.md describes the guarantees.

The files, in the order in which data flows:

detection.py           finds bubblewrap, libseccomp, cgroups and so on, and says which guarantees are weaker here
limits.py              the limits of one run, and the errors that say why there is no sandbox
sandbox.py             `Sandbox`: open, self-test, one run, one long-running program, close
self_test.py           a program that tries to escape, at every start of the service

slots.py               the slots, which limit how many programs run at once, and their uids
uid_locks.py           locks in a file, so that two replicas never use one uid in two workspaces
workspace.py           gives the files of a workspace to the run's uid, and measures them
permissions.py         opens directories whose permissions a program removed
placement.py           the paths that bubblewrap mounts, the stage, the removal of dead services' leftovers
command.py             the command lines of the launcher and of bubblewrap, and the rlimits
seccomp.py             the filter of system calls
launcher.py            a script that drops the service's rights and becomes bubblewrap
process.py             the process tree of a run: start, end, what bubblewrap reports
cgroups.py             the cgroup of a run: limits, counters, kill
procfs.py              reads /proc; the names of what a service process creates
reaper.py              a process that kills the sandboxes of a service that died
reaper_client.py       its client in the service

supervision.py         supervises a run to its end, monitors its workspace; the warm sandbox
unlinked_files.py      the size of files that a program deleted but keeps open
result.py              the result of a run: status, output, the message for the agent
long_running.py        a program that runs until its caller ends it, with pipes
uncancellable.py       waits for a clean-up although the caller is cancelled

warm_pool.py           which slots have a warm sandbox, and the start of new ones
warm_bootstrap.py      runs in a warm sandbox until its program arrives
mount_helper.py        a process that mounts a workspace into a warm sandbox
mount_helper_client.py its client in the service

What to touch when:
- a program gets a new limit: limits.py; cgroups.py or `rlimits` in command.py; `run_status` and `explain` in result.py
- programs may see another host path: command.py, and placement.py if other uids cannot reach the path
- there is a new way out to close: a probe in self_test.py, an abuse in tests/fault/abuses.py, then the layer itself
- a run can end in a new way: SandboxStatus in result.py, and the table in docs/sandbox.md
"""

from services.tools.sandbox.detection import Detection, SandboxSettings, detect
from services.tools.sandbox.limits import SandboxEscaped, SandboxLimits, SandboxUnavailable
from services.tools.sandbox.long_running import Command
from services.tools.sandbox.result import SandboxResult, SandboxStatus
from services.tools.sandbox.sandbox import MAX_CODE_BYTES, Sandbox

__all__ = [
    "MAX_CODE_BYTES",
    "Command",
    "Detection",
    "Sandbox",
    "SandboxEscaped",
    "SandboxLimits",
    "SandboxResult",
    "SandboxSettings",
    "SandboxStatus",
    "SandboxUnavailable",
    "detect",
]
