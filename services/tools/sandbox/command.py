"""Builds the command lines of one run: the launcher's and bubblewrap's, and the rlimits."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from services.tools.sandbox.limits import MIB, SandboxLimits

PROGRAM_PATH = "/run/program.py"
WORKSPACE_PATH = "/work"
HOOK_PATH = f"{WORKSPACE_PATH}/sitecustomize.py"
# Bubblewrap's monitor, outside of the pid namespace, counts against the run's process limit.
OWN_PROCESSES = 1
STACK_BYTES = 8 * MIB
SHM_PATH, SHM_BYTES = "/dev/shm", MIB  # noqa: S108  # inside the sandbox
PRIVATE_PLACES = ("/tmp", SHM_PATH)  # noqa: S108  # inside the sandbox

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",  # noqa: S108  # inside the sandbox, where /tmp is private and sized
    "USER": "sandbox",
    "LANG": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",  # output from before a kill is not lost in a buffer
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONSAFEPATH": "1",
    "PYTHONPATH": WORKSPACE_PATH,  # a program may import the modules it wrote
}
# What a program with a network needs to resolve names, to check certificates and to find the time zone.
NETWORK_FILES = (
    *("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/host.conf", "/etc/services"),
    *("/etc/protocols", "/etc/localtime", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ssl/cert.pem"),
    *("/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted", "/etc/ca-certificates", "/etc/alternatives"),
)
_LAUNCHER = Path(__file__).with_name("launcher.py")
_TOP_LEVEL = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The host paths that bubblewrap mounts: the system read-only at the same paths, the workspace at /work.

    `prefix_source`: the host path of the interpreter's prefix, or None if the prefix is below /usr.
    `program`: for a warm sandbox, the host file into which the service writes the program later.
    `command`: the program to run instead of a Python program. `variables`: the program's environment (name, value).
    `read_only`, `writable`: further mounts as (host path, path in the sandbox).
    `directory`: the program's current directory instead of /work, which does not exist then.
    `network`: the program has the host's network.
    """

    bubblewrap: Path
    interpreter: Path
    prefix_source: Path | None
    prefix: Path
    workspace: Path | None
    program: Path | None = None
    command: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = tuple(ENVIRONMENT.items())
    read_only: tuple[tuple[Path, Path], ...] = ()
    writable: tuple[tuple[Path, Path], ...] = ()
    directory: Path | None = None
    network: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptors:
    """The numbers of the descriptors that bubblewrap uses. Bubblewrap closes them before the program starts.

    `program`: the program, or in a warm sandbox the bootstrap code that waits for the program.
    `variables`: the program's environment, encoded by `variable_options`. `filter`: the seccomp filter.
    `status`: the pipe for bubblewrap's status report. `gate`: the pipe on which bubblewrap waits before the program.
    """

    program: int
    variables: int
    filter: int
    status: int
    gate: int

    @property
    def all(self) -> tuple[int, ...]:
        """All the descriptors, which the launcher must pass on."""
        return self.program, self.variables, self.filter, self.status, self.gate


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """The steps of the launcher before it becomes bubblewrap.

    `parent_pid`: the service. `uid`: the uid to drop to, or None to keep the service's. `join_files`: the cgroup files
    to write to. `rlimits`: limit by name. `namespaces`: descriptors of the namespaces to enter. `binds`: bind mounts
    as (source, target). `network`: whether Landlock lets the program use TCP.
    """

    parent_pid: int
    uid: int | None
    join_files: list[str] = field(default_factory=list)
    rlimits: dict[str, int] = field(default_factory=dict)
    namespaces: tuple[int, ...] = ()
    binds: list[tuple[Path, Path]] = field(default_factory=list)
    network: bool = False


def launcher_command(entry: LaunchSpec, command: list[str]) -> list[str]:
    """Returns the launcher's command line. -I and -S limit the launcher to the standard library."""
    options = [sys.executable, "-I", "-S", str(_LAUNCHER), "--parent", str(entry.parent_pid)]
    for file in entry.join_files:
        options += ["--join", file]
    for name, number in entry.rlimits.items():
        options += ["--rlimit", f"{name}={number}"]
    for namespace in entry.namespaces:
        options += ["--enter", str(namespace)]
    for source, target in entry.binds:
        options += ["--bind", str(source), str(target)]
    if entry.uid is not None:
        options += ["--uid", str(entry.uid)]
    if entry.network:
        options += ["--network", "host"]
    return [*options, "--", *command]


