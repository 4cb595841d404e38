"""Exports spans by OTLP over HTTP, and says why a request failed. Imported late, as its counterpart for gRPC is."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import httpx2
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from tenure.runtime.observability.otlp_http import OtlpHttp

_log: Final = logging.getLogger(__name__)
_OF_THE_SPANS: Final = frozenset({400, 413, 422, 500})
"""What a collector says that took the request and cannot take these spans. All others are about the collector."""


class HttpSpanExporter:
    """`refuses_spans`: whether the last failure was about the spans. `rejected`: spans of the last request left out."""

    refuses_spans = False
    rejected = 0

    def __init__(self, http: OtlpHttp) -> None:
        self._http = http

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Sends the spans once."""
        self.refuses_spans, self.rejected = False, 0
        body = encode_spans(spans).SerializeToString()
        try:
            answer = self._http.post(body)
        except (httpx2.HTTPError, OSError) as error:
            _log.warning("the collector of traces cannot be reached", extra={"error": str(error)})
            return SpanExportResult.FAILURE
        if answer.is_success:
            self.rejected = _rejected(answer.body)
            return SpanExportResult.SUCCESS
        self.refuses_spans = answer.status in _OF_THE_SPANS
        _log.warning("the collector does not take spans", extra={"http_status": answer.status, "spans": len(spans)})
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """Ends a request that is under way."""
        self._http.close()


def _rejected(body: bytes) -> int:
    try:
        return int(ExportTraceServiceResponse.FromString(body).partial_success.rejected_spans)
    except DecodeError:  # a proxy's page, or JSON: the status alone counts
        return 0
