"""A launcher that executes a program which the kernel kills when the parent process ends (Linux).

    python die_with_parent.py PARENT_PID PROGRAM ARGUMENT…

It is a separate program instead of a `preexec_fn` because code between fork and exec may deadlock in a process with
threads.
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
    """Returns the command line that runs `argv` under this launcher, or `argv` where the launcher cannot be used.

    The kernel watches the *thread* that starts the program, and only the end of the main thread is the end of the
    process.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return argv
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(os.getpid()), *argv]


def _main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit("the parent process has ended already")
    os.execv(program[0], program)


if __name__ == "__main__":
    _main()
