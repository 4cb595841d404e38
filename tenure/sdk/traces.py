"""Spans of a task's trace, as the public API shows them: projected from the ledger, without a collector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tenure.domain.spans import TaskSpan
from tenure.sdk.json_shape import PublicValue


@dataclass(frozen=True, slots=True)
class TraceEvent(PublicValue):
    """Something that happened at one moment of a span. `attributes`: see docs/tracing.md."""

    name: str
    recorded_at: datetime
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TraceLink(PublicValue):
    """A span of another trace, or another attempt of the task."""

    trace_id: str
    span_id: str


@dataclass(frozen=True, slots=True)
class TraceSpan(PublicValue):
    """A span. `parent_span_id` "": it has none. `ended_at` and `duration_seconds` None: it has not ended.

    `error_type` "": nothing failed. `attributes`: see docs/tracing.md.
    """

    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    kind: str
    started_at: datetime
    ended_at: datetime | None
    duration_seconds: float | None
    error_type: str
    attributes: Mapping[str, Any]
    events: tuple[TraceEvent, ...]
    links: tuple[TraceLink, ...]


def trace_span(span: TaskSpan) -> TraceSpan:
    """Converts a span of the projection."""
    return TraceSpan(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_span_id,
        name=span.name,
        kind=span.kind.value,
        started_at=_moment(span.started_ns),
        ended_at=None if span.ended_ns is None else _moment(span.ended_ns),
        duration_seconds=None if span.ended_ns is None else (span.ended_ns - span.started_ns) / 10**9,
        error_type=span.error_type,
        attributes=span.attributes,
        events=tuple(TraceEvent(one.name, _moment(one.at_ns), one.attributes) for one in span.events),
        links=tuple(TraceLink(*link) for link in span.links),
    )


def _moment(nanoseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=nanoseconds // 1000)
