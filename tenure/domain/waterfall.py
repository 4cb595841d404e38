"""The rows of a waterfall: the spans of a trace and what happened in them, children below their parents, in time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from tenure.domain import semconv
from tenure.domain.spans import AttributeValue, SpanEvent, TaskSpan

EVENT_REFUSED_WRITE: Final = "tenure.refused_write"
"""A stale worker wrote, and a fence refused it. It is not in the ledger, so no collector gets it."""
_SHOWN_EVENTS: Final = frozenset(
    {
        semconv.EVENT_TAKEOVER,
        semconv.EVENT_MODEL_FAILURE,
        semconv.EVENT_CALL_RETRY,
        semconv.EVENT_ANSWER,
        semconv.EVENT_ESCALATION,
        semconv.EVENT_BUDGET_WARNING,
        semconv.EVENT_QUOTA_WARNING,
        semconv.EVENT_CANCEL,
        semconv.EVENT_OPERATOR,
        semconv.EVENT_FUNCTION_FAILURE,
        semconv.EVENT_RESULT_REJECTED,
        semconv.EVENT_COMPACTION,
        EVENT_REFUSED_WRITE,
    }
)
_STEP: Final = "step"


class RowKind(StrEnum):
    """What a row is about."""

    AGENT = "AGENT"
    MODEL = "MODEL"
    TOOL = "TOOL"
    STEP = "STEP"
    WAIT = "WAIT"
    MOMENT = "MOMENT"


_KINDS: Final = {
    semconv.INVOKE_AGENT: RowKind.AGENT,
    semconv.CHAT: RowKind.MODEL,
    semconv.EXECUTE_TOOL: RowKind.TOOL,
    _STEP: RowKind.STEP,
}


@dataclass(frozen=True, slots=True)
class Row:
    """A span, or a moment of one. `ended_ns` None: it goes on."""

    kind: RowKind
    depth: int
    text: str
    began_ns: int
    ended_ns: int | None
    span_id: str
    failed: bool = False


def waterfall(spans: Sequence[TaskSpan]) -> list[Row]:
    """Returns the rows of the spans. A parent that is not among them is as none."""
    ids = {span.span_id for span in spans}
    children: dict[str, list[TaskSpan]] = defaultdict(list)
    for span in spans:
        children[span.parent_span_id if span.parent_span_id in ids else ""].append(span)
    return list(_rows(children, "", 0))


def with_refused_writes(spans: Sequence[TaskSpan], refused: Iterable[tuple[int, str, str]]) -> list[TaskSpan]:
    """Returns the spans of one task, with its refused writes at the attempt in which they came.

    `refused`: the time of each, its worker, and what it wanted to do.
    """
    agents = sorted((span for span in spans if _kind(span) is RowKind.AGENT), key=lambda span: span.started_ns)
    events: dict[str, list[SpanEvent]] = defaultdict(list)
    for at_ns, worker, method in refused:
        at = next((span for span in reversed(agents) if span.started_ns <= at_ns), None)
        if at is not None:
            event = SpanEvent(EVENT_REFUSED_WRITE, at_ns, {semconv.WORKER: worker, "tenure.method": method})
            events[at.span_id].append(event)
    return [replace(span, events=(*span.events, *events.get(span.span_id, ()))) for span in spans]


def _rows(children: dict[str, list[TaskSpan]], parent_id: str, depth: int) -> Iterator[Row]:
    for span in sorted(children[parent_id], key=lambda span: (span.started_ns, _sequence(span))):
        yield _row(span, depth)
        below = [*_moments(span, depth + 1), *_rows(children, span.span_id, depth + 1)]
        # Stable: rows of children stay behind their parent, and a moment comes before the first later child.
        yield from _in_time(below, depth + 1)


def _kind(span: TaskSpan) -> RowKind:
    return _KINDS.get(span.name.split()[0], RowKind.WAIT)


def _row(span: TaskSpan, depth: int) -> Row:
    kind, state = _kind(span), str(span.attributes.get(semconv.STATE, ""))
    end = span.error_type or (state if kind is RowKind.AGENT else "")
    reason = str(span.attributes.get(semconv.REASON, "")) if kind is RowKind.WAIT else ""
    text = " ".join(part for part in (span.name, reason, end) if part)
    ended_ns = None if span.ended_ns is None else max(span.ended_ns, span.started_ns)
    return Row(kind, depth, text, span.started_ns, ended_ns, span.span_id, bool(span.error_type))


def _sequence(span: TaskSpan) -> int:
    return int(str(span.attributes.get(semconv.SEQUENCE, 0)))


def _in_time(rows: list[Row], depth: int) -> Iterator[Row]:
    """Yields the rows of one depth in the order of their beginnings, each with what is below it."""
    groups: list[list[Row]] = []
    for row in rows:
        if row.depth == depth:
            groups.append([row])
        else:
            groups[-1].append(row)
    for group in sorted(groups, key=lambda group: group[0].began_ns):
        yield from group


def _moments(span: TaskSpan, depth: int) -> Iterator[Row]:
    """Yields what happened within a span. A takeover is shown once, at the task, and an answer at its wait."""
    kind = _kind(span)
    for event in span.events:
        if event.name not in _SHOWN_EVENTS or (event.name == semconv.EVENT_TAKEOVER and kind is not RowKind.AGENT):
            continue
        if event.name == semconv.EVENT_ANSWER and kind is RowKind.TOOL:
            continue
        failed = event.name == EVENT_REFUSED_WRITE
        yield Row(RowKind.MOMENT, depth, _event_text(event), event.at_ns, event.at_ns, span.span_id, failed)


def _event_text(event: SpanEvent) -> str:
    attributes = event.attributes
    if event.name == semconv.EVENT_TAKEOVER:
        workers = f"{attributes[semconv.FROM_WORKER]} → {attributes[semconv.WORKER]}"
        return f"takeover {workers} ({attributes[semconv.REASON]})"
    values = " ".join(_value_text(value) for value in attributes.values() if not isinstance(value, bool))
    return f"{event.name.removeprefix('tenure.').replace('_', ' ')} {values}".strip()


def _value_text(value: AttributeValue) -> str:
    return ", ".join(value) if isinstance(value, tuple) else f"{value:,}" if isinstance(value, int) else str(value)
