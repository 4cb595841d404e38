"""ListCalls and ListRefusedCalls: the log of a task's calls, in pages, and the record of stale writes."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from services.tools.calls.records import unpack_outcome
from services.tools.statements import QUERIES
from tenure.domain.errors import StaleEpoch
from tenure.domain.fencing import Claims, describe_epoch
from tenure.domain.receipts import outcome_hash
from tenure.domain.tools import CallState, EffectClass, Outcome
from tenure.runtime.observability import metrics
from tenure.runtime.store.postgres import Connection, Pool, pool_connection
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import tool_pb2
from tenure.wire.common import CALL_STATES, EFFECT_CLASSES, OUTCOME_STATUSES, timestamp
from tenure.wire.tool import usage_to_wire

DEFAULT_CALLS: Final = 200


async def list_calls(pool: Pool, tenant: str, request: admin_pb.ListCallsRequest) -> admin_pb.ListCallsResponse:
    """Returns one page of a task's call records and the task's fence.

    The query asks for one row more than the page has, to learn whether there is a next page.
    """
    page_size = request.page_size or DEFAULT_CALLS
    task = {"task_id": UUID(request.task_id), "tenant": tenant}
    async with pool_connection(pool) as postgres:
        selection = {"after_call_id": request.after_call_id, "call_ids": list(request.call_ids)}
        page = {**task, **selection, "limit": page_size + 1}
        rows = await (await postgres.execute(QUERIES.call_log, page)).fetchall()
        fence = await (await postgres.execute(QUERIES.read_fence, task)).fetchone()
    return admin_pb.ListCallsResponse(
        calls=[_logged_call(row) for row in rows[:page_size]],
        fence=None if fence is None or not fence[0] else _fence(fence),
        more=len(rows) > page_size,
    )


def _logged_call(row: tuple[Any, ...]) -> tool_pb2.CallTrail:
    call_id, tool, effect_class, state, call_attempt, epoch, claim_id, runner_id, arguments_hash, packed, *rest = row
    record = tool_pb2.CallRecord(
        call_id=call_id,
        tool=tool,
        effect_class=EFFECT_CLASSES.to_wire(EffectClass(effect_class)),
        state=CALL_STATES.to_wire(CallState(state)),
        call_attempt=call_attempt,
        epoch=epoch,
    )
    logged = tool_pb2.CallTrail(
        record=record,
        claim_id=claim_id,
        runner_id=str(runner_id or ""),
        arguments_hash=arguments_hash,
    )
    if packed is not None:
        outcome = unpack_outcome(packed)
        logged.outcome_hash = outcome_hash(outcome.status, outcome.detail, outcome.content)
        logged.record.outcome.CopyFrom(_without_content(outcome))
    logged.receipt_number, logged.receipt_link, idempotency_key, *rest = rest
    accepted_at, started_at, finished_at, settling_since, logged.plan_id, logged.begun_before = rest
    logged.idempotency_key = idempotency_key
    if logged.receipt_number and packed is not None:
        logged.outcome_message_hash = hashlib.sha256(packed).digest()
    logged.accept_time.CopyFrom(timestamp(accepted_at))
    if started_at is not None:
        logged.record.start_time.CopyFrom(timestamp(started_at))
    if finished_at is not None:
        logged.finish_time.CopyFrom(timestamp(finished_at))
    if settling_since is not None:
        logged.settling_time.CopyFrom(timestamp(settling_since))
    return logged


def _without_content(outcome: Outcome) -> tool_pb2.Outcome:
    return tool_pb2.Outcome(
        status=OUTCOME_STATUSES.to_wire(outcome.status),
        truncated=outcome.truncated,
        detail=outcome.detail,
        call_attempt=outcome.call_attempt,
        usage=usage_to_wire(outcome.usage) if outcome.usage is not None else None,
    )


def _fence(row: tuple[Any, ...]) -> tool_pb2.ToolFence:
    epoch, claim_id, closed, changed_at, receipts, receipt_head = row
    return tool_pb2.ToolFence(
        epoch=epoch,
        claim_id=claim_id,
        closed=closed,
        change_time=timestamp(changed_at),
        receipts=receipts,
        receipt_head=receipt_head,
    )


# Stale writes: counted, logged, and stored in a table, at most 500 for each task.

_log: Final = logging.getLogger(__name__)
_REJECTIONS: Final = metrics.cell("tenure_stale_epoch_rejections_total", service="tools")


@dataclass(frozen=True, slots=True)
class RefusedCall:
    """One refused write: the caller and its epoch, and the epoch of the fence."""

    task_id: UUID
    tenant: str
    method: str
    presented_epoch: int
    current_epoch: int
    holder: str

    @classmethod
    def of(cls, method: str, task_id: UUID, claims: Claims, error: StaleEpoch) -> RefusedCall:
        """Returns the record of a refusal."""
        current = error.current
        assert current is not None
        # Postgres stores no NUL. The replacement changes only the stored record, not the answer to the caller.
        holder = claims.holder.replace("\0", "\ufffd")
        return cls(task_id, claims.tenant, method, claims.epoch, current, holder)


@dataclass(frozen=True, slots=True)
class StoredRefusal:
    """A refused write as ListRefusedCalls returns it."""

    task_id: str
    method: str
    presented_epoch: int
    current_epoch: int
    holder: str
    refused_at: datetime


async def insert_refusals(postgres: Connection, refusals: Sequence[RefusedCall]) -> None:
    """Stores refusals in the transaction that refused. Call `log_refusals` after its commit."""
    if not refusals:
        return
    await postgres.execute(
        QUERIES.insert_refusals,
        {
            "task_ids": [refusal.task_id for refusal in refusals],
            "tenants": [refusal.tenant for refusal in refusals],
            "methods": [refusal.method for refusal in refusals],
            "presented": [refusal.presented_epoch for refusal in refusals],
            "current": [refusal.current_epoch for refusal in refusals],
            "holders": [refusal.holder for refusal in refusals],
        },
    )
    await postgres.execute(QUERIES.trim_refusals, {"task_ids": sorted({refusal.task_id for refusal in refusals})})


def log_refusals(refusals: Sequence[RefusedCall]) -> None:
    """Counts and logs refusals."""
    _REJECTIONS.value += len(refusals)
    for refusal in refusals:
        _log.warning(
            "refused a stale %s",
            refusal.method,
            extra={
                "task": str(refusal.task_id),
                "epoch": describe_epoch(refusal.presented_epoch),
                "current_epoch": describe_epoch(refusal.current_epoch),
                "holder": refusal.holder,
            },
        )


async def list_refusals(pool: Pool, task_id: UUID, tenant: str) -> list[StoredRefusal]:
    """Returns a task's refusals, the newest first, at most 500."""
    async with pool_connection(pool) as postgres:
        cursor = await postgres.execute(QUERIES.list_refusals, {"task_id": task_id, "tenant": tenant})
        return [StoredRefusal(*row) for row in await cursor.fetchall()]
