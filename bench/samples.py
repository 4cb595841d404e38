"""Percentiles and ranges of samples."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import median
from typing import NamedTuple


class Spread(NamedTuple):
    """The median of several rounds, with the lowest and the highest value."""

    median: float
    low: float
    high: float


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least this share (0 to 1) of the values does not exceed.

    Raises ValueError for no values, and for a share outside of 0 to 1.
    """
    if not values:
        raise ValueError("a percentile needs at least one value, but there are none")
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"the share {share} is not between 0 and 1")
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


def spread(values: Sequence[float]) -> Spread:
    """Returns median, minimum and maximum. Raises ValueError for no values."""
    if not values:
        raise ValueError("a range needs at least one value, but there are none")
    return Spread(median(values), min(values), max(values))
