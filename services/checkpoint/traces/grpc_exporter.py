"""OpenTelemetry's exporter by gRPC, which also says why a request failed. Imported late: it is slow."""

from __future__ import annotations

from typing import Any

import grpc
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter


class NotingExporter(OTLPSpanExporter):
    """`refusal`: the status of the last request, None once the collector took one."""

    refusal: grpc.StatusCode | None = None

    def _initialize_channel_and_stub(self) -> None:
        super()._initialize_channel_and_stub()  # type: ignore[no-untyped-call]
        self._client: Any = _NotingClient(self._client, self)


class _NotingClient:
    def __init__(self, client: Any, exporter: NotingExporter) -> None:
        self._client, self._exporter = client, exporter

    def Export(self, **parameters: Any) -> Any:
        try:
            answer = self._client.Export(**parameters)
        except grpc.RpcError as error:
            self._exporter.refusal = error.code()  # a call that failed has one
            raise
        self._exporter.refusal = None
        return answer