def bubblewrap_command(view: View, descriptors: Descriptors, limits: SandboxLimits) -> list[str]:
    """Returns bubblewrap's command line. The order matters: a later mount covers an earlier one."""
    options = [str(view.bubblewrap), *_isolation(), *(("--share-net",) if view.network else ())]
    options += ["--clearenv", "--args", str(descriptors.variables), *_system(view)]
    # /proc is read-only, so that a program cannot lower its oom_score_adj: it stays the first process to be killed when
    # the host runs out of memory.
    options += ["--proc", "/proc", "--remount-ro", "/proc"]
    # /dev is a tmpfs that may grow to half the host's memory, so it is read-only except for a small /dev/shm.
    options += ["--dev", "/dev", "--size", str(SHM_BYTES), "--tmpfs", SHM_PATH, "--remount-ro", "/dev"]
    options += ["--size", str(limits.tmp_bytes), "--tmpfs", "/tmp"]  # noqa: S108  # private to this run
    for source, target in view.read_only:
        options += ["--ro-bind", str(source), str(target)]
    for source, target in view.writable:
        options += ["--bind", str(source), str(target)]
    if view.program is None:
        options += ["--perms", "0400", "--ro-bind-data", str(descriptors.program), PROGRAM_PATH]
    else:
        options += ["--ro-bind", str(view.program), PROGRAM_PATH]
    if view.workspace is None and view.directory is None:
        options += ["--size", str(limits.tmp_bytes), "--tmpfs", WORKSPACE_PATH]
    elif view.workspace is not None:
        options += ["--bind", str(view.workspace), WORKSPACE_PATH]
    if view.program is not None:
        options += ["--file", str(descriptors.program), HOOK_PATH]
    options += ["--chdir", str(view.directory or WORKSPACE_PATH), "--remount-ro", "/"]
    options += ["--seccomp", str(descriptors.filter)]
    options += ["--json-status-fd", str(descriptors.status), "--block-fd", str(descriptors.gate)]
    return [*options, "--", *(view.command or (str(view.interpreter), PROGRAM_PATH))]


def _isolation() -> list[str]:
    """Returns the options for all namespaces, no capabilities in any of them, and the program itself as pid 1.

    Bubblewrap's own init would run in the pid namespace without the seccomp filter, and the program could write into
    its memory through /proc/1/mem (this was seen to work) and act through it. With the program as pid 1 there is no
    such process, and the kernel ends all descendants before bubblewrap reports the program's end.
    """
    options = [
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--die-with-parent",
        "--new-session",
        "--as-pid-1",
    ]
    return [*options, "--hostname", "sandbox", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"]


def variable_options(view: View) -> bytes:
    """Returns the program's environment as further options for bubblewrap, separated by NUL bytes.

    The values may be secrets, and every user of the host can read a command line, so bubblewrap reads these options
    from a descriptor.
    """
    options = [option for name, value in view.variables for option in ("--setenv", name, value)]
    return b"".join(os.fsencode(option) + b"\0" for option in options)


def _system(view: View) -> list[str]:
    """Returns mounts of /usr and of the dynamic loader's files. On merged-/usr hosts /bin, /lib and so on are links."""
    options = ["--ro-bind", "/usr", "/usr", "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for name in _TOP_LEVEL:
        path = Path("/", name)
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    for file in NETWORK_FILES if view.network else ():
        options += ["--ro-bind-try", file, file]
    if view.prefix_source is not None:
        options += ["--ro-bind", str(view.prefix_source), str(view.prefix)]
    return options


def rlimits(limits: SandboxLimits, *, memory: bool, processes: int | None) -> dict[str, int]:
    """Returns rlimits by name, which the kernel applies to each process.

    `memory` and `processes` are set only where no cgroup limits them for the run as a whole.
    """
    values = {
        # 1 and not 0: with 0 the kernel still starts a handler to which the host pipes cores. Only 1 prevents both.
        "CORE": 1,
        "MEMLOCK": 0,
        "STACK": STACK_BYTES,
        "CPU": max(1, math.ceil(limits.cpu_seconds)),
        "FSIZE": limits.file_bytes,
        "NOFILE": limits.open_files,
    }
    if memory:
        values["AS"] = limits.memory_bytes
    if processes is not None:
        values["NPROC"] = processes + OWN_PROCESSES
    return values
