"""Exports traces and metrics to an OpenTelemetry collector, if one is configured. Otherwise it costs almost nothing.

    async with telemetry("checkpoint", environment):
        with span("commit", {semconv.TASK_ID: task_id}):
            …

The export is best effort: data that must not be lost is in the ledger. Spans are sent in batches and dropped when the
collector is too slow; the end of the process flushes the rest within 5 s. No global state of OpenTelemetry is set.
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
    """Opens a span for the block, as a child of the current span. Without an exporter it costs one comparison.

    `parent`: a `traceparent`; the new span is a child of that span instead. It is for work that another asyncio task
    requested.
    """
    if Exporting.tracer is None:
        return nullcontext(trace.INVALID_SPAN)
    return Exporting.tracer.start_as_current_span(name, context_of(parent), attributes=attributes, kind=kind)


def link(traceparent: str) -> None:
    """Links the current span to a span of another trace. Does nothing for "" or an invalid `traceparent`."""
    if Exporting.tracer is None or (parent := context_of(traceparent)) is None:
        return
    other = trace.get_current_span(parent).get_span_context()
    if other.is_valid:
        trace.get_current_span().add_link(other)


@asynccontextmanager
async def telemetry(
    service: str, environment: Mapping[str, str], *, instance: str = "", version: str = ""
) -> AsyncIterator[None]:
    """Exports inside the block to the endpoints of OTEL_EXPORTER_OTLP_…ENDPOINT; flushes at the end for up to 5 s."""
    traces, metrics = (_endpoint(environment, variable) for variable in (TRACES_ENDPOINT, METRICS_ENDPOINT))
    if not (traces or metrics):
        yield
        return
    if (protocol := environment.get(PROTOCOL, "")) not in {"", "grpc"}:
        _log.warning("unsupported OTLP protocol: telemetry is exported over gRPC", extra={"protocol": protocol})
    # Imported here because the import takes half a second, which only a process that exports should pay.
    from opentelemetry.sdk.resources import Resource

    named = {"service.name": f"tenure-{service}", "service.instance.id": instance, "service.version": version}
    resource = Resource.create({name: value for name, value in named.items() if value})
    spans = _span_exporter(traces) if traces else None
    async with exporting(resource, spans, _metric_reader(metrics) if metrics else None):
        yield


def _endpoint(environment: Mapping[str, str], variable: str) -> str:
    """Returns the endpoint of one signal from its `variable` or from ENDPOINT, or "" if its export is off."""
    if environment.get(DISABLED, "").strip().lower() == "true":
        return ""
    return environment.get(variable, "").strip() or environment.get(ENDPOINT, "").strip()


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
    """Exports to these exporters inside the block. None: that signal is not exported. `telemetry` uses it."""
    closers: list[Callable[[], None]] = []
    if metrics is not None:
        closers.append(MetricsExport(resource, metrics).close)
    if spans is not None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = TracerProvider(resource=resource)
        provider.add_span_processor(BatchSpanProcessor(spans))
        closers.append(provider.shutdown)
        Exporting.tracer = provider.get_tracer(INSTRUMENTATION)
    try:
        yield
    finally:
        Exporting.tracer = None
        await _flush(closers)


async def _flush(closers: Sequence[Callable[[], None]]) -> None:
    """Flushes in threads, because exporters block. An unreachable collector must not delay the end of the process."""
    try:
        async with asyncio.timeout(_FLUSH_TIMEOUT_SECONDS):
            await asyncio.gather(*map(asyncio.to_thread, closers))
    except TimeoutError:
        _log.warning("telemetry was not flushed in time", extra={"timeout_seconds": _FLUSH_TIMEOUT_SECONDS})
