"""The service's answers as messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from services.tools.calls.audit_log import StoredRefusal
from services.tools.calls.records import CallSummary
from services.tools.calls.runs import Event, Output, Started
from tenure.domain.truncation import cut
from tenure.v1 import token_pb2, tool_pb2, tool_service_pb2
from tenure.wire.common import CALL_STATES, EFFECT_CLASSES, timestamp
from tenure.wire.tool import outcome_to_wire

MOST_CONTENT_BYTES: Final = 2 * 1024 * 1024


def execute_response(event: Event) -> tool_service_pb2.ExecuteResponse:
    """An event of a call."""
    return tool_service_pb2.ExecuteResponse(**_field(event))


def tagged_event(tag: int, event: Event) -> tool_service_pb2.TaggedExecuteEvent:
    """The same inside a frame."""
    return tool_service_pb2.TaggedExecuteEvent(tag=tag, **_field(event))


def _field(event: Event) -> dict[str, Any]:
    """What either message has of it, by its field."""
    match event:
        case Started(call_attempt, joined):
            return {"started": tool_service_pb2.CallStarted(call_attempt=call_attempt, joined=joined)}
        case Output(text):
            return {"output": tool_service_pb2.CallOutput(text=text)}
        case outcome:
            return {"outcome": outcome_to_wire(outcome)}


def fence_response(statuses: Sequence[CallSummary]) -> tool_service_pb2.FenceResponse:
    """All calls, by call_id. Together their contents must fit a message: the newest keep theirs, older ones are cut."""
    left_bytes = MOST_CONTENT_BYTES
    records = []
    for status in reversed(statuses):
        record = _record(status, left_bytes)
        left_bytes -= len(record.outcome.content.encode())
        records.append(record)
    return tool_service_pb2.FenceResponse(calls=sorted(records, key=lambda record: _order(record.call_id)))


def _order(call_id: str) -> tuple[int, int]:
    step, _, index = call_id.partition(".")
    return int(step), int(index)


def _record(status: CallSummary, left_bytes: int) -> tool_pb2.CallRecord:
    record = tool_pb2.CallRecord(
        call_id=status.call_id,
        tool=status.tool,
        effect_class=EFFECT_CLASSES.to_wire(status.effect_class),
        state=CALL_STATES.to_wire(status.state),
        call_attempt=status.call_attempt,
        epoch=status.epoch,
    )
    if status.started_at is not None:
        record.start_time.CopyFrom(timestamp(status.started_at))
    if status.outcome is not None:
        content, was_cut = cut(status.outcome.content, max(0, left_bytes))
        outcome = replace(status.outcome, content=content, truncated=status.outcome.truncated or was_cut)
        record.outcome.CopyFrom(outcome_to_wire(outcome))
    return record


def refused_write(refusal: StoredRefusal) -> token_pb2.RefusedWrite:
    """A line of the trail."""
    return token_pb2.RefusedWrite(
        task_id=refusal.task_id,
        method=refusal.method,
        presented_epoch=refusal.presented_epoch,
        current_epoch=refusal.current_epoch,
        holder=refusal.holder,
        refuse_time=timestamp(refusal.refused_at),
    )
