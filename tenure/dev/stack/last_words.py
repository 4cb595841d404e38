"""Why a process ended, out of the end of its log."""

from __future__ import annotations

import json
from typing import Final

LONGEST: Final = 300


def last_words(log: str) -> str:
    """The last line that says something: of a JSON line its message and the error below its stack. Empty: none does."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for line in reversed(lines):
        said = _said(line)
        if said:
            return said if len(said) <= LONGEST else said[: LONGEST - 1] + "…"
    return ""


def _said(line: str) -> str:
    try:
        record = json.loads(line)
    except ValueError:
        return line.removeprefix("- ")
    if not isinstance(record, dict):
        return line
    if record.get("level") not in {"WARNING", "ERROR", "CRITICAL"}:
        return ""
    stack = [part for part in str(record.get("stack", "")).splitlines() if part.strip()]
    return ": ".join(part for part in (str(record.get("message", "")), stack[-1].strip() if stack else "") if part)
