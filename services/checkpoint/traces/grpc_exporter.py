"""OpenTelemetry's exporter by gRPC, which also says why a request failed. Imported late: it is slow."""

from __future__ import annotations

from typing import Any, Final

import grpc
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

_OF_THE_SPANS: Final = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.RESOURCE_EXHAUSTED,  # mostly: larger than a message may be
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)
"""What a collector says that took the request and cannot take these spans. All others are about the collector."""
_RETRY_INFO: Final = b"google.rpc.RetryInfo"


class NotingExporter(OTLPSpanExporter):
    """`refuses_spans`: whether the last failure was about the spans. `rejected`: spans of the last request left out."""

    refuses_spans = False
    rejected = 0

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
            is_of_spans = error.code() in _OF_THE_SPANS  # a call that failed has a code
            self._exporter.refuses_spans = is_of_spans and not _asks_for_time(error)
            raise
        self._exporter.refuses_spans = False
        self._exporter.rejected = int(answer.partial_success.rejected_spans)
        return answer


def _asks_for_time(error: Any) -> bool:
    """Whether the collector says that it will take the same request later, as OTLP has it: it is overloaded, or its
    caller is over a rate.
    """
    return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and any(
        name == "google.rpc.retryinfo-bin" or (name == "grpc-status-details-bin" and _RETRY_INFO in value)
        for name, value in error.trailing_metadata() or ()
    )
