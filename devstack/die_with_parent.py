"""A launcher: becomes the given program, which the kernel kills when the process that started it ends (Linux).

    python die_with_parent.py PARENT_PID PROGRAM ARGUMENT…

A program of its own instead of a `preexec_fn`: code between fork and exec in a process with threads may deadlock.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h; kept across exec


def command(argv: list[str]) -> list[str]:
    """The command line that runs `argv` under this launcher, or `argv` itself where that is not possible.

    The kernel watches the *thread* that starts the program, so only the main thread's end is the process's end.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return argv
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(os.getpid()), *argv]


def _main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit("the process that started this one is gone already")
    os.execv(program[0], program)


if __name__ == "__main__":
    _main()
