"""The report: percentiles, figures with their bounds, and a table for each measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from statistics import median
from textwrap import wrap
from typing import Any, Final, NamedTuple

from bench.run import Machine


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


_HEADINGS: Final = ("what", "figure", "range", "bound", "", "")
_RIGHT: Final = frozenset({1})
_WIDTH: Final = 110


def render(machine: Machine, sections: Sequence[Section], seconds: float) -> str:
    """Returns the whole report as text."""
    parts = ["Tenure on this machine", *wrap(machine.line(), _WIDTH), ""]
    for section in sections:
        parts += [section.title, *(f"  {line}" for line in wrap(section.how, _WIDTH - 2)), ""]
        parts += [f"  {line}" for line in table([_HEADINGS, *map(_row, section.figures)])]
        parts.append("")
    return "\n".join([*parts, f"{verdict(sections)} Measured in {seconds:.0f} s."])


def verdict(sections: Sequence[Section]) -> str:
    """Returns one sentence about all bounds."""
    judged = [figure for section in sections for figure in section.figures if figure.holds is not None]
    missed = [figure.what for figure in judged if not figure.holds]
    if not judged:
        return "Nothing measured here has a bound."
    return f"{len(missed)} of {len(judged)} bounds missed: {'; '.join(missed)}." if missed else "All bounds hold."


def as_json(machine: Machine, sections: Sequence[Section], seconds: float) -> dict[str, Any]:
    """Returns the report for programs, with numbers that are not rounded."""
    return {
        "machine": asdict(machine),
        "seconds": seconds,
        "sections": [
            {
                "title": section.title,
                "how": section.how,
                "figures": [{**asdict(figure), "holds": figure.holds} for figure in section.figures],
            }
            for section in sections
        ],
    }


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table whose columns are as wide as their widest cells."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column in _RIGHT else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def number(value: float) -> str:
    """Returns the number with three significant digits, or as a whole number from 100 on."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _row(figure: Figure) -> tuple[str, ...]:
    return (
        figure.what,
        f"{number(figure.value)} {figure.unit}",
        _range(figure),
        _bound(figure),
        _held(figure),
        figure.note,
    )


def _range(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return ""
    return f"{number(figure.low)} to {number(figure.high)}"


def _bound(figure: Figure) -> str:
    if figure.bound is None:
        return ""
    return f"{'at most' if figure.bound.is_most else 'over'} {number(figure.bound.limit)} {figure.unit}"


def _held(figure: Figure) -> str:
    return {None: "", True: "holds", False: "MISSED"}[figure.holds]
