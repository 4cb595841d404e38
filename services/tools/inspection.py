"""Keeps the programs of this uid from inspecting this process."""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_PR_SET_DUMPABLE: Final = 4  # linux/prctl.h


def forbid_inspection() -> None:
    """Keeps other processes of this uid from reading this process's environment, memory and open files (Linux)."""
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(0)) != 0:
        raise OSError("prctl(PR_SET_DUMPABLE) failed")
