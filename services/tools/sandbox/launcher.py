"""The launcher: a script that starts with each run, drops all rights of the service, and becomes bubblewrap.

It is a script and not a `preexec_fn`: code between fork and exec in a process with threads can deadlock, and a fresh
interpreter inherits neither the service's memory nor its environment. The script starts with an empty environment,
needs only the standard library and is run with -I -S. On any failure it writes one sentence to stderr and exits with
code 125, without starting bubblewrap.

    launcher.py --parent PID [--join FILE]… [--rlimit NAME=NUMBER]… [--enter DESCRIPTOR]… [--bind SOURCE TARGET]…
                [--uid UID] [--network host] -- COMMAND…
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys

# Each import slows down the start of every run: `typing` and `signal` would take longer than all the launcher does.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

FAILED = 125
LANDLOCK_FOR_TCP, LANDLOCK_FOR_SIGNALS = 4, 6  # the Landlock versions that added these rules
_SIGKILL = 9
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
# These system call numbers are the same on all architectures.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 444, 446
_LANDLOCK_VERSION = 1
_BIND_AND_CONNECT_TCP, _SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 3, 3
_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000


class Options:
    """The parsed command line. There is no argparse, because it alone would double the start time of every run."""

    def __init__(self, arguments: list[str]) -> None:
        self.parent = 0
        self.joins: list[str] = []
        self.rlimits: list[tuple[str, int]] = []
        self.namespaces: list[int] = []
        self.binds: list[tuple[str, str]] = []
        self.uid: int | None = None
        self.has_network = False
        pending = iter(arguments)
        for name in pending:
            if name == "--":
                break
            self._parse(name, next(pending), pending)
        self.command = list(pending)

    def _parse(self, name: str, value: str, rest: object) -> None:
        if name == "--parent":
            self.parent = int(value)
        elif name == "--join":
            self.joins.append(value)
        elif name == "--rlimit":
            limit, _, number = value.partition("=")
            self.rlimits.append((limit, int(number)))
        elif name == "--enter":
            self.namespaces.append(int(value))
        elif name == "--bind":
            self.binds.append((value, next(rest)))  # type: ignore[call-overload]  # the iterator of arguments
        elif name == "--uid":
            self.uid = int(value)
        elif name == "--network":
            self.has_network = value == "host"
        else:
            raise ValueError(f"unknown option {name}")


def call(name: str, *arguments: object) -> int:
    """Calls a function of libc that Python does not offer. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = getattr(libc, name)(*arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def die_with_service() -> None:
    """Sets SIGKILL as the death signal of this process, so that it dies with the service.

    Bubblewrap sets it too, but only after it has created the namespaces. The setting survives exec and not setuid, so
    this call comes after `drop_to`.
    """
    call("prctl", _PR_SET_PDEATHSIG, ctypes.c_ulong(_SIGKILL))


def bind_unreachable_paths(binds: list[tuple[str, str]]) -> None:
    """Binds paths that the run's uid cannot reach to paths that it can reach, in a new mount namespace."""
    call("unshare", _CLONE_NEWNS)
    call("mount", b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None)
    for source, target in binds:
        call("mount", os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(_MS_BIND | _MS_REC), None)


def enter(namespaces: list[int]) -> None:
    """Enters the mount helper's namespaces, where an unprivileged service has capabilities; exec drops them again."""
    for namespace in namespaces:
        call("setns", namespace, 0)
        os.close(namespace)


def limit(rlimits: list[tuple[str, int]]) -> None:
    """Sets rlimits. The hard CPU limit (SIGKILL) is 1 s above the soft one (SIGXCPU), so that a result can name it."""
    for name, number in rlimits:
        hard = number + 1 if name == "CPU" else number
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (number, hard))


def landlock_version() -> int:
    """Returns the kernel's Landlock version; 0 means no Landlock."""
    libc = ctypes.CDLL(None, use_errno=True)
    flags = ctypes.c_uint(_LANDLOCK_VERSION)
    version: int = libc.syscall(ctypes.c_long(_LANDLOCK_CREATE_RULESET), None, ctypes.c_size_t(0), flags)
    return max(0, version)


def restrict_to_sandbox(*, has_network: bool) -> None:
    """Restricts TCP, abstract sockets and signals to this process and its children with Landlock.

    This is a second layer behind the network and pid namespaces, and for a program with the host's network the only one
    that hides the host's abstract sockets. There are no rules for files, because bubblewrap could not mount anything
    under such rules. Does nothing on kernels without Landlock's network rules.
    """
    version = landlock_version()
    tcp = 0 if has_network else _BIND_AND_CONNECT_TCP
    scoped = _SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS if version >= LANDLOCK_FOR_SIGNALS else 0
    if version < LANDLOCK_FOR_TCP or not tcp | scoped:
        return
    handled = (ctypes.c_uint64 * 3)(0, tcp, scoped)
    size = ctypes.c_size_t(24 if scoped else 16)
    rules = call("syscall", ctypes.c_long(_LANDLOCK_CREATE_RULESET), handled, size, ctypes.c_uint(0))
    call("prctl", _PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0)))
    call("syscall", ctypes.c_long(_LANDLOCK_RESTRICT_SELF), rules, ctypes.c_uint(0))
    os.close(rules)


def write(path: str, text: str) -> None:
    """Writes to a kernel file in one system call, as such files require."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def drop_to(uid: int) -> None:
    """Changes to `uid` for good: no supplementary groups, and no saved uid to return to."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def launch(options: Options) -> NoReturn:
    """Does everything that needs the service's rights, drops these rights, and becomes the command."""
    if options.binds:
        bind_unreachable_paths(options.binds)
    write("/proc/self/oom_score_adj", "1000")  # the first process to be killed when the host runs out of memory
    for path in options.joins:
        write(path, "0")
    limit(options.rlimits)
    enter(options.namespaces)
    if options.uid is not None:
        drop_to(options.uid)
    restrict_to_sandbox(has_network=options.has_network)
    os.umask(0o022)
    die_with_service()
    if os.getppid() != options.parent:
        raise RuntimeError("the tool service died before the sandbox was set up; the program was not started")
    os.execve(options.command[0], options.command, {})


def main() -> NoReturn:
    """Runs the command line, or writes one sentence to stderr and exits with FAILED."""
    try:
        launch(Options(sys.argv[1:]))
    except Exception as error:  # noqa: BLE001  # every failure of this script becomes one sentence
        sys.stderr.write(f"sandbox launcher: {error}\n")
        raise SystemExit(FAILED) from None


if __name__ == "__main__":
    main()
