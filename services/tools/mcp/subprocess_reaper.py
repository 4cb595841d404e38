"""Started for every server program outside of the sandbox: runs it as its child and ends all that came of it.

    subprocess_reaper.py LIFELINE -- COMMAND…

LIFELINE is the reading end of a pipe whose other end only the service has: when it is closed, by the service or by the
service's death, the program and all its descendants are asked to end and then killed. So they are when the program
itself ends. A script of the standard library only, run with -I -S.
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

ASKED_SECONDS = 1.0
KILLING_SECONDS = 5.0
NOT_STARTED = 127
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_LINUX = sys.platform == "linux"


def main() -> int:
    """The program's exit code, 128 + N if it was killed by signal N."""
    lifeline, command = int(sys.argv[1]), sys.argv[3:]
    os.set_inheritable(lifeline, False)
    awake, wake = os.pipe()
    os.set_blocking(awake, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    if _LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what the program leaves behind becomes our child
    output_store = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, output_store)
    with contextlib.suppress(OSError):  # it did so itself
        os.setpgid(child, child)
    _let_go_of_the_pipes()
    ended: dict[int, int] = {}
    while child not in ended and lifeline not in select.select([lifeline, awake], [], [])[0]:
        _reap(ended, awake)
    _end_all(child, ended, awake)
    return os.waitstatus_to_exitcode(ended[child]) % 256 if child in ended else 1


def _become(command: list[str], output_store: int) -> None:
    """In the child: a group of its own, and the program. Never returns."""
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if _LINUX:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != output_store:
                os._exit(NOT_STARTED)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error.strerror}\n".encode())
    finally:
        os._exit(NOT_STARTED)


def _let_go_of_the_pipes() -> None:
    """They are the program's alone: their ends are to be seen."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)


def _end_all(child: int, ended: dict[int, int], awake: int) -> None:
    """Ask the program's group, wait a while, then kill whatever descends from us until nothing does."""
    _signal_group(child, signal.SIGTERM)
    before = time.monotonic() + ASKED_SECONDS
    while (child not in ended or _descendants()) and time.monotonic() < before:
        _wait_and_reap(ended, awake)
    before = time.monotonic() + KILLING_SECONDS
    while (child not in ended or _descendants()) and time.monotonic() < before:
        _signal_group(child, signal.SIGKILL)
        for pid in _descendants():
            with contextlib.suppress(OSError):  # gone meanwhile
                os.kill(pid, signal.SIGKILL)
        _wait_and_reap(ended, awake)


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):  # nobody is left in it
        os.killpg(group, number)


def _wait_and_reap(ended: dict[int, int], awake: int) -> None:
    """A death of a child wakes us; one of a grandchild does not."""
    select.select([awake], [], [], 0.02)
    _reap(ended, awake)


def _reap(ended: dict[int, int], awake: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(awake, 4096)
    with contextlib.suppress(ChildProcessError):
        while (reaped := os.waitpid(-1, os.WNOHANG))[0] != 0:
            ended[reaped[0]] = reaped[1]


def _descendants() -> list[int]:
    """All processes below us; none where there is no /proc: there the group has to do."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*") if _LINUX else ():
        with contextlib.suppress(OSError, ValueError, IndexError):  # gone meanwhile
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    below: set[int] = {os.getpid()}
    pids: list[int] = []
    while new := [pid for pid, parent in parents.items() if parent in below and pid not in below]:
        pids += new
        below.update(new)
    return pids


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value)) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    sys.exit(main())
