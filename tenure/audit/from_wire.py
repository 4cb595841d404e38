"""What the API answers, as records of a history."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from tenure.audit.history import Bill, BudgetRow, Call, Guard, LedgerEntry, Refusal, TaskRow, ToolFence
from tenure.domain.entries import Body
from tenure.v1 import admin_service_pb2, ledger_pb2, task_pb2, token_pb2, tool_pb2
from tenure.wire.entries import body_to_domain
from tenure.wire.enums import CALL_STATES, EFFECT_CLASSES, STATES
from tenure.wire.task import budget_to_domain, usage_to_domain
from tenure.wire.tools import outcome_to_domain

HASH_BYTES: Final = 16


def body_hash(body: ledger_pb2.EntryBody) -> bytes:
    """Equal for bodies that are equal on the wire."""
    return hashlib.blake2b(body.SerializeToString(deterministic=True), digest_size=HASH_BYTES).digest()


def ledger_entry(task_id: str, entry: ledger_pb2.Entry) -> LedgerEntry:
    """An entry of a task. Its body is None when this version does not know the kind."""
    return LedgerEntry(
        task_id=task_id,
        sequence=entry.sequence,
        body=_body(entry.body),
        step=entry.step,
        epoch=entry.epoch,
        claim_id=entry.claim_id,
        attempt=entry.attempt,
        actor=entry.actor,
        recorded_at=_unix(entry.record_time),
        body_hash=body_hash(entry.body),
    )


def task_row(task: task_pb2.Task) -> TaskRow:
    """A snapshot."""
    return TaskRow(
        task_id=task.task_id,
        tenant=task.tenant,
        state=STATES.to_domain(task.state),
        sequence=task.sequence,
        step=task.step,
        attempt=task.attempt,
        epoch=task.epoch,
        owner=task.owner,
        claim_count=task.claim_count,
        usage=usage_to_domain(task.usage),
        result=task.result,
        root_task_id=task.root_task_id,
        used_nano_usd=task.used_nano_usd,
    )


def budget_row(task: task_pb2.Task) -> BudgetRow:
    """The budget of a task's root, as it stood when the snapshot was read."""
    return BudgetRow(root_task_id=task.root_task_id, budget=budget_to_domain(task.budget))


def bill(task_id: str, row: ledger_pb2.Bill) -> Bill:
    """A row of a task's bill."""
    return Bill(
        task_id=task_id,
        step=row.step,
        attempt_number=row.attempt_number,
        usage=usage_to_domain(row.usage),
        root_task_id=row.root_task_id,
        epoch=row.epoch,
        model=row.model,
        provider_request_id=row.provider_request_id,
        lost=row.lost,
        settled_at=_unix(row.settle_time),
        estimate=usage_to_domain(row.estimated_usage) if row.HasField("estimated_usage") else None,
        nano_usd=row.nano_usd,
        unpriced=row.unpriced,
    )


def refusals(guard: Guard, refused: Iterable[token_pb2.RefusedWrite]) -> tuple[Refusal, ...]:
    """What a guard refused."""
    return tuple(
        Refusal(
            guard=guard,
            task_id=write.task_id,
            method=write.method,
            presented_epoch=write.presented_epoch,
            current_epoch=write.current_epoch,
            holder=write.holder,
            refused_at=_unix(write.refuse_time),
        )
        for write in refused
    )


def calls_and_fence(
    task_id: str, page: admin_service_pb2.AdminServiceListCallsResponse
) -> tuple[list[Call], ToolFence | None]:
    """A page of a task's calls, and its fence at the tools. The outcomes' contents are not in it, their hashes are."""
    fence = page.fence
    told = ToolFence(
        task_id=task_id,
        epoch=fence.epoch,
        claim_id=fence.claim_id,
        closed=fence.closed,
        changed_at=_unix(fence.change_time),
    )
    return [_call(task_id, trail) for trail in page.calls], told if page.HasField("fence") else None


def _call(task_id: str, trail: tool_pb2.CallTrail) -> Call:
    record = trail.record
    return Call(
        task_id=task_id,
        call_id=record.call_id,
        tool=record.tool,
        effect_class=EFFECT_CLASSES.to_domain(record.effect_class),
        state=CALL_STATES.to_domain(record.state),
        epoch=record.epoch,
        claim_id=trail.claim_id,
        call_attempt=record.call_attempt,
        runner_id=trail.runner_id,
        arguments_hash=trail.arguments_hash,
        outcome=outcome_to_domain(record.outcome) if record.HasField("outcome") else None,
        outcome_hash=trail.outcome_hash,
        accepted_at=_unix(trail.accept_time),
        started_at=_unix(record.start_time) if record.HasField("start_time") else None,
        finished_at=_unix(trail.finish_time) if trail.HasField("finish_time") else None,
    )


def _unix(time: Timestamp) -> float:
    """In microseconds, as the databases keep it: then equal moments are equal floats."""
    return time.seconds + (time.nanos // 1000) / 1e6


def _body(body: ledger_pb2.EntryBody) -> Body | None:
    try:
        return body_to_domain(body)
    except ValueError:
        return None
