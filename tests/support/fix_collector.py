"""An OpenTelemetry collector in this process: takes what is exported by OTLP over gRPC, and keeps the spans.

collector.environment                      # what a service needs to find it
await collector.span("commit", **{"tenure.task.id": task_id})
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tests.support.patience import PATIENCE_SECONDS


class ExportedSpan(NamedTuple):
    """A span as it arrived. Numbers and texts only: the attributes we set. `links`: to these spans of these traces."""

    service: str
    name: str
    attributes: dict[str, Any]
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    links: frozenset[tuple[bytes, bytes]]


@dataclass(slots=True)
class Collector:
    """Keeps all that came."""

    address: str = ""
    spans: list[ExportedSpan] = field(default_factory=list)
    metrics: set[str] = field(default_factory=set)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    received: bytearray = field(default_factory=bytearray)
    """All messages as bytes."""

    @property
    def environment(self) -> dict[str, str]:
        """Of a service that exports to it, soon after each span ended."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{self.address}", "OTEL_BSP_SCHEDULE_DELAY": "100"}

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

    async def Export(self, request: Any, _context: Any) -> Any:
        self._collector.received += request.SerializeToString()
        for resource in request.resource_spans:
            service = _plain(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                self._collector.spans += [_span(service, one) for one in scope.spans]
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


def _span(service: str, one: Any) -> ExportedSpan:
    links = frozenset((link.trace_id, link.span_id) for link in one.links)
    return ExportedSpan(service, one.name, _plain(one.attributes), one.trace_id, one.span_id, one.parent_span_id, links)


def _plain(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    """Serving on a free port."""
    made = Collector()
    server = grpc.aio.server()
    traces: Any = trace_service_pb2_grpc  # generated without types
    metrics: Any = metrics_service_pb2_grpc
    traces.add_TraceServiceServicer_to_server(_Traces(made), server)
    metrics.add_MetricsServiceServicer_to_server(_Metrics(made), server)
    made.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield made
    await server.stop(grace=None)
