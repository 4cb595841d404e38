"""The service's answers as messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from services.tools.calls.records import CallStanding
from services.tools.calls.refusals import KeptRefusal
from services.tools.calls.runs import Event, Output, Started
from tenure.domain.shown import cut
from tenure.v1 import token_pb2, tool_pb2, tool_service_pb2
from tenure.wire.enums import CALL_STATES, EFFECT_CLASSES
from tenure.wire.times import timestamp
from tenure.wire.tools import outcome_to_wire

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


def fence_response(standings: Sequence[CallStanding]) -> tool_service_pb2.FenceResponse:
    """All calls, by call_id. Together their contents must fit a message: the newest keep theirs, older ones are cut."""
    left_bytes = MOST_CONTENT_BYTES
    records = []
    for standing in reversed(standings):
        record = _record(standing, left_bytes)
        left_bytes -= len(record.outcome.content.encode())
        records.append(record)
    return tool_service_pb2.FenceResponse(calls=sorted(records, key=lambda record: _order(record.call_id)))


def _order(call_id: str) -> tuple[int, int]:
    step, _, index = call_id.partition(".")
    return int(step), int(index)


def _record(standing: CallStanding, left_bytes: int) -> tool_pb2.CallRecord:
    record = tool_pb2.CallRecord(
        call_id=standing.call_id,
        tool=standing.tool,
        effect_class=EFFECT_CLASSES.to_wire(standing.effect_class),
        state=CALL_STATES.to_wire(standing.state),
        call_attempt=standing.call_attempt,
        epoch=standing.epoch,
    )
    if standing.started_at is not None:
        record.start_time.CopyFrom(timestamp(standing.started_at))
    if standing.outcome is not None:
        content, was_cut = cut(standing.outcome.content, max(0, left_bytes))
        told = replace(standing.outcome, content=content, truncated=standing.outcome.truncated or was_cut)
        record.outcome.CopyFrom(outcome_to_wire(told))
    return record


def refused_write(refusal: KeptRefusal) -> token_pb2.RefusedWrite:
    """A line of the trail."""
    return token_pb2.RefusedWrite(
        task_id=refusal.task_id,
        method=refusal.method,
        presented_epoch=refusal.presented_epoch,
        current_epoch=refusal.current_epoch,
        holder=refusal.holder,
        refuse_time=timestamp(refusal.refused_at),
    )
