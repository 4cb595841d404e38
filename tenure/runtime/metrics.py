"""Counters, gauges and histograms that cost an addition, and that tests, operators and exporters all read.

The numbers live here, in the process. OpenTelemetry reads them by observable instruments when an exporter is set up
(`tenure.runtime.telemetry`), so the hot path never goes through an SDK. Hold on to a cell where it is hot:

    _GRANTS = cell("tenure_grants_total")
    _GRANTS.value += 1

Cells are changed by the event loop's thread only; an exporter's thread may read them meanwhile. Labels have few values:
a task id is not a label. A name has a bounded number of series: what comes after them is counted together, under labels
that say "(others)". Nothing here raises: a measurement must not undo the work that it measures.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

LabelSet = tuple[tuple[str, str], ...]

BUCKETS_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
MAX_SERIES_OF_A_NAME: Final = 2000
OTHERS: Final = "(others)"
"""The value of each label of the series that stands for all beyond MAX_SERIES_OF_A_NAME."""

_log: Final = logging.getLogger(__name__)


class Cell:
    """One number under one set of labels: a counter if its name ends in `_total`, else a gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class Histogram:
    """Durations in seconds, counted by bucket."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_SECONDS) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        """How many were observed."""
        return sum(self.counts)

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        self.total += seconds


_Series = TypeVar("_Series", Cell, Histogram)


class MetricRegistry:
    """All series of a process. `on_new_name` is told of each new name once, also of those that were there before."""

    def __init__(self) -> None:
        self._cells: dict[str, dict[LabelSet, Cell]] = {}
        self._histograms: dict[str, dict[LabelSet, Histogram]] = {}
        self._listeners: list[Callable[[str], None]] = []

    def cell(self, name: str, /, **labels: str) -> Cell:
        """The number `name{labels}`, made on first use."""
        series = self._cells.get(name)
        if series is None:
            series = self._cells[name] = {}
            self._tell(name)
        return series.get(_key(labels)) or _another(name, series, labels, Cell)

    def histogram(self, name: str, /, **labels: str) -> Histogram:
        """The histogram `name{labels}`, made on first use."""
        series = self._histograms.get(name)
        if series is None:
            series = self._histograms[name] = {}
            self._tell(name)
        return series.get(_key(labels)) or _another(name, series, labels, Histogram)

    def read(self, name: str, /, **labels: str) -> float:
        """The sum of the cells of `name` (observations, for a histogram) whose labels include these; 0 if none do."""
        wanted = set(labels.items())
        cells = sum(c.value for key, c in self._cells.get(name, {}).items() if wanted.issubset(key))
        return cells + sum(h.count for key, h in self._histograms.get(name, {}).items() if wanted.issubset(key))

    def cells(self, name: str) -> list[tuple[dict[str, str], Cell]]:
        """The cells of one name, with their labels."""
        return [(dict(key), cell) for key, cell in list(self._cells.get(name, {}).items())]

    def histograms(self, name: str) -> list[tuple[dict[str, str], Histogram]]:
        """The histograms of one name, with their labels."""
        return [(dict(key), histogram) for key, histogram in list(self._histograms.get(name, {}).items())]

    def is_histogram(self, name: str) -> bool:
        """Whether the name is a histogram's."""
        return name in self._histograms

    def on_new_name(self, listener: Callable[[str], None]) -> None:
        """Tell `listener` every name, those already there first."""
        self._listeners.append(listener)
        for name in (*self._cells, *self._histograms):
            listener(name)

    def forget(self, listener: Callable[[str], None]) -> None:
        """Tell `listener` nothing more."""
        self._listeners.remove(listener)

    def _tell(self, name: str) -> None:
        for listener in self._listeners:
            listener(name)


def _another(name: str, series: dict[LabelSet, _Series], labels: dict[str, str], make: type[_Series]) -> _Series:
    """A series that is not there yet, or the one for all that find no room."""
    if len(series) < MAX_SERIES_OF_A_NAME:
        return series.setdefault(_key(labels), make())
    others = _key(dict.fromkeys(labels, OTHERS))
    if others not in series:
        series[others] = make()
        _log.warning("a metric has too many series: a label has unbounded values", extra={"metric": name})
    return series[others]


def _key(labels: dict[str, str]) -> LabelSet:
    return tuple(sorted(labels.items()))


REGISTRY: Final = MetricRegistry()
cell = REGISTRY.cell
histogram = REGISTRY.histogram
read = REGISTRY.read


def count(name: str, amount: float = 1, /, **labels: str) -> None:
    """Add to a counter: `count("tenure_stale_epoch_rejections_total", service="checkpoint")`."""
    REGISTRY.cell(name, **labels).value += amount


def gauge(name: str, value: float, /, **labels: str) -> None:
    """Set a gauge."""
    REGISTRY.cell(name, **labels).value = value


def observe(name: str, seconds: float, /, **labels: str) -> None:
    """Count one duration in a histogram; its name ends in `_seconds`."""
    REGISTRY.histogram(name, **labels).observe(seconds)
