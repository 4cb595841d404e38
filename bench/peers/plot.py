"""The plot of the comparison: four panels of bars, written as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from statistics import median
from typing import Final

from bench.peers.peers import Takeover
from bench.peers.results import ALONE, AT_ONCE, TENURE, Result
from bench.report import number

PANEL_WIDTH: Final = 460
LABEL_WIDTH: Final = 92
VALUE_WIDTH: Final = 92
BAR: Final = 18
GAP: Final = 8
HEAD: Final = 46
MARGIN: Final = 24
BY_BENCH: Final = " *"
OURS, OTHERS, TEXT, PAPER = "#1f5fa8", "#9aa5b1", "#24292f", "#ffffff"
FONT: Final = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar: whose it is, its value, and the text behind it."""

    engine: str
    value: float
    shown: str
    is_ours: bool


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel. `better`: which bars are better."""

    title: str
    better: str
    bars: Sequence[Bar]


def panels(results: Sequence[Result]) -> list[Panel]:
    """Returns the four panels. All engines must have results."""

    def bars(values: Sequence[float], unit: str) -> list[Bar]:
        return [
            Bar(result.title, value, f"{_shown(value)}{unit}", result.name == TENURE)
            for result, value in zip(results, values, strict=True)
        ]

    rates = [result.spread(AT_ONCE, lambda sample: sample.rate).median for result in results]
    alone = [1000 * result.latency(ALONE, 0.5) for result in results]
    repeated = [float(max(result.repeated)) for result in results]
    takeovers = [median(result.takeovers) for result in results]
    killed = [
        replace(bar, shown=f"{bar.shown}{BY_BENCH}" if result.takeover != Takeover.ENGINE.value else bar.shown)
        for bar, result in zip(bars(takeovers, " s"), results, strict=True)
    ]
    return [
        Panel(f"Steps/s, {AT_ONCE} tasks at once", "longer is better", bars(rates, "")),
        Panel("A step of one task alone, p50", "shorter is better", bars(alone, " ms")),
        Panel("Effects that a woken zombie repeated", "shorter is better", bars(repeated, "")),
        Panel(
            "Worker killed → effect elsewhere",
            f"shorter is better;{BY_BENCH} the bench acts at once as a supervisor",
            killed,
        ),
    ]


def svg(results: Sequence[Result]) -> str:
    """Returns the plot."""
    drawn = panels(results)
    height = HEAD + len(results) * (BAR + GAP)
    width, total = 2 * PANEL_WIDTH + 3 * MARGIN, 2 * height + 3 * MARGIN
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" width="{width}" height="{total}" '
            f'font-family="{FONT}" font-size="13" fill="{TEXT}">'
        ),
        f'<rect width="{width}" height="{total}" fill="{PAPER}"/>',
    ]
    for index, panel in enumerate(drawn):
        x = MARGIN + index % 2 * (PANEL_WIDTH + MARGIN)
        y = MARGIN + index // 2 * (height + MARGIN)
        parts += [f'<g transform="translate({x} {y})">', *_panel(panel), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel) -> list[str]:
    longest = max(bar.value for bar in panel.bars) or 1.0
    room = PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH
    parts = [
        f'<text y="14" font-size="15" font-weight="600">{escape(panel.title)}</text>',
        f'<text y="32" font-size="12" fill="#57606a">{escape(panel.better)}</text>',
    ]
    for number_of_bar, bar in enumerate(panel.bars):
        y = HEAD + number_of_bar * (BAR + GAP)
        width = room * bar.value / longest
        weight = ' font-weight="600"' if bar.is_ours else ""
        middle = y + BAR - 5
        parts += [
            f'<text x="{LABEL_WIDTH - 8}" y="{middle}" text-anchor="end"{weight}>{escape(bar.engine)}</text>',
            (
                f'<rect x="{LABEL_WIDTH}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2" '
                f'fill="{OURS if bar.is_ours else OTHERS}"/>'
            ),
            f'<text x="{LABEL_WIDTH + width + 6:.1f}" y="{middle}"{weight}>{escape(bar.shown)}</text>',
        ]
    return parts


def _shown(value: float) -> str:
    return str(int(value)) if value == int(value) else number(value)
