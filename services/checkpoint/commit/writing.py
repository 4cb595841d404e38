"""Writes drafts to the database: one statement for the columns that steps change, a second one for transitions.

A batch in which no draft changes calls, bills or a budget has a shorter first statement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from services.checkpoint.commit.draft import time_of
from services.checkpoint.entries import KINDS
from services.checkpoint.queries import FIRST_ID, QUERIES, SOURCE_LINES, SUB_AGENTS, UNDOS
from services.checkpoint.rows import ADVANCES, BILLS, BUDGETS, ENTRIES, MOVES, STEPS
from services.checkpoint.task_words import add_words
from services.checkpoint.tenants.usage_windows import count_calls
from tenure.domain.states import Reason
from tenure.runtime.store.sql_arrays import Bools, Byteas, Int8s, Texts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from services.checkpoint.commit.draft import Draft
    from tenure.runtime.store.postgres import Connection

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
    if all(map(_only_advances, touched)):
        await connection.execute(QUERIES.advance, {"locked_at": locked_at, **_advance_arrays(touched)})
    else:
        await connection.execute(QUERIES.write, {"locked_at": locked_at, **_step_arrays(touched)})
    warnings = [row for draft in touched for row in draft.warnings]
    for kind, reason in _WARNINGS.items() if warnings else ():
        if rows := [row for row in warnings if row.kind == kind]:
            warned = {"task_ids": [row.task_id for row in rows], "sequences": [row.sequence for row in rows]}
            await connection.execute(QUERIES.warn, {"locked_at": locked_at, "reason": reason, **warned})
    if escalated := [draft for draft in touched if draft.escalated and not draft.moved]:
        await connection.execute(QUERIES.escalate, {"locked_at": locked_at, **_escalation_arrays(escalated)})
    for draft in touched:
        if draft.passes_on:
            passed = {"parent": draft.row.task_id, "sequence": draft.interrupting_sequence, "after": FIRST_ID}
            await connection.execute(SUB_AGENTS.pass_on, passed)
    if moved := [draft for draft in touched if draft.moved]:
        await _move(connection, moved, locked_at)
    await count_calls(connection, [bill for draft in touched for bill in draft.bills], locked_at)


async def _move(connection: Connection, moved: Sequence[Draft], locked_at: datetime) -> None:
    """Writes the transitions, and the rows from which sweeps do what follows from them."""
    await connection.execute(QUERIES.move, {"locked_at": locked_at, **_move_arrays(moved)})
    results = [(draft.row.task_id, draft.row.tenant, draft.result.decode()) for draft in moved if draft.ended]
    await add_words(connection, results)
    if due := [draft.row.task_id for draft in moved if draft.wants_undo]:
        await connection.execute(UNDOS.note_due, {"task_ids": due})
    if of_lines := [draft.row.task_id for draft in moved if draft.concerns_line]:
        await connection.execute(SOURCE_LINES.note, {"task_ids": of_lines})


def _only_advances(draft: Draft) -> bool:
    """Whether the draft changes nothing of calls, of bills and of the budget."""
    return not draft.bills and not draft.budget.changed and draft.row.only_advanced


def _advance_arrays(drafts: Sequence[Draft]) -> dict[str, Any]:
    entries = [entry for draft in drafts for entry in draft.entries]
    return {**ADVANCES.of([draft.row for draft in drafts]), **ENTRIES.of(entries)}


def _step_arrays(drafts: Sequence[Draft]) -> dict[str, Any]:
    entries = [entry for draft in drafts for entry in draft.entries]
    bills = [bill for draft in drafts for bill in draft.bills]
    budgets = list({draft.budget.root_task_id: draft.budget for draft in drafts if draft.budget.changed}.values())
    return {
        **STEPS.of([draft.row for draft in drafts]),
        **ENTRIES.of(entries),
        **BILLS.of(bills),
        **BUDGETS.of(budgets),
    }


def _move_arrays(drafts: Sequence[Draft]) -> dict[str, Any]:
    return {
        **MOVES.of([draft.row for draft in drafts]),
        "result": Byteas(draft.result for draft in drafts),
        "result_json": Byteas(draft.result_json for draft in drafts),
        "deadline_at": Texts(draft.deadline_at.isoformat() if draft.deadline_at else "" for draft in drafts),
        "ended": Bools(draft.ended for draft in drafts),
    }


def _escalation_arrays(drafts: Sequence[Draft]) -> dict[str, Any]:
    rows = [draft.row for draft in drafts]
    return {
        "task_id": Texts(row.task_id for row in rows),
        "wait": Byteas(row.wait for row in rows),
        "wait_step_at": Texts(row.wait_step_at.isoformat() if row.wait_step_at else "" for row in rows),
        "queue": Texts(draft.queue for draft in drafts),
        "priority": Int8s(draft.priority for draft in drafts),
    }
