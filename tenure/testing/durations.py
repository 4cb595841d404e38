"""Spans of time as a test writes them: `2h`, `1h30m`, `90s`, `250ms`, a number of seconds, a timedelta."""

from __future__ import annotations

import re
from datetime import timedelta
from math import inf
from typing import Final

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")

Duration = str | float | timedelta


def seconds_of(duration: Duration) -> float:
    """Returns the seconds of a span of time. Raises ValueError if it is none, or not positive."""
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, str):
        parts = _PART.findall(duration)
        if "".join(number + unit for number, unit in parts) != duration:
            parts = []
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    else:
        seconds = float(duration)
    if not 0 < seconds < inf:  # NaN, too
        raise ValueError(f"{duration!r} is not a span of time: write for example '2h', '1h30m', 90 or a timedelta")
    return seconds
