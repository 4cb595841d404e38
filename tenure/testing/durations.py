"""Spans of time as a test writes them: `2h`, `1h30m`, `90s`, `250ms`, a number of seconds, a timedelta."""

from __future__ import annotations

from datetime import timedelta
from math import inf

from tenure.domain.texts import span_seconds

Duration = str | float | timedelta


def seconds_of(duration: Duration) -> float:
    """Returns the seconds of a span of time. Raises ValueError if it is none, or not positive."""
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, str):
        seconds = span_seconds(duration) or 0.0
    else:
        seconds = float(duration)
    if not 0 < seconds < inf:  # NaN, too
        raise ValueError(f"{duration!r} is not a span of time: write for example '2h', '1h30m', 90 or a timedelta")
    return seconds
