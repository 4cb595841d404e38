"""Brings drafts into the database: one statement for what steps change, a second one for changes of state."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from services.checkpoint.draft import Bill, NewRow
from services.checkpoint.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from services.checkpoint.draft import Draft
    from tenure.runtime.postgres import Connection

_STEP_COLUMNS: Final = (
    "task_id",
    "sequence",
    "step",
    "deaths",
    "commit_number",
    "last_commit_id",
    "last_commit_hash",
    "last_reply",
    "last_base",
    "model_open",
    "model_step",
    "model_attempt",
    "model_name",
    "model_input",
    "model_output",
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
)
_MOVE_COLUMNS: Final = (
    "task_id",
    "reason",
    "message",
    "epoch",
    "claim_id",
    "holds",
    "owner",
    "claim_count",
    "ending_state",
    "ending_reason",
    "ending_message",
    "ending_actor",
)
_BILL_COLUMNS: Final = Bill._fields[:-1]
_USAGE_COLUMNS: Final = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
)
_BUDGET_COLUMNS: Final = ("root_task_id", "used_tokens", "reserved_tokens")


@dataclass(slots=True)
class Announcement:
    """What others want to hear once the transaction is durable."""

    task_ids: set[str] = field(default_factory=set)
    claimable: bool = False
    ending_task_ids: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.task_ids or self.claimable)

    def add(self, other: Announcement) -> None:
        """Take another one in."""
        self.task_ids |= other.task_ids
        self.ending_task_ids |= other.ending_task_ids
        self.claimable = self.claimable or other.claimable


def announcement_of(drafts: Iterable[Draft]) -> Announcement:
    """What these drafts amount to for watchers and coordinators."""
    told = Announcement()
    for draft in drafts:
        if draft.has_work:
            told.task_ids.add(draft.row.task_id)
            told.claimable = told.claimable or draft.claimable
            if draft.moved and draft.row.ending_state and not draft.ended:
                told.ending_task_ids.add(draft.row.task_id)
    return told


async def write(connection: Connection, drafts: Sequence[Draft]) -> None:
    """Write what the drafts hold, in the transaction that locked their rows."""
    touched = [draft for draft in drafts if draft.has_work]
    if not touched:
        return
    locked_at = max(draft.row.locked_at for draft in touched)
    await connection.execute(QUERIES.write, {"locked_at": locked_at, **_step_arrays(touched)})
    moved = [draft for draft in touched if draft.moved]
    if moved:
        await connection.execute(QUERIES.move, {"locked_at": locked_at, **_move_arrays(moved)})


def _step_arrays(drafts: Sequence[Draft]) -> dict[str, Any]:
    rows = [draft.row for draft in drafts]
    entries = [entry for draft in drafts for entry in draft.entries]
    bills = [bill for draft in drafts for bill in draft.bills]
    budgets = list({draft.budget.root_task_id: draft.budget for draft in drafts if draft.budget.changed}.values())
    usages = [bill.usage for bill in bills]
    return {
        **_columns("", _STEP_COLUMNS, rows),
        "open_calls": [",".join(row.open_calls) for row in rows],
        **_columns("entry_", NewRow._fields, entries),
        **_columns("bill_", _BILL_COLUMNS, bills),
        **_columns("bill_", _USAGE_COLUMNS, usages),
        **_columns("budget_", _BUDGET_COLUMNS, budgets),
    }


def _move_arrays(drafts: Sequence[Draft]) -> dict[str, Any]:
    rows = [draft.row for draft in drafts]
    return {
        **_columns("", _MOVE_COLUMNS, rows),
        "state": [row.state.value for row in rows],
        "result": [draft.result for draft in drafts],
        "ending_at": [row.ending_at.isoformat() if row.ending_at else "" for row in rows],
        "next_retry_at": [row.next_retry_at.isoformat() if row.next_retry_at else "" for row in rows],
        "ended": [draft.ended for draft in drafts],
    }


def _columns(prefix: str, names: Sequence[str], items: Sequence[Any]) -> dict[str, list[Any]]:
    """One array per column."""
    if not items:
        return {f"{prefix}{name}": [] for name in names}
    columns = zip(*map(attrgetter(*names), items), strict=True)
    return {f"{prefix}{name}": list(column) for name, column in zip(names, columns, strict=True)}
