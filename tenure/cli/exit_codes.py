"""The exit codes of `tenure`."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Exit(IntEnum):
    """0 is success. A script can tell 1 to 7 apart."""

    OK = 0
    TASK_FAILED = 1
    USAGE = 2
    REFUSED = 3
    UNAVAILABLE = 4
    NOT_YET = 5
    INTERNAL = 6
    INVARIANT_VIOLATED = 7
    INTERRUPTED = 130


HELP: Final = """\b
Exit codes:
  0  success
  1  the task ended in another state than SUCCEEDED (wait, watch, submit --watch)
  2  the command line is wrong
  3  refused: not found, wrong state, invalid; a repeat is refused too
  4  not possible now: no answer, or a limit is reached; try again later
  5  not yet: the task has not ended within --timeout, or another holder has the lease
  6  an internal error of a service; its log has the details
  7  an invariant is violated (admin verify), or receipts were changed
  130  stopped by Ctrl-C"""
