"""What matters in a log: why its process ended, and what it warned of."""

from __future__ import annotations

import json
from typing import Any, Final

LONGEST: Final = 300


def last_words(log: str) -> str:
    """The last line that says something: of a JSON line its message and the error below its stack. Empty: none does."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for line in reversed(lines):
        said = _said(line)
        if said:
            return said if len(said) <= LONGEST else said[: LONGEST - 1] + "…"
    return ""


def warnings_of(log: str, logger: str) -> list[str]:
    """What this logger warned of, oldest first."""
    records = (_record(line) for line in log.splitlines())
    return [
        str(record.get("message", ""))
        for record in records
        if record.get("level") == "WARNING" and record.get("logger") == logger
    ]


def fact_of(log: str, logger: str, name: str) -> str:
    """What this logger last said under this name; empty: nothing."""
    records = (_record(line) for line in reversed(log.splitlines()))
    return next((str(one[name]) for one in records if one.get("logger") == logger and name in one), "")


def _record(line: str) -> dict[str, Any]:
    """A line of JSON, or nothing."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _said(line: str) -> str:
    record = _record(line)
    if not record:
        return line.removeprefix("- ")
    if record.get("level") not in {"WARNING", "ERROR", "CRITICAL"}:
        return ""
    stack = [part for part in str(record.get("stack", "")).splitlines() if part.strip()]
    return ": ".join(part for part in (str(record.get("message", "")), stack[-1].strip() if stack else "") if part)
