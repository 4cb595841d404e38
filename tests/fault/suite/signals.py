"""Signals to processes that may end at any moment."""

from __future__ import annotations

import os
import signal
from contextlib import suppress


def send(pid: int, number: signal.Signals) -> None:
    """Does nothing when the process has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
