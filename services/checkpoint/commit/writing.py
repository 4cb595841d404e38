"""Writes drafts to the database: one statement for the columns that steps change, a second one for transitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from services.checkpoint.commit.draft import time_of
from services.checkpoint.entries import KINDS
from services.checkpoint.queries import QUERIES
from services.checkpoint.tenants.usage_windows import count_calls
from tenure.domain.states import Reason
from tenure.runtime.sql_arrays import (
    Bools,
    Byteas,
    Int8s,
    RowArrays,
    Texts,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.checkpoint.commit.draft import Draft
    from services.checkpoint.commit.task_row import TaskRow
    from tenure.runtime.postgres import Connection

OWNERS_SEPARATOR: Final = "\x1f"
"""Separates names of workers in one text: Postgres has no arrays of arrays of different lengths."""

TRANSITIONS: Final = RowArrays(
    "",
    {
        "task_id": Texts,
        "reason": Texts,
        "message": Texts,
        "claim_id": Texts,
        "owner": Texts,
        "ending_state": Texts,
        "ending_reason": Texts,
        "ending_message": Texts,
        "ending_actor": Texts,
        "ending_result": Byteas,
        "wait": Byteas,
        "wait_correlation": Texts,
        "operator_wait": Byteas,
    },
    (
        "epoch",
        "holds",
        "claim_count",
        "attempt",
        "max_steps",
        "own_max_tokens",
        "own_max_nano_usd",
        "timeout_retries",
    ),
)
STEPS: Final = RowArrays(
    "",
    {
        "task_id": Texts,
        "last_commit_id": Texts,
        "last_commit_hash": Byteas,
        "last_reply": Byteas,
        "model_name": Texts,
        "model_prices": Byteas,
    },
    (
        "sequence",
        "step",
        "deaths",
        "commit_number",
        "last_base",
        "model_open",
        "model_step",
        "model_attempt",
        "model_input",
        "model_output",
        "input_tokens",
        "output_tokens",
        "cache_creation_input_tokens",
        "cache_read_input_tokens",
        "used_nano_usd",
        "model_nano_usd",
        "model_outlives",
        "ledger_bytes",
    ),
)
ENTRIES: Final = RowArrays(
    "entry_",
    {"task_id": Texts, "tenant": Texts, "claim_id": Texts, "actor": Texts, "body": Byteas},
    ("sequence", "epoch", "attempt", "step", "kind"),
)
BILLS: Final = RowArrays(
    "bill_",
    {"task_id": Texts, "tenant": Texts, "root_task_id": Texts, "model": Texts, "provider_request_id": Texts},
    (
        "step",
        "attempt_number",
        "epoch",
        "lost",
        "nano_usd",
        "unpriced",
        "usage.input_tokens",
        "usage.output_tokens",
        "usage.cache_creation_input_tokens",
        "usage.cache_read_input_tokens",
    ),
)
BUDGETS: Final = RowArrays(
    "budget_",
    {"root_task_id": Texts},
    (
        "max_tokens",
        "used_tokens",
        "reserved_tokens",
        "max_nano_usd",
        "used_nano_usd",
        "reserved_nano_usd",
        "unpriced_calls",
        "warned_tokens",
        "warned_nano_usd",
        "beyond_tokens",
        "beyond_nano_usd",
    ),
)

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
    return {
        **STEPS.of(rows),
        "open_calls": Texts(",".join(row.open_calls) for row in rows),
        **ENTRIES.of(entries),
        **BILLS.of(bills),
        **BUDGETS.of(budgets),
    }


def _move_arrays(drafts: Sequence[Draft]) -> dict[str, Any]:
    rows = [draft.row for draft in drafts]
    return {
        **TRANSITIONS.of(rows),
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
