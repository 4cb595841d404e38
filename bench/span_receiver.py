"""A collector of OpenTelemetry that keeps the ids of the spans it gets, to compare them with the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tenure.client import Client
from tenure.domain.traces import TracedTask, TraceProjection
from tenure.v1 import task_pb2
from tenure.wire.ledger import entry_for_trace, record_nanoseconds


class SpanReceiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Serves OTLP over gRPC on the loopback interface inside `async with`. `received`: the ids of spans."""

    def __init__(self) -> None:
        self.received: set[str] = set()
        self.address = ""
        self._server: Any = None
        self._arrived = asyncio.Event()

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a checkpoint service that exports to it."""
        return {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://{self.address}"}

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        traces: Any = trace_service_pb2_grpc  # generated without types
        traces.add_TraceServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(grace=None)

    async def Export(self, request: Any, _context: Any) -> Any:  # noqa: N802  the name on the wire
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.received |= {span.span_id.hex() for span in scope.spans}
        self._arrived.set()
        return trace_service_pb2.ExportTraceServiceResponse()

    async def incomplete(self, client: Client, tasks: Sequence[task_pb2.Task], patience_seconds: float) -> int:
        """Returns how many ended tasks have a span in the ledger that did not come in time."""
        expected = {task.task_id: await _span_ids(client, task) for task in tasks}
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_seconds):
                while self._missing(expected):
                    self._arrived.clear()
                    await self._arrived.wait()
        return self._missing(expected)

    def _missing(self, expected: dict[str, set[str]]) -> int:
        return sum(not ids <= self.received for ids in expected.values())


async def _span_ids(client: Client, task: task_pb2.Task) -> set[str]:
    """Returns the ids of the spans that follow from the ledger of a task that has ended."""
    projection = TraceProjection(TracedTask(task.task_id, task.root_task_id, task.tenant))
    ids: set[str] = set()
    async for message in client.entries(task.task_id):
        entry = entry_for_trace(message, with_content=False)
        if entry is not None:
            ids |= {span.span_id for span in projection.apply(entry, record_nanoseconds(message))}
    return ids
