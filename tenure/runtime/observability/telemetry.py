"""Exports metrics to an OpenTelemetry collector, if one is configured. Otherwise it costs almost nothing.

    async with telemetry("checkpoint", environment):
        …

The export of metrics is best effort; the end of the process flushes within 5 s. Traces are not made here: the
checkpoint service projects them from the ledger (services/checkpoint/traces). No global state of OpenTelemetry is set.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import Resource

from tenure.runtime.observability.metrics import BUCKETS_SECONDS, REGISTRY, MetricRegistry
from tenure.runtime.observability.otlp_target import HTTP, PROTOCOLS, http_target, protocol_of
from tenure.runtime.request_context import Exporting
from tenure.runtime.settings import ConfigurationError

# The numbers of the registry as OpenTelemetry instruments, which read them only when the metric reader collects.


class MetricsExport:
    """Exports every metric of a registry, including later ones, until it is closed."""

    def __init__(self, resource: Resource, reader: MetricReader, registry: MetricRegistry = REGISTRY) -> None:
        self._registry = registry
        self._provider = MeterProvider(metric_readers=[reader], resource=resource)
        self._meter = self._provider.get_meter("tenure")
        registry.on_new_name(self._observe)

    def close(self) -> None:
        """Exports a last time and ends. Blocks as long as the exporter blocks."""
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
        """Exports a histogram as Prometheus does, as three counters (bucket, sum and count).

        OpenTelemetry has no observable histograms.
        """

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


ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
METRICS_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
DISABLED: Final = "OTEL_SDK_DISABLED"
_EXPORT_TIMEOUT_SECONDS: Final = 3
_FLUSH_TIMEOUT_SECONDS: Final = 5.0
_METRICS_INTERVAL_SECONDS: Final = 15.0
_log: Final = logging.getLogger(__name__)


@asynccontextmanager
async def telemetry(
    service: str, environment: Mapping[str, str], *, instance: str = "", version: str = ""
) -> AsyncIterator[None]:
    """Exports metrics inside the block to the endpoint of OTEL_EXPORTER_OTLP_…ENDPOINT; flushes at the end."""
    Exporting.traces = bool(endpoint(environment, TRACES_ENDPOINT))
    metrics = endpoint(environment, METRICS_ENDPOINT)
    if not metrics:
        yield
        return
    if (protocol := protocol_of(environment, "METRICS")) not in PROTOCOLS:
        _log.warning("unsupported OTLP protocol: metrics are exported over gRPC", extra={"protocol": protocol})
    # Imported here because the import takes half a second, which only a process that exports should pay.
    from opentelemetry.sdk.resources import Resource

    named = {"service.name": f"tenure-{service}", "service.instance.id": instance, "service.version": version}
    resource = Resource.create({name: value for name, value in named.items() if value})
    reader = _http_metric_reader(environment) if protocol == HTTP else _metric_reader(metrics)
    export = MetricsExport(resource, reader)
    try:
        yield
    finally:
        await _flush(export.close)


def endpoint(environment: Mapping[str, str], variable: str) -> str:
    """Returns the endpoint of one signal from its `variable` or from ENDPOINT, or "" if its export is off."""
    if environment.get(DISABLED, "").strip().lower() == "true":
        return ""
    return environment.get(variable, "").strip() or environment.get(ENDPOINT, "").strip()


def _metric_reader(endpoint: str) -> MetricReader:
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    exporter = OTLPMetricExporter(endpoint=endpoint, insecure=is_plain(endpoint), timeout=_EXPORT_TIMEOUT_SECONDS)
    return PeriodicExportingMetricReader(exporter, export_interval_millis=_METRICS_INTERVAL_SECONDS * 1000)


def _http_metric_reader(environment: Mapping[str, str]) -> MetricReader:
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    from tenure.runtime.observability.otlp_http import HttpMetricExporter, OtlpHttp

    try:
        http = OtlpHttp(http_target(environment, "METRICS"), _EXPORT_TIMEOUT_SECONDS)
    except (OSError, ValueError) as error:
        raise ConfigurationError([str(error)]) from error
    return PeriodicExportingMetricReader(
        HttpMetricExporter(http), export_interval_millis=_METRICS_INTERVAL_SECONDS * 1000
    )


def is_plain(endpoint: str) -> bool:
    """Whether the connection to an endpoint is without TLS."""
    return not endpoint.startswith("https://")


async def _flush(close: Callable[[], None]) -> None:
    """Flushes in a thread, because exporters block. An unreachable collector must not delay the end of the process."""
    try:
        async with asyncio.timeout(_FLUSH_TIMEOUT_SECONDS):
            await asyncio.to_thread(close)
    except TimeoutError:
        _log.warning("telemetry was not flushed in time", extra={"timeout_seconds": _FLUSH_TIMEOUT_SECONDS})
