"""What the API answers, as records of a history."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from tenure.audit.history import BudgetRow, Guard, LedgerEntry, Refusal, TaskRow
from tenure.domain.budget import Budget
from tenure.domain.entries import Body
from tenure.v1 import ledger_pb2, task_pb2, token_pb2
from tenure.wire.entries import body_to_domain
from tenure.wire.enums import STATES
from tenure.wire.task import usage_to_domain

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
        recorded_at=unix_seconds(entry.record_time.seconds, entry.record_time.nanos),
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
    )


def budget_row(task: task_pb2.Task) -> BudgetRow:
    """The budget of a task's root, as it stood when the snapshot was read."""
    told = task.budget
    return BudgetRow(
        root_task_id=task.root_task_id, budget=Budget(told.max_tokens, told.used_tokens, told.reserved_tokens)
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
            refused_at=unix_seconds(write.refuse_time.seconds, write.refuse_time.nanos),
        )
        for write in refused
    )


def unix_seconds(seconds: int, nanos: int) -> float:
    """A Timestamp."""
    return seconds + nanos / 1e9


def _body(body: ledger_pb2.EntryBody) -> Body | None:
    try:
        return body_to_domain(body)
    except ValueError:
        return None
