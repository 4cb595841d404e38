"""Converts events, call records and refused writes to messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from services.tools.calls.call_log import StoredRefusal
from services.tools.calls.records import CallSummary
from services.tools.calls.runs import Event, Output, RunHere, Settling, Started
from tenure.domain.tools import cut
from tenure.v1 import token_pb2, tool_pb2, tool_service_pb2
from tenure.wire.codec import writer
from tenure.wire.common import duration
from tenure.wire.tool import outcome_to_wire

MAX_CONTENT_BYTES: Final = 2 * 1024 * 1024

refused_write = writer(StoredRefusal, token_pb2.RefusedWrite)
_record_to_wire = writer(CallSummary, tool_pb2.CallRecord)


def execute_response(event: Event) -> tool_service_pb2.ExecuteResponse:
    """Returns an event as a message of Execute."""
    return tool_service_pb2.ExecuteResponse(**_field(event))


def tagged_event(tag: int, event: Event) -> tool_service_pb2.TaggedExecuteEvent:
    """Returns an event as an item of an ExecuteStream frame."""
    return tool_service_pb2.TaggedExecuteEvent(tag=tag, **_field(event))


def _field(event: Event) -> dict[str, Any]:
    """Returns the field that both messages share."""
    match event:
        case Started(call_attempt, joined):
            return {"started": tool_service_pb2.CallStarted(call_attempt=call_attempt, joined=joined)}
        case Output(text):
            return {"output": tool_service_pb2.CallOutput(text=text)}
        case RunHere(call_attempt, idempotency_key, timeout_seconds, again):
            order = tool_service_pb2.RunHere(
                call_attempt=call_attempt,
                idempotency_key=idempotency_key,
                timeout=duration(timeout_seconds),
                again=again,
            )
            return {"run_here": order}
        case Settling(call_attempt):
            return {"settling": tool_service_pb2.CallSettling(call_attempt=call_attempt)}
        case outcome:
            return {"outcome": outcome_to_wire(outcome)}


def fence_response(summaries: Sequence[CallSummary]) -> tool_service_pb2.FenceResponse:
    """Returns all calls, ordered by call_id.

    Together the contents of their outcomes must fit into one message: older outcomes are truncated first.
    """
    left_bytes = MAX_CONTENT_BYTES
    records = []
    for summary in reversed(summaries):
        record = _record(summary, left_bytes)
        left_bytes -= len(record.outcome.content.encode())
        records.append(record)
    return tool_service_pb2.FenceResponse(calls=sorted(records, key=lambda record: _order(record.call_id)))


def _order(call_id: str) -> tuple[int, int]:
    step, _, index = call_id.partition(".")
    return int(step), int(index)


def _record(summary: CallSummary, left_bytes: int) -> tool_pb2.CallRecord:
    if summary.outcome is None:
        return _record_to_wire(summary)
    content, was_truncated = cut(summary.outcome.content, max(0, left_bytes))
    outcome = replace(summary.outcome, content=content, truncated=summary.outcome.truncated or was_truncated)
    return _record_to_wire(replace(summary, outcome=outcome))
