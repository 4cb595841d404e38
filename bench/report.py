"""The report: a table for each measurement, and a last line that says whether the bounds hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import Any, Final

from bench.figures import Figure, Section
from bench.machine import Machine

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
