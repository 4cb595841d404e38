"""Started for every run with an empty environment; gives up every right of the service, then becomes bubblewrap.

A script and not a `preexec_fn`: code between fork and exec in a process with threads can deadlock, and a fresh
interpreter inherits neither the service's memory nor its environment. It needs the standard library only and is run
with -I -S. Whatever fails is one sentence on stderr and exit code 125, and bubblewrap is never reached.

    launcher.py --parent PID [--join FILE]… [--rlimit NAME=NUMBER]… [--enter DESCRIPTOR]… [--bind SOURCE TARGET]…
                [--uid UID] -- COMMAND…
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys

# Every import is paid for by every run: those of `typing` and `signal` would cost more than all the launcher does.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

FAILED = 125
LANDLOCK_FOR_TCP, LANDLOCK_FOR_SIGNALS = 4, 6  # the versions with which these came
_SIGKILL = 9
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
# The same on all architectures.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 444, 446
_LANDLOCK_VERSION = 1
_BIND_AND_CONNECT_TCP, _SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 3, 3
_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000


class Orders:
    """The command line, parsed by hand: argparse alone would double the start-up time of every run."""

    def __init__(self, message: list[str]) -> None:
        self.parent = 0
        self.joins: list[str] = []
        self.rlimits: list[tuple[str, int]] = []
        self.namespaces: list[int] = []
        self.binds: list[tuple[str, str]] = []
        self.uid: int | None = None
        pending = iter(message)
        for word in pending:
            if word == "--":
                break
            self._take(word, next(pending), pending)
        self.command = list(pending)

    def _take(self, name: str, value: str, rest: object) -> None:
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
            self.binds.append((value, next(rest)))  # type: ignore[call-overload]  # the iterator of words
        elif name == "--uid":
            self.uid = int(value)
        else:
            raise ValueError(f"unknown option {name}")


def call(name: str, *arguments: object) -> int:
    """Call a function of libc that Python does not offer. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = getattr(libc, name)(*arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def die_with_the_service() -> None:
    """Bubblewrap does this too, but only after it has made the namespaces; kept across exec, not across setuid."""
    call("prctl", _PR_SET_PDEATHSIG, ctypes.c_ulong(_SIGKILL))


def bind_out_of_reach(binds: list[tuple[str, str]]) -> None:
    """Make directories that the unprivileged uid cannot reach visible elsewhere, in a mount namespace of our own."""
    call("unshare", _CLONE_NEWNS)
    call("mount", b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None)
    for source, target in binds:
        call("mount", os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(_MS_BIND | _MS_REC), None)


def enter(namespaces: list[int]) -> None:
    """Enters the namespaces in which an unprivileged service has its rights; exec drops them again."""
    for namespace in namespaces:
        call("setns", namespace, 0)
        os.close(namespace)


def limit(rlimits: list[tuple[str, int]]) -> None:
    """Set resource limits. CPU gets a second between the signal and the kill, so that its cause can be told."""
    for name, number in rlimits:
        hard = number + 1 if name == "CPU" else number
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (number, hard))


def landlock_version() -> int:
    """Which version of Landlock this kernel has; 0: none."""
    libc = ctypes.CDLL(None, use_errno=True)
    flags = ctypes.c_uint(_LANDLOCK_VERSION)
    version: int = libc.syscall(ctypes.c_long(_LANDLOCK_CREATE_RULESET), None, ctypes.c_size_t(0), flags)
    return max(0, version)


def stay_local() -> None:
    """A second wall behind the network and pid namespaces: no TCP port, no abstract socket and no signal goes further
    than this process and its children. Files are left alone: under rules for them bubblewrap could mount nothing.
    """
    version = landlock_version()
    if version < LANDLOCK_FOR_TCP:
        return
    scoped = _SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS if version >= LANDLOCK_FOR_SIGNALS else 0
    handled = (ctypes.c_uint64 * 3)(0, _BIND_AND_CONNECT_TCP, scoped)
    size = ctypes.c_size_t(24 if scoped else 16)
    rules = call("syscall", ctypes.c_long(_LANDLOCK_CREATE_RULESET), handled, size, ctypes.c_uint(0))
    call("prctl", _PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0)))
    call("syscall", ctypes.c_long(_LANDLOCK_RESTRICT_SELF), rules, ctypes.c_uint(0))
    os.close(rules)


def write(path: str, text: str) -> None:
    """Write to a kernel file in one call, as such files want it."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def drop_to(uid: int) -> None:
    """Become `uid` for good: no groups, no saved uid to return to."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def carry_out(orders: Orders) -> NoReturn:
    """Do everything that needs the service's rights, give them up, and exec."""
    if orders.binds:
        bind_out_of_reach(orders.binds)
    write("/proc/self/oom_score_adj", "1000")  # when the host itself runs out of memory, this goes first
    for path in orders.joins:
        write(path, "0")
    limit(orders.rlimits)
    enter(orders.namespaces)
    if orders.uid is not None:
        drop_to(orders.uid)
    stay_local()
    os.umask(0o022)
    die_with_the_service()
    if os.getppid() != orders.parent:
        raise RuntimeError("the service died before the sandbox was set up")
    os.execve(orders.command[0], orders.command, {})


def main() -> NoReturn:
    """Carry out the command line or say in one sentence why not."""
    try:
        carry_out(Orders(sys.argv[1:]))
    except Exception as error:  # noqa: BLE001  # the last frame of a tiny program: every failure is one sentence
        sys.stderr.write(f"sandbox launcher: {error}\n")
        raise SystemExit(FAILED) from None


if __name__ == "__main__":
    main()
