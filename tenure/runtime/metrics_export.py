"""The registry's numbers as OpenTelemetry instruments, read when the reader asks and never before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider

from tenure.runtime.metrics import BUCKETS_SECONDS, REGISTRY, Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.resources import Resource


class MetricsExport:
    """Observes every name of a registry, those that appear later too, until closed."""

    def __init__(self, resource: Resource, reader: MetricReader, registry: Registry = REGISTRY) -> None:
        self._registry = registry
        self._provider = MeterProvider(metric_readers=[reader], resource=resource)
        self._meter = self._provider.get_meter("tenure")
        registry.on_new_name(self._observe)

    def close(self) -> None:
        """Export once more and end. Blocks while the exporter does."""
        self._registry.forget(self._observe)
        self._provider.shutdown()

    def _observe(self, name: str) -> None:
        if self._registry.is_histogram(name):
            self._observe_histogram(name)
        elif name.endswith("_total"):
            self._meter.create_observable_counter(name, [self._reading_cells(name)])
        else:
            self._meter.create_observable_gauge(name, [self._reading_cells(name)])

    def _reading_cells(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_options: CallbackOptions) -> Iterable[Observation]:
            return [Observation(cell.value, labels) for labels, cell in self._registry.cells(name)]

        return read

    def _observe_histogram(self, name: str) -> None:
        """Observable histograms do not exist, so it goes out as Prometheus writes one: buckets, sum and count."""

        def buckets(_options: CallbackOptions) -> Iterable[Observation]:
            for labels, histogram in self._registry.histograms(name):
                below = 0
                for bound, count in zip((*BUCKETS_SECONDS, "+Inf"), histogram.counts, strict=True):
                    below += count
                    yield Observation(below, {**labels, "le": str(bound)})

        def total(_options: CallbackOptions) -> Iterable[Observation]:
            return [Observation(histogram.total, labels) for labels, histogram in self._registry.histograms(name)]

        def count(_options: CallbackOptions) -> Iterable[Observation]:
            return [Observation(histogram.count, labels) for labels, histogram in self._registry.histograms(name)]

        self._meter.create_observable_counter(f"{name}_bucket", [buckets])
        self._meter.create_observable_counter(f"{name}_sum", [total], unit="s")
        self._meter.create_observable_counter(f"{name}_count", [count])
