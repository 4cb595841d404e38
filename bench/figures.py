"""Figures: measured values with their unit and bound, grouped into sections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.samples import percentile, spread


@dataclass(frozen=True, slots=True)
class Bound:
    """The promised bound of a figure, in the figure's unit: a maximum, or with `is_most` False a minimum."""

    limit: float
    is_most: bool = True

    def holds(self, value: float) -> bool:
        return value <= self.limit if self.is_most else value > self.limit


def at_most(limit: float) -> Bound:
    return Bound(limit)


def over(limit: float) -> Bound:
    return Bound(limit, is_most=False)


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value. `low` and `high` are the range of its rounds or samples, None for a single value.

    `note` is printed behind the figure. `is_compared`: it is a ratio of the baseline; less of "times" is better, and
    more of every other unit.
    """

    what: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    bound: Bound | None = None
    note: str = ""
    is_compared: bool = False

    @property
    def holds(self) -> bool | None:
        """Whether the bound holds; None for a figure without a bound."""
        return None if self.bound is None else self.bound.holds(self.value)


@dataclass(slots=True)
class Section:
    """The figures of one measurement. `how` says how they were measured."""

    title: str
    how: str
    figures: list[Figure] = field(default_factory=list)

    def add(self, what: str, value: float, unit: str, *, bound: Bound | None = None, note: str = "") -> None:
        """Adds one measured value."""
        self.figures.append(Figure(what, value, unit, bound=bound, note=note))

    def add_rounds(
        self,
        what: str,
        values: Sequence[float],
        unit: str,
        *,
        bound: Bound | None = None,
        note: str = "",
        is_compared: bool = False,
    ) -> None:
        """Adds the median of several rounds with their range; nothing for no values."""
        if values:
            middle, low, high = spread(values)
            self.figures.append(Figure(what, middle, unit, low, high, bound, note, is_compared))

    def add_latencies(self, what: str, seconds: Sequence[float], *, bound: Bound | None = None) -> None:
        """Adds p50 and p99 of samples in seconds, as milliseconds. The bound, in milliseconds, is for the p99."""
        samples = [value * 1000 for value in seconds]
        note = f"{len(samples)} samples"
        lowest, highest = min(samples), max(samples)
        self.figures += [
            Figure(f"{what}, p50", percentile(samples, 0.5), "ms", lowest, highest, None, note),
            Figure(f"{what}, p99", percentile(samples, 0.99), "ms", None, None, bound, note),
        ]
