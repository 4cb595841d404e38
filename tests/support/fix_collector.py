"""An OpenTelemetry collector in this process: takes what is exported by OTLP over gRPC, and keeps the spans.

collector.environment                      # what a service needs to find it
await collector.span("commit", **{"tenure.task.id": task_id})
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tests.support.patience import PATIENCE_SECONDS

ERROR: Final = 2


class ExportedSpan(NamedTuple):
    """A span as it arrived. Numbers and texts only: the attributes we set. `links`: to these spans of these traces."""

    service: str
    name: str
    attributes: dict[str, Any]
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    links: frozenset[tuple[bytes, bytes]]
    events: tuple[str, ...] = ()
    is_error: bool = False


@dataclass(slots=True)
class Collector:
    """Keeps all that came."""

    address: str = ""
    spans: list[ExportedSpan] = field(default_factory=list)
    metrics: set[str] = field(default_factory=set)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    received: bytearray = field(default_factory=bytearray)
    """All messages as bytes."""
    is_refusing: bool = False
    """Whether it takes no spans."""
    on_export: Callable[[], Awaitable[None]] | None = None
    """What happens when spans come, before they are taken."""
    refuses_spans: Callable[[list[ExportedSpan]], grpc.StatusCode | None] = lambda _spans: None
    """With what it refuses a request that has these spans, if it does."""
    refused_with: tuple[tuple[str, bytes], ...] = ()
    """The metadata of these refusals."""
    refused: int = 0
    server: Any = None

    @property
    def environment(self) -> dict[str, str]:
        """Of a service that exports to it."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{self.address}"}

    @property
    def by_id(self) -> dict[bytes, ExportedSpan]:
        """The spans as a receiver has them that stores each once."""
        return {span.span_id: span for span in self.spans}

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until it is true of what came."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                self.arrived.clear()
                await self.arrived.wait()

    async def start(self) -> None:
        """Serves, after `stop` at the same address."""
        server = self.server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        traces: Any = trace_service_pb2_grpc  # generated without types
        metrics: Any = metrics_service_pb2_grpc
        traces.add_TraceServiceServicer_to_server(_Traces(self), server)
        metrics.add_MetricsServiceServicer_to_server(_Metrics(self), server)
        self.address = f"127.0.0.1:{server.add_insecure_port(self.address or '127.0.0.1:0')}"
        await server.start()

    async def stop(self) -> None:
        """Breaks all requests off."""
        await self.server.stop(grace=None)

    async def span(self, name: str, *, service: str = "", **attributes: Any) -> ExportedSpan:
        """The first span of this name (and service) with these attributes, waited for."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                for span in self.spans:
                    named = span.name == name and service in {"", span.service}
                    if named and attributes.items() <= span.attributes.items():
                        return span
                self.arrived.clear()
                await self.arrived.wait()


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def Export(self, request: Any, context: Any) -> Any:
        if self._collector.is_refusing:
            self._collector.refused += 1
            self._collector.arrived.set()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        if self._collector.on_export is not None:
            await self._collector.on_export()
        spans = spans_in(request)
        if (status := self._collector.refuses_spans(spans)) is not None:
            self._collector.refused += 1
            self._collector.arrived.set()
            await context.abort(status, "not these", self._collector.refused_with)
        self._collector.received += request.SerializeToString()
        self._collector.spans += spans
        self._collector.arrived.set()
        return trace_service_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def Export(self, request: Any, _context: Any) -> Any:
        self._collector.received += request.SerializeToString()
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                self._collector.metrics |= {metric.name for metric in scope.metrics}
        return metrics_service_pb2.ExportMetricsServiceResponse()


def spans_in(request: Any) -> list[ExportedSpan]:
    """The spans of an ExportTraceServiceRequest."""
    return [
        _span(_plain(resource.resource.attributes)["service.name"], one)
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for one in scope.spans
    ]


def _span(service: str, one: Any) -> ExportedSpan:
    links = frozenset((link.trace_id, link.span_id) for link in one.links)
    attributes, events = _plain(one.attributes), tuple(event.name for event in one.events)
    ids = (one.trace_id, one.span_id, one.parent_span_id)
    return ExportedSpan(service, one.name, attributes, *ids, links, events, one.status.code == ERROR)


def _plain(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    """Serving on a free port."""
    made = Collector()
    await made.start()
    yield made
    await made.stop()
