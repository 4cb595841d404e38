"""Sends spans to a collector by OTLP, over gRPC or HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final, Protocol

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from services.checkpoint.traces.settings import Redact, TraceSettings
from tenure.domain import semconv
from tenure.domain.spans import AttributeValue, SpanKind, TaskSpan
from tenure.runtime.observability import metrics
from tenure.runtime.observability.otlp_target import HTTP
from tenure.runtime.observability.telemetry import is_plain
from tenure.runtime.release import VERSION

_log: Final = logging.getLogger(__name__)
EXPORT_TIMEOUT_SECONDS: Final = 5
MAX_CONTENT_CHARACTERS: Final = 16_384
NOT_REDACTED: Final = "[left out: the redaction failed]"
_SERVICE: Final = "tenure"
_KINDS: Final = {SpanKind.INTERNAL: trace.SpanKind.INTERNAL, SpanKind.CLIENT: trace.SpanKind.CLIENT}


class Sent(Enum):
    """The result of sending spans. REFUSED: fewer of them may be taken. LATER: the collector takes none now."""

    TAKEN = auto()
    REFUSED = auto()
    LATER = auto()


class SpanSender(Protocol):
    """An exporter of OpenTelemetry that says why it failed. It blocks for a bounded time."""

    refuses_spans: bool
    rejected: int

    def export(self, spans: Sequence[ReadableSpan], /) -> SpanExportResult: ...
    def shutdown(self) -> None: ...


class Collector:
    """A collector of OpenTelemetry. `redact`: see docs/tracing.md; it runs in a thread, as the export does."""

    def __init__(self, exporter: SpanSender, redact: Redact | None) -> None:
        self._exporter, self._redact = exporter, redact
        # Equal for all replicas: a span that is exported twice is the same span.
        self._resource = Resource.create({"service.name": _SERVICE, "service.version": VERSION})
        self._scope = InstrumentationScope("tenure", VERSION)

    async def send(self, spans: Sequence[TaskSpan]) -> Sent:
        """Sends spans. Returns within a bounded time."""
        return await asyncio.to_thread(self._send, spans)

    def close(self) -> None:
        """Ends a request that is under way."""
        self._exporter.shutdown()

    def _send(self, spans: Sequence[TaskSpan]) -> Sent:
        try:
            result = self._exporter.export([self._readable(span) for span in spans])
        except (TypeError, ValueError, OverflowError):
            _log.exception("spans cannot be encoded", extra={"spans": len(spans)})
            return Sent.REFUSED
        if result is SpanExportResult.SUCCESS:
            self._note_rejected()
            return Sent.TAKEN
        return Sent.REFUSED if self._exporter.refuses_spans else Sent.LATER

    def _note_rejected(self) -> None:
        """Counts spans that the collector left out of a request that it took: OTLP forbids to send them again."""
        if rejected := self._exporter.rejected:
            metrics.count("tenure_trace_spans_left_out_total", rejected)
            _log.error("the collector left out spans of a request that it took", extra={"spans": rejected})

    def _readable(self, span: TaskSpan) -> ReadableSpan:
        failed = bool(span.error_type)
        return ReadableSpan(
            span.name,
            context=_context(span.trace_id, span.span_id),
            parent=_context(span.trace_id, span.parent_span_id) if span.parent_span_id else None,
            resource=self._resource,
            attributes=self._safe(span.attributes),
            events=[Event(event.name, self._safe(event.attributes), event.at_ns) for event in span.events],
            links=[trace.Link(_context(*link)) for link in span.links],
            kind=_KINDS[span.kind],
            status=trace.Status(trace.StatusCode.ERROR, span.error_type) if failed else trace.Status(),
            start_time=span.started_ns,
            end_time=span.ended_ns,
            instrumentation_scope=self._scope,
        )

    def _safe(self, attributes: dict[str, AttributeValue]) -> dict[str, AttributeValue]:
        if not attributes.keys() & semconv.CONTENT:
            return attributes
        return {
            name: self._redacted(name, str(value)) if name in semconv.CONTENT else value
            for name, value in attributes.items()
        }

    def _redacted(self, name: str, text: str) -> str:
        """Returns what may be exported of a text. A text whose redaction fails is not exported."""
        if self._redact is not None:
            try:
                text = str(self._redact(name, text))
            except Exception:  # noqa: BLE001  the function is the user's
                _log.exception("a text was not exported, because its redaction failed", extra={"attribute": name})
                return NOT_REDACTED
        return text if len(text) <= MAX_CONTENT_CHARACTERS else f"{text[:MAX_CONTENT_CHARACTERS]}…"


def _context(trace_id: str, span_id: str) -> trace.SpanContext:
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    return trace.SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=flags)


def collector_at(settings: TraceSettings, redact: Redact | None) -> Collector:
    """Returns the collector that the settings name."""
    if settings.protocol == HTTP:
        from services.checkpoint.traces.http_exporter import HttpSpanExporter
        from tenure.runtime.observability.otlp_http import OtlpHttp

        return Collector(HttpSpanExporter(OtlpHttp(settings.http_target(), EXPORT_TIMEOUT_SECONDS)), redact)
    from services.checkpoint.traces.grpc_exporter import NotingExporter

    endpoint, headers = settings.endpoint, settings.header_text() or None
    exporter = NotingExporter(
        endpoint=endpoint, insecure=is_plain(endpoint), timeout=EXPORT_TIMEOUT_SECONDS, headers=headers
    )
    return Collector(exporter, redact)
