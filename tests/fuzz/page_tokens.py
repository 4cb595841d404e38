"""Page tokens that no list made: texts of no form, and positions of the right form that no row can have."""

from __future__ import annotations

import base64
from typing import Final


def encoded(position: bytes | str) -> str:
    """A token as most lists write it."""
    return base64.urlsafe_b64encode(position if isinstance(position, bytes) else position.encode()).decode()


GARBAGE: Final = (
    "\x00",
    "a\x00b",
    " ",
    "=",
    "!",
    "\u0663",
    "é",
    "\U0001f4a5",
    "\ufeff",
    "x\n",
    "../..",
    "/" * 20_000,
)
"""Of no list: neither a name, nor a number, nor Base64 of anything."""

_ID: Final = "01a2137d-477b-7000-8000-000000000001"
_TIMES: Final = (
    "",
    "now",
    "infinity",
    "-infinity",
    "NaN",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "10000-01-01T00:00:00+00:00",
    "2026-01-01T00:00:00+00:00:01.5",
    "2026-01-01T00:00:00+23:59:59.999999",
    "2026-W01-1",
    "20260101T000000Z",
    "2026-01-01 24:00:00",
    "2026-01-01T00:00:00",
    "2026-01-01T00:00:00,5+00",
)
_IDS: Final = (_ID, "", "1", "{" + _ID + "}", "urn:uuid:" + _ID, _ID.replace("-", ""), "\x00", "\u0661" * 32)
_CALLS: Final = ("1.0", "", "\x00", "\ud7ff", "x" * 200, "1.0 1.0", "1.0|1.0")
_OF_TASKS: Final = tuple(f"{time} {task_id}" for time in _TIMES for task_id in _IDS)
_OF_CALLS: Final = tuple(f"{time}{mark}{_ID}{mark}{call}" for mark in " |" for time in _TIMES[5:] for call in _CALLS)
_OF_KEYS: Final = tuple(f"{time} {key}" for time in _TIMES for key in ("4rm0c2xqk1ab", "", "\x00"))
_NAMES: Final = ("a", "zzzz", "x" * 64, "x" * 201, "a/b", "a" * 600)
_NUMBERS: Final = ("-1", "0", "00", "9" * 18, "9" * 19, "9" * 64, "1" * 5000)
_PATHS: Final[tuple[bytes | str, ...]] = ("a.txt", "../../etc/passwd", "/", "//", "a\x00b", "a/" * 400, b"\xff\xfe")

POSITIONS: Final = (*(encoded(one) for one in (*_OF_TASKS, *_OF_CALLS, *_PATHS)), *_OF_KEYS, *_NAMES, *_NUMBERS)
"""Tokens in the form of some list, with a position that is at the limit of its types, or beyond it."""
