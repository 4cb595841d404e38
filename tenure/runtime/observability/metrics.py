"""Counters, gauges and histograms. Counting costs one addition; tests, operators and exporters read the same numbers.

The numbers are kept in this process. An exporter reads them when it collects, so the hot path never calls an SDK:
OpenTelemetry through observable instruments (telemetry.py), Prometheus through its endpoint (prometheus.py).
metric_catalogue.py describes each name. On a hot path keep the cell in a variable:

    _GRANTS = cell("tenure_grants_total")
    _GRANTS.value += 1

Only the thread of the event loop changes cells; the thread of an exporter may read them meanwhile. What is read from
elsewhere, such as the use of a pool, is a sample: `on_sample` registers who takes it.

The counters of `prometheus_client` take a lock, and eight times as long. It writes the format that Prometheus reads.

A label has few values: a task id is not a label. Names that clients choose go through BoundedNames. A name has at most
MAX_SERIES_OF_A_NAME series; all further label sets are counted together under labels with the value "(others)". No
function here raises: a measurement must not undo the work that it measures.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from tenure.domain.models import vendor_of

LabelSet = tuple[tuple[str, str], ...]

BUCKETS_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
MAX_SERIES_OF_A_NAME: Final = 2000
OTHERS: Final = "(others)"
"""The value of all labels of the series that counts everything beyond MAX_SERIES_OF_A_NAME."""

_log: Final = logging.getLogger(__name__)


class Cell:
    """The number of one series: a counter if the metric's name ends in `_total`, else a gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class Histogram:
    """A histogram of durations in seconds, with the buckets BUCKETS_SECONDS."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_SECONDS) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        """The number of observed durations."""
        return sum(self.counts)

    def observe(self, seconds: float) -> None:
        """Adds one duration."""
        self.counts[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        self.total += seconds


_Series = TypeVar("_Series", Cell, Histogram)


class MetricRegistry:
    """All series of a process."""

    def __init__(self) -> None:
        self._cells: dict[str, dict[LabelSet, Cell]] = {}
        self._histograms: dict[str, dict[LabelSet, Histogram]] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._samplers: list[Callable[[], None]] = []

    def cell(self, name: str, /, **labels: str) -> Cell:
        """Returns the cell `name{labels}`. Creates it at the first use."""
        series = self._cells.get(name)
        if series is None:
            series = self._cells[name] = {}
            self._notify(name)
        return series.get(_key(labels)) or _new_series(name, series, labels, Cell)

    def histogram(self, name: str, /, **labels: str) -> Histogram:
        """Returns the histogram `name{labels}`. Creates it at the first use."""
        series = self._histograms.get(name)
        if series is None:
            series = self._histograms[name] = {}
            self._notify(name)
        return series.get(_key(labels)) or _new_series(name, series, labels, Histogram)

    def read(self, name: str, /, **labels: str) -> float:
        """Returns the sum of the cells of `name` whose labels include `labels`, or 0.

        For a histogram, the sum of the numbers of observations.
        """
        wanted = set(labels.items())
        cells = sum(c.value for key, c in self._cells.get(name, {}).items() if wanted.issubset(key))
        return cells + sum(h.count for key, h in self._histograms.get(name, {}).items() if wanted.issubset(key))

    def cells(self, name: str) -> list[tuple[dict[str, str], Cell]]:
        """Returns the cells of one name with their labels."""
        return [(dict(key), cell) for key, cell in list(self._cells.get(name, {}).items())]

    def histograms(self, name: str) -> list[tuple[dict[str, str], Histogram]]:
        """Returns the histograms of one name with their labels."""
        return [(dict(key), histogram) for key, histogram in list(self._histograms.get(name, {}).items())]

    def is_histogram(self, name: str) -> bool:
        return name in self._histograms

    def names(self) -> list[str]:
        """Returns the names of all metrics."""
        return sorted((*self._cells, *self._histograms))

    def remove(self, name: str, /, **labels: str) -> None:
        """Removes a gauge whose subject is gone, so that its last value is not reported for ever."""
        self._cells.get(name, {}).pop(_key(labels), None)

    @contextmanager
    def on_sample(self, sampler: Callable[[], None]) -> Iterator[None]:
        """Calls `sampler` in the event loop about once a second inside the block. It sets gauges and never waits."""
        self._samplers.append(sampler)
        try:
            yield
        finally:
            self._samplers.remove(sampler)

    def sample(self) -> None:
        """Calls all samplers. One that fails is logged: a measurement must not undo the work that it measures."""
        for sampler in list(self._samplers):
            try:
                sampler()
            except Exception:  # noqa: BLE001  whatever it is, the other samplers go on
                _log.exception("a metric could not be sampled")

    def on_new_name(self, listener: Callable[[str], None]) -> None:
        """Calls `listener` with each existing name now, and with each new name once."""
        self._listeners.append(listener)
        for name in (*self._cells, *self._histograms):
            listener(name)

    def forget(self, listener: Callable[[str], None]) -> None:
        """Removes a listener of `on_new_name`."""
        self._listeners.remove(listener)

    def _notify(self, name: str) -> None:
        for listener in self._listeners:
            listener(name)


class BoundedNames:
    """Names that clients choose, as the values of a label: the first `most` stand for themselves, the others for
    OTHERS.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: set[str] = set()

    def __call__(self, name: str) -> str:
        if name in self._names:
            return name
        if len(self._names) >= self._most:
            return OTHERS
        self._names.add(name)
        return name


class TenantNames:
    """The tenants that have a label of their own: none, until the process has read its setting."""

    named = BoundedNames(0)


def name_tenants(most: int) -> None:
    """Gives the first `most` tenants of this process labels of their own."""
    TenantNames.named = BoundedNames(most)


def tenant_label(tenant: str) -> str:
    """Returns the value of the label `tenant`: the tenant, or OTHERS."""
    return TenantNames.named(tenant)


def _new_series(name: str, series: dict[LabelSet, _Series], labels: dict[str, str], make: type[_Series]) -> _Series:
    """Returns a new series, or the shared series OTHERS if the name has MAX_SERIES_OF_A_NAME series."""
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
on_sample = REGISTRY.on_sample


def count(name: str, amount: float = 1, /, **labels: str) -> None:
    """Adds to a counter: `count("tenure_stale_epoch_rejections_total", service="checkpoint")`."""
    REGISTRY.cell(name, **labels).value += amount


def gauge(name: str, value: float, /, **labels: str) -> None:
    """Sets a gauge. A bool becomes 0 or 1: OpenTelemetry's encoder refuses it, and with it all metrics of an export."""
    REGISTRY.cell(name, **labels).value = float(value)


def observe(name: str, seconds: float, /, **labels: str) -> None:
    """Adds one duration to a histogram, whose name ends in `_seconds`."""
    REGISTRY.histogram(name, **labels).observe(seconds)


# The labels of a model in metrics, for the worker that calls it and for the ledger that bills it.

MAX_MODELS: Final = 50
"""Models with labels of their own in a process: clients choose the name of a model."""
_named: Final = BoundedNames(MAX_MODELS)


def model_labels(model: str) -> dict[str, str]:
    """Returns the provider and the model, as labels."""
    name = _named(model)
    return {"provider": OTHERS if name == OTHERS else vendor_of(model)[0], "model": name}
