"""Traces and metrics to an OpenTelemetry collector, when one is configured; next to nothing otherwise.

    async with telemetry("checkpoint", environment):
        with span("commit", {semconv.TASK_ID: task_id}):
            …

Exporting is best effort: what must not be lost is in the ledger. Spans are batched and dropped when the collector is
too slow; what is left at the end is flushed within a bound. Nothing global of OpenTelemetry is set.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider

from tenure.runtime.metrics import BUCKETS_SECONDS, REGISTRY, MetricRegistry
from tenure.runtime.request_context import Exporting, context_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExporter


# The registry's numbers as OpenTelemetry instruments, read when the reader asks and never before.


class MetricsExport:
    """Observes every name of a registry, those that appear later too, until closed."""

    def __init__(self, resource: Resource, reader: MetricReader, registry: MetricRegistry = REGISTRY) -> None:
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


ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
METRICS_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
PROTOCOL: Final = "OTEL_EXPORTER_OTLP_PROTOCOL"
DISABLED: Final = "OTEL_SDK_DISABLED"
INSTRUMENTATION: Final = "tenure"
_EXPORT_TIMEOUT_SECONDS: Final = 3
_FLUSH_TIMEOUT_SECONDS: Final = 5.0
_METRICS_INTERVAL_SECONDS: Final = 15.0
_log: Final = logging.getLogger(__name__)


def span(
    name: str,
    attributes: Mapping[str, Any] | None = None,
    *,
    parent: str = "",
    kind: trace.SpanKind = trace.SpanKind.INTERNAL,
) -> AbstractContextManager[trace.Span]:
    """A span around the block, child of the one around it. Without an exporter it costs one comparison.

    `parent`: the `traceparent` of the span whose child it is instead, for work that another task was asked for.
    """
    if Exporting.tracer is None:
        return nullcontext(trace.INVALID_SPAN)
    return Exporting.tracer.start_as_current_span(name, context_of(parent), attributes=attributes, kind=kind)


def link(traceparent: str) -> None:
    """Links the current span to that one, of another trace. "" or a text that is none: nothing happens."""
    if Exporting.tracer is None or (parent := context_of(traceparent)) is None:
        return
    other = trace.get_current_span(parent).get_span_context()
    if other.is_valid:
        trace.get_current_span().add_link(other)


@asynccontextmanager
async def telemetry(
    service: str, environment: Mapping[str, str], *, instance: str = "", version: str = ""
) -> AsyncIterator[None]:
    """Export while inside, where the usual OTEL_EXPORTER_OTLP_…ENDPOINT says; flush at the end, for 5 s at most."""
    traces, metrics = (_endpoint(environment, own) for own in (TRACES_ENDPOINT, METRICS_ENDPOINT))
    if not (traces or metrics):
        yield
        return
    if (protocol := environment.get(PROTOCOL, "")) not in {"", "grpc"}:
        _log.warning("telemetry is exported by OTLP over gRPC only", extra={"protocol": protocol})
    # Imported here: half a second that only a process that exports should pay.
    from opentelemetry.sdk.resources import Resource

    named = {"service.name": f"tenure-{service}", "service.instance.id": instance, "service.version": version}
    resource = Resource.create({name: value for name, value in named.items() if value})
    spans = _span_exporter(traces) if traces else None
    async with exporting(resource, spans, _metric_reader(metrics) if metrics else None):
        yield


def _endpoint(environment: Mapping[str, str], own: str) -> str:
    """Where one signal goes, "" for nowhere: its own variable, else the one for all."""
    if environment.get(DISABLED, "").strip().lower() == "true":
        return ""
    return environment.get(own, "").strip() or environment.get(ENDPOINT, "").strip()


def _span_exporter(endpoint: str) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint, insecure=_is_plain(endpoint), timeout=_EXPORT_TIMEOUT_SECONDS)


def _metric_reader(endpoint: str) -> MetricReader:
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    exporter = OTLPMetricExporter(endpoint=endpoint, insecure=_is_plain(endpoint), timeout=_EXPORT_TIMEOUT_SECONDS)
    return PeriodicExportingMetricReader(exporter, export_interval_millis=_METRICS_INTERVAL_SECONDS * 1000)


def _is_plain(endpoint: str) -> bool:
    return not endpoint.startswith("https://")


@asynccontextmanager
async def exporting(
    resource: Resource, spans: SpanExporter | None, metrics: MetricReader | None
) -> AsyncIterator[None]:
    """Export to these while inside, None for not at all; the mechanism under `telemetry`."""
    ends: list[Callable[[], None]] = []
    if metrics is not None:
        ends.append(MetricsExport(resource, metrics).close)
    if spans is not None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = TracerProvider(resource=resource)
        provider.add_span_processor(BatchSpanProcessor(spans))
        ends.append(provider.shutdown)
        Exporting.tracer = provider.get_tracer(INSTRUMENTATION)
    try:
        yield
    finally:
        Exporting.tracer = None
        await _flush(ends)


async def _flush(ends: Sequence[Callable[[], None]]) -> None:
    """Off the loop, since exporters block. A collector that is gone must not hold up the end of the process."""
    try:
        async with asyncio.timeout(_FLUSH_TIMEOUT_SECONDS):
            await asyncio.gather(*map(asyncio.to_thread, ends))
    except TimeoutError:
        _log.warning("telemetry was not flushed in time", extra={"timeout_seconds": _FLUSH_TIMEOUT_SECONDS})
