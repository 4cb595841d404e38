"""A figure: what was measured, in which unit, and what it must hold to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.samples import percentile, spread


@dataclass(frozen=True, slots=True)
class Bound:
    """What was promised, in the figure's unit."""

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
    """`low` and `high`: of the rounds, or of the samples; absent when there was one. `note`: what to know besides."""

    what: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    bound: Bound | None = None
    note: str = ""

    @property
    def holds(self) -> bool | None:
        """None when nothing was promised."""
        return None if self.bound is None else self.bound.holds(self.value)


@dataclass(slots=True)
class Section:
    """The figures of one measurement, and in a few words how they came about."""

    title: str
    how: str
    figures: list[Figure] = field(default_factory=list)

    def add(self, what: str, value: float, unit: str, *, bound: Bound | None = None, note: str = "") -> None:
        """One measured value."""
        self.figures.append(Figure(what, value, unit, bound=bound, note=note))

    def add_rounds(
        self, what: str, values: Sequence[float], unit: str, *, bound: Bound | None = None, note: str = ""
    ) -> None:
        """The median of several rounds, with their range. Nothing when there was nothing to measure."""
        if values:
            middle, low, high = spread(values)
            self.figures.append(Figure(what, middle, unit, low, high, bound, note))

    def add_latencies(self, what: str, seconds: Sequence[float], *, bound: Bound | None = None) -> None:
        """p50 and p99 of samples, as milliseconds; the bound is the p99's, in milliseconds."""
        samples = [value * 1000 for value in seconds]
        note = f"{len(samples)} samples"
        lowest, highest = min(samples), max(samples)
        self.figures += [
            Figure(f"{what}, p50", percentile(samples, 0.5), "ms", lowest, highest, None, note),
            Figure(f"{what}, p99", percentile(samples, 0.99), "ms", None, None, bound, note),
        ]
