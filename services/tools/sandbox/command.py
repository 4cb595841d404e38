"""The command lines of one run: the launcher's and bubblewrap's."""

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
# Bubblewrap itself takes part in a run: its monitor, outside of the pid namespace.
OWN_PROCESSES = 1
STACK_BYTES = 8 * MIB
SHM_PATH, SHM_BYTES = "/dev/shm", MIB  # noqa: S108  # inside the sandbox
PRIVATE_PLACES = ("/tmp", SHM_PATH)  # noqa: S108  # inside the sandbox

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",  # noqa: S108  # inside the sandbox, where /tmp is private and sized
    "USER": "sandbox",
    "LANG": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",  # what was printed before a kill has been printed
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONSAFEPATH": "1",
    "PYTHONPATH": WORKSPACE_PATH,  # a program may import the modules it wrote
}
_LAUNCHER = Path(__file__).with_name("launcher.py")
_TOP_LEVEL = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Host paths that bubblewrap shall show: read-only ones at their own place, the workspace at /work.

    `program`: the file in which the program will be, for a sandbox that is started ahead of it. `command`: what is run
    instead of a Python program, with its own variables, and with host paths that it is shown, read-only, at others.
    """

    bubblewrap: Path
    interpreter: Path
    prefix_source: Path | None  # where the interpreter's prefix is found, when it is not below /usr
    prefix: Path
    workspace: Path | None
    program: Path | None = None
    command: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    read_only: tuple[tuple[Path, Path], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptors:
    """Numbers of the descriptors that bubblewrap reads and writes; it closes them before the program starts.

    `program` holds the program, or what the interpreter does until there is one; `variables` its
    environment, as `variable_options` has it.
    """

    program: int
    variables: int
    filter: int
    status: int
    gate: int

    @property
    def all(self) -> tuple[int, ...]:
        """Whatever they are for."""
        return self.program, self.variables, self.filter, self.status, self.gate


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """What the launcher does before it becomes bubblewrap."""

    parent_pid: int
    uid: int | None
    join_files: list[str] = field(default_factory=list)
    rlimits: dict[str, int] = field(default_factory=dict)
    namespaces: tuple[int, ...] = ()
    binds: list[tuple[Path, Path]] = field(default_factory=list)


def launcher_command(entry: LaunchSpec, command: list[str]) -> list[str]:
    """The launcher's command line; -I -S keep everything but the standard library out of it."""
    message = [sys.executable, "-I", "-S", str(_LAUNCHER), "--parent", str(entry.parent_pid)]
    for file in entry.join_files:
        message += ["--join", file]
    for name, number in entry.rlimits.items():
        message += ["--rlimit", f"{name}={number}"]
    for namespace in entry.namespaces:
        message += ["--enter", str(namespace)]
    for source, target in entry.binds:
        message += ["--bind", str(source), str(target)]
    if entry.uid is not None:
        message += ["--uid", str(entry.uid)]
    return [*message, "--", *command]


def bubblewrap_command(view: View, descriptors: Descriptors, limits: SandboxLimits) -> list[str]:
    """Bubblewrap's command line. The order matters: what is mounted later lies on top."""
    message = [str(view.bubblewrap), *_isolation(), "--clearenv", "--args", str(descriptors.variables), *_system(view)]
    # Nothing in /proc is written to: a program is the first to go when the host runs out of memory, and stays it.
    message += ["--proc", "/proc", "--remount-ro", "/proc"]
    # /dev is a tmpfs of half the host's memory: read-only, except for a small /dev/shm.
    message += ["--dev", "/dev", "--size", str(SHM_BYTES), "--tmpfs", SHM_PATH, "--remount-ro", "/dev"]
    message += ["--size", str(limits.tmp_bytes), "--tmpfs", "/tmp"]  # noqa: S108  # private to this run
    for source, target in view.read_only:
        message += ["--ro-bind", str(source), str(target)]
    if view.program is None:
        message += ["--perms", "0400", "--ro-bind-data", str(descriptors.program), PROGRAM_PATH]
    else:
        message += ["--ro-bind", str(view.program), PROGRAM_PATH]
    if view.workspace is None:
        message += ["--size", str(limits.tmp_bytes), "--tmpfs", WORKSPACE_PATH]
    else:
        message += ["--bind", str(view.workspace), WORKSPACE_PATH]
    if view.program is not None:
        message += ["--file", str(descriptors.program), HOOK_PATH]
    message += ["--chdir", WORKSPACE_PATH, "--remount-ro", "/", "--seccomp", str(descriptors.filter)]
    message += ["--json-status-fd", str(descriptors.status), "--block-fd", str(descriptors.gate)]
    return [*message, "--", *(view.command or (str(view.interpreter), PROGRAM_PATH))]


def _isolation() -> list[str]:
    """All namespaces, no rights in any of them, and the program itself as pid 1.

    Bubblewrap's own init would run in the namespace without the system-call filter, and the program could write into
    its memory through /proc/1/mem (seen to work) and act through it. As pid 1 the program is alone, and whatever it
    started is gone before its own end is reported.
    """
    message = [
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--die-with-parent",
        "--new-session",
        "--as-pid-1",
    ]
    return [*message, "--hostname", "sandbox", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"]


def variable_options(view: View) -> bytes:
    """The program's environment as further options for bubblewrap. They may be secrets, and anybody on the host can
    read a command line: these words come by a descriptor.
    """
    message = [
        word for name, value in {**ENVIRONMENT, **dict(view.variables)}.items() for word in ("--setenv", name, value)
    ]
    return b"".join(os.fsencode(word) + b"\0" for word in message)


def _system(view: View) -> list[str]:
    """/usr and what the dynamic loader needs, in the shape the host has them (links on merged systems)."""
    message = ["--ro-bind", "/usr", "/usr", "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for name in _TOP_LEVEL:
        path = Path("/", name)
        if path.is_symlink():
            message += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            message += ["--ro-bind", str(path), str(path)]
    if view.prefix_source is not None:
        message += ["--ro-bind", str(view.prefix_source), str(view.prefix)]
    return message


def rlimits(limits: SandboxLimits, *, memory: bool, processes: int | None) -> dict[str, int]:
    """Limits per process. `memory` and `processes` are set where no cgroup limits them for the run as a whole."""
    chosen = {
        # 0 would stop core files only: a handler that the host pipes cores to is started for any limit but 1.
        "CORE": 1,
        "MEMLOCK": 0,
        "STACK": STACK_BYTES,
        "CPU": max(1, math.ceil(limits.cpu_seconds)),
        "FSIZE": limits.file_bytes,
        "NOFILE": limits.open_files,
    }
    if memory:
        chosen["AS"] = limits.memory_bytes
    if processes is not None:
        chosen["NPROC"] = processes + OWN_PROCESSES
    return chosen
