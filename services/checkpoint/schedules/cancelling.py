"""The end of tasks that are in a newer run's way: asked for in the transaction that lets that run wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.checkpoint.announcement import Announcement, announcement_of
from services.checkpoint.draft import Draft
from services.checkpoint.finishing import carry_out_ending
from services.checkpoint.kinds import KINDS
from services.checkpoint.rows import TaskRow, lock_tasks
from services.checkpoint.writing import write
from tenure.domain.endings import Ending
from tenure.domain.states import TERMINAL, Reason, TaskState
from tenure.v1 import ledger_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenure.runtime.postgres import Connection


async def cancel_tasks(connection: Connection, task_ids: Sequence[str], *, actor: str, reason: str) -> Announcement:
    """Those that have ended, or whose cancel was asked for, are left as they are."""
    tasks, budgets = await lock_tasks(connection, task_ids)
    drafts = [Draft(row, budgets[row.root_task_id]) for row in tasks.values() if not _is_settled(row)]
    if not drafts:
        return Announcement()
    body = ledger_pb2.EntryBody(cancel_request=ledger_pb2.CancelRequest(reason=reason)).SerializeToString()
    for draft in drafts:
        draft.append(KINDS["cancel_request"], body, step=draft.row.step, actor=actor, by_claim=False)
        draft.ask_ending(Ending(TaskState.CANCELLED, Reason.CANCEL_REQUESTED, reason, actor))
        await carry_out_ending(connection, draft)
    await write(connection, drafts)
    return announcement_of(drafts)


def _is_settled(row: TaskRow) -> bool:
    return row.state in TERMINAL or row.ending_state == TaskState.CANCELLED
