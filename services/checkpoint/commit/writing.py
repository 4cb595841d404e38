"""Writes drafts to the database: one statement for the columns that steps change, a second one for transitions."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from services.checkpoint.commit.draft import time_of
from services.checkpoint.entries import KINDS
from services.checkpoint.queries import QUERIES
from services.checkpoint.sql_arrays import (
    Bools,
    Byteas,
    Column,
    Int8s,
    Texts,
)
from services.checkpoint.tenants.usage_windows import count_calls
from tenure.domain.states import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.checkpoint.commit.draft import Draft
    from services.checkpoint.commit.task_row import TaskRow
    from tenure.runtime.postgres import Connection

Columns = dict[str, type[Column[Any]]]

OWNERS_SEPARATOR: Final = "\x1f"
"""Separates names of workers in one text: Postgres has no arrays of arrays of different lengths."""

_STEP_COLUMNS: Final[Columns] = {
    "task_id": Texts,
    "sequence": Int8s,
    "step": Int8s,
    "deaths": Int8s,
    "commit_number": Int8s,
    "last_commit_id": Texts,
    "last_commit_hash": Byteas,
    "last_reply": Byteas,
    "last_base": Int8s,
    "model_open": Bools,
    "model_step": Int8s,
    "model_attempt": Int8s,
    "model_name": Texts,
    "model_input": Int8s,
    "model_output": Int8s,
    "input_tokens": Int8s,
    "output_tokens": Int8s,
    "cache_creation_input_tokens": Int8s,
    "cache_read_input_tokens": Int8s,
    "used_nano_usd": Int8s,
    "model_nano_usd": Int8s,
    "model_prices": Byteas,
}
_MOVE_COLUMNS: Final[Columns] = {
    "task_id": Texts,
    "reason": Texts,
    "message": Texts,
    "epoch": Int8s,
    "claim_id": Texts,
    "holds": Bools,
    "owner": Texts,
    "claim_count": Int8s,
    "ending_state": Texts,
    "ending_reason": Texts,
    "ending_message": Texts,
    "ending_actor": Texts,
    "ending_result": Byteas,
    "attempt": Int8s,
    "max_steps": Int8s,
    "own_max_tokens": Int8s,
    "own_max_nano_usd": Int8s,
    "wait": Byteas,
    "wait_correlation": Texts,
    "timeout_retries": Int8s,
    "operator_wait": Byteas,
}
_ENTRY_COLUMNS: Final[Columns] = {
    "task_id": Texts,
    "sequence": Int8s,
    "tenant": Texts,
    "epoch": Int8s,
    "claim_id": Texts,
    "attempt": Int8s,
    "step": Int8s,
    "kind": Int8s,
    "actor": Texts,
    "body": Byteas,
}
_BILL_COLUMNS: Final[Columns] = {
    "task_id": Texts,
    "step": Int8s,
    "attempt_number": Int8s,
    "tenant": Texts,
    "root_task_id": Texts,
    "epoch": Int8s,
    "model": Texts,
    "provider_request_id": Texts,
    "lost": Bools,
    "nano_usd": Int8s,
    "unpriced": Bools,
}
_USAGE_COLUMNS: Final[Columns] = {
    "input_tokens": Int8s,
    "output_tokens": Int8s,
    "cache_creation_input_tokens": Int8s,
    "cache_read_input_tokens": Int8s,
}
_BUDGET_COLUMNS: Final[Columns] = {
    "root_task_id": Texts,
    "max_tokens": Int8s,
    "used_tokens": Int8s,
    "reserved_tokens": Int8s,
    "max_nano_usd": Int8s,
    "used_nano_usd": Int8s,
    "reserved_nano_usd": Int8s,
    "unpriced_calls": Int8s,
    "warned_tokens": Int8s,
    "warned_nano_usd": Int8s,
    "beyond_tokens": Int8s,
    "beyond_nano_usd": Int8s,
}


_WARNINGS: Final = {
    KINDS["budget_warning"]: Reason.BUDGET_WARNING,
    KINDS["quota_warning"]: Reason.QUOTA_WARNING,
    KINDS["wait_escalated"]: Reason.WAIT_ESCALATED,
}


async def write(connection: Connection, drafts: Sequence[Draft]) -> None:
    """Writes the drafts, in the transaction that locked their rows."""
    touched = [draft for draft in drafts if draft.has_work]
    if not touched:
        return
    locked_at = time_of(touched)
    await connection.execute(QUERIES.write, {"locked_at": locked_at, **_step_arrays(touched)})
    warnings = [row for draft in touched for row in draft.warnings]
    for kind, reason in _WARNINGS.items():
        if rows := [row for row in warnings if row.kind == kind]:
            warned = {"task_ids": [row.task_id for row in rows], "sequences": [row.sequence for row in rows]}
            await connection.execute(QUERIES.warn, {"locked_at": locked_at, "reason": reason, **warned})
    if escalated := [draft for draft in touched if draft.escalated and not draft.moved]:
        await connection.execute(QUERIES.escalate, {"locked_at": locked_at, **_escalation_arrays(escalated)})
    moved = [draft for draft in touched if draft.moved]
    if moved:
        await connection.execute(QUERIES.move, {"locked_at": locked_at, **_move_arrays(moved)})
    await count_calls(connection, [bill for draft in touched for bill in draft.bills], locked_at)


def _step_arrays(drafts: Sequence[Draft]) -> dict[str, Any]:
    rows = [draft.row for draft in drafts]
    entries = [entry for draft in drafts for entry in draft.entries]
    bills = [bill for draft in drafts for bill in draft.bills]
    budgets = list({draft.budget.root_task_id: draft.budget for draft in drafts if draft.budget.changed}.values())
    usages = [bill.usage for bill in bills]
    return {
        **_columns("", _STEP_COLUMNS, rows),
        "open_calls": Texts(",".join(row.open_calls) for row in rows),
        **_columns("entry_", _ENTRY_COLUMNS, entries),
        **_columns("bill_", _BILL_COLUMNS, bills),
        **_columns("bill_", _USAGE_COLUMNS, usages),
        **_columns("budget_", _BUDGET_COLUMNS, budgets),
    }


def _move_arrays(drafts: Sequence[Draft]) -> dict[str, Any]:
    rows = [draft.row for draft in drafts]
    return {
        **_columns("", _MOVE_COLUMNS, rows),
        "state": Texts(row.state.value for row in rows),
        "result": Byteas(draft.result for draft in drafts),
        "result_json": Byteas(draft.result_json for draft in drafts),
        "ending_at": Texts(row.ending_at.isoformat() if row.ending_at else "" for row in rows),
        "next_retry_at": Texts(row.next_retry_at.isoformat() if row.next_retry_at else "" for row in rows),
        "deadline_at": Texts(draft.deadline_at.isoformat() if draft.deadline_at else "" for draft in drafts),
        "wait_deadline_at": Texts(row.wait_deadline_at.isoformat() if row.wait_deadline_at else "" for row in rows),
        "wait_step_at": _step_times(rows),
        "waiting_since": Texts(row.waiting_since.isoformat() if row.waiting_since else "" for row in rows),
        "queued_until": Texts(row.queued_until.isoformat() if row.queued_until else "" for row in rows),
        "calls_in_doubt": Texts(",".join(row.calls_in_doubt) for row in rows),
        "ended": Bools(draft.ended for draft in drafts),
        "dead_owners": Texts(OWNERS_SEPARATOR.join(row.dead_owners) for row in rows),
    }


def _escalation_arrays(drafts: Sequence[Draft]) -> dict[str, Any]:
    rows = [draft.row for draft in drafts]
    return {
        "task_id": Texts(row.task_id for row in rows),
        "wait": Byteas(row.wait for row in rows),
        "wait_step_at": _step_times(rows),
        "queue": Texts(draft.queue for draft in drafts),
        "priority": Int8s(draft.priority for draft in drafts),
    }


def _step_times(rows: Sequence[TaskRow]) -> Texts:
    return Texts(row.wait_step_at.isoformat() if row.wait_step_at else "" for row in rows)


def _columns(prefix: str, columns: Columns, items: Sequence[Any]) -> dict[str, Column[Any]]:
    """Returns one array per column."""
    if not items:
        return {prefix + name: column() for name, column in columns.items()}
    values = zip(*map(attrgetter(*columns), items), strict=True)
    return {prefix + name: column(some) for (name, column), some in zip(columns.items(), values, strict=True)}
