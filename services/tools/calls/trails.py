"""The records of a task's calls with their whole trail, page by page: what audits read."""

from __future__ import annotations

import hashlib
from typing import Any, Final
from uuid import UUID

from services.tools.calls.records import unpack_outcome
from services.tools.statements import QUERIES
from tenure.domain.tools import CallState, EffectClass, Outcome
from tenure.runtime.postgres import Pool, connection
from tenure.v1 import tool_pb2, tool_service_pb2
from tenure.wire.enums import CALL_STATES, EFFECT_CLASSES, OUTCOME_STATUSES
from tenure.wire.times import timestamp
from tenure.wire.tools import usage_to_wire

DEFAULT_CALLS: Final = 200


async def list_calls(
    pool: Pool, tenant: str, request: tool_service_pb2.ListCallsRequest
) -> tool_service_pb2.ListCallsResponse:
    """A page; one row more than asked for tells whether there are more."""
    page_size = request.page_size or DEFAULT_CALLS
    whose = {"task_id": UUID(request.task_id), "tenant": tenant}
    async with connection(pool) as postgres:
        wanted = {"after_call_id": request.after_call_id, "call_ids": list(request.call_ids)}
        page = {**whose, **wanted, "limit": page_size + 1}
        rows = await (await postgres.execute(QUERIES.call_trails, page)).fetchall()
        fence = await (await postgres.execute(QUERIES.read_fence, whose)).fetchone()
    return tool_service_pb2.ListCallsResponse(
        calls=[_trail(row) for row in rows[:page_size]],
        fence=None if fence is None or not fence[0] else _fence(fence),
        more=len(rows) > page_size,
    )


def _trail(row: tuple[Any, ...]) -> tool_pb2.CallTrail:
    call_id, tool, effect_class, state, call_attempt, epoch, claim_id, runner_id, arguments_hash, packed, *times = row
    record = tool_pb2.CallRecord(
        call_id=call_id,
        tool=tool,
        effect_class=EFFECT_CLASSES.to_wire(EffectClass(effect_class)),
        state=CALL_STATES.to_wire(CallState(state)),
        call_attempt=call_attempt,
        epoch=epoch,
    )
    trail = tool_pb2.CallTrail(
        record=record, claim_id=claim_id, runner_id=str(runner_id or ""), arguments_hash=arguments_hash
    )
    if packed is not None:
        outcome = unpack_outcome(packed)
        trail.outcome_hash = _outcome_hash(outcome)
        trail.record.outcome.CopyFrom(_without_content(outcome))
    accepted_at, started_at, finished_at = times
    trail.accept_time.CopyFrom(timestamp(accepted_at))
    if started_at is not None:
        trail.record.start_time.CopyFrom(timestamp(started_at))
    if finished_at is not None:
        trail.finish_time.CopyFrom(timestamp(finished_at))
    return trail


def _outcome_hash(outcome: Outcome) -> bytes:
    """As the contract says. Of its three parts only the content may hold a NUL, and that is the last."""
    return hashlib.sha256(f"{outcome.status}\0{outcome.detail}\0{outcome.content}".encode()).digest()


def _without_content(outcome: Outcome) -> tool_pb2.Outcome:
    return tool_pb2.Outcome(
        status=OUTCOME_STATUSES.to_wire(outcome.status),
        truncated=outcome.truncated,
        detail=outcome.detail,
        call_attempt=outcome.call_attempt,
        usage=usage_to_wire(outcome.usage) if outcome.usage is not None else None,
    )


def _fence(row: tuple[Any, ...]) -> tool_pb2.ToolFence:
    epoch, claim_id, closed, changed_at = row
    return tool_pb2.ToolFence(epoch=epoch, claim_id=claim_id, closed=closed, change_time=timestamp(changed_at))
