"""To stop a child process for a while, as an overloaded host or a debugger does."""

from __future__ import annotations

import os
import signal


def freeze(pid: int) -> None:
    """SIGSTOP to a child of ours; returns once no thread of it runs, or it has ended.

    The signal alone is not enough: on a busy machine a thread may go on for a moment, and answer.
    """
    os.kill(pid, signal.SIGSTOP)
    if hasattr(os, "waitid"):  # macOS has it from Python 3.13 on
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
