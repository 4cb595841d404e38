"""What many numbers come to."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import median
from typing import NamedTuple


class Spread(NamedTuple):
    """The middle one of several rounds, with the lowest and the highest."""

    median: float
    low: float
    high: float


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share (0 to 1) of all does not exceed. ValueError for no values."""
    if not values:
        raise ValueError("there is no percentile of nothing")
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"{share} is no share")
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


def spread(values: Sequence[float]) -> Spread:
    """Median, minimum and maximum. ValueError for no values."""
    if not values:
        raise ValueError("there is no spread of nothing")
    return Spread(median(values), min(values), max(values))
