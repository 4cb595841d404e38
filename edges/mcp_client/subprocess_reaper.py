"""Runs one server program outside of the sandbox as a child process, and ends the program with all its descendants.

    subprocess_reaper.py LIFELINE -- COMMAND…

LIFELINE is the read end of a pipe whose write end only the service has. When the write end closes, because the service
closed it or died, the reaper sends SIGTERM to the program's process group and then kills the program with all its
descendants. The reaper does the same when the program itself ends. This script uses the standard library only and runs
with -I -S.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from pathlib import Path

TERM_SECONDS = 1.0
KILL_SECONDS = 5.0
NOT_STARTED = 127
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_LINUX = sys.platform == "linux"


def main() -> int:
    """Returns the program's exit code, 128 + N when signal N killed it, 1 when the program could not be ended."""
    lifeline, command = int(sys.argv[1]), sys.argv[3:]
    os.set_inheritable(lifeline, False)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    if _LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphaned descendants of the program become our children
    reaper_pid = os.getpid()
    child = os.fork()
    if child == 0:
        _exec_program(command, reaper_pid)
    with contextlib.suppress(OSError):  # the child did it first
        os.setpgid(child, child)
    _close_pipes()
    ended: dict[int, int] = {}
    while child not in ended and lifeline not in select.select([lifeline, wake_read], [], [])[0]:
        _reap(ended, wake_read)
    _end_all(child, ended, wake_read)
    return os.waitstatus_to_exitcode(ended[child]) % 256 if child in ended else 1


def _exec_program(command: list[str], reaper_pid: int) -> None:
    """Runs in the child: makes a process group and executes the program. Never returns."""
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if _LINUX:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != reaper_pid:
                os._exit(NOT_STARTED)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error.strerror}\n".encode())
    finally:
        os._exit(NOT_STARTED)


def _close_pipes() -> None:
    """Replaces stdin and stdout by /dev/null, so that only the program holds the pipes and their ends are visible."""
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)
    os.dup2(devnull, 1)


def _end_all(child: int, ended: dict[int, int], wake_read: int) -> None:
    """Sends SIGTERM to the program's group, waits, then kills all descendants of this process until none is left."""
    _signal_group(child, signal.SIGTERM)
    deadline = time.monotonic() + TERM_SECONDS
    while (child not in ended or _descendants()) and time.monotonic() < deadline:
        _wait_and_reap(ended, wake_read)
    deadline = time.monotonic() + KILL_SECONDS
    while (child not in ended or _descendants()) and time.monotonic() < deadline:
        _signal_group(child, signal.SIGKILL)
        for pid in _descendants():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                os.kill(pid, signal.SIGKILL)
        _wait_and_reap(ended, wake_read)


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):  # the group is empty
        os.killpg(group, number)


def _wait_and_reap(ended: dict[int, int], wake_read: int) -> None:
    """Waits for the death of a child, at most 20 ms: the death of a grandchild causes no SIGCHLD here."""
    select.select([wake_read], [], [], 0.02)
    _reap(ended, wake_read)


def _reap(ended: dict[int, int], wake_read: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(wake_read, 4096)
    with contextlib.suppress(ChildProcessError):
        while (reaped := os.waitpid(-1, os.WNOHANG))[0] != 0:
            ended[reaped[0]] = reaped[1]


def _descendants() -> list[int]:
    """Returns all processes below this one. Returns none without /proc: there only the process group is ended."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*") if _LINUX else ():
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    ancestors: set[int] = {os.getpid()}
    pids: list[int] = []
    while new := [pid for pid, parent in parents.items() if parent in ancestors and pid not in ancestors]:
        pids += new
        ancestors.update(new)
    return pids


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value)) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    sys.exit(main())
