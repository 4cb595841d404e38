"""Waits for a word on calls in doubt: told to coordinators, which ask the tools, and ended when no doubt is left."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from services.checkpoint.announcement import Announcement, announcement_of
from services.checkpoint.draft import LEDGER, Draft
from services.checkpoint.queries import DOUBTS, fetch_all, in_ledger_transaction
from services.checkpoint.resolving import waited_for
from services.checkpoint.rows import lock_tasks
from services.checkpoint.writing import write
from tenure.domain.states import Reason, TaskState
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.wire.in_doubt import calls_in_doubt_to_wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.checkpoint.rows import TaskRow
    from tenure.runtime.postgres import Connection, Pool

LEAST_SECONDS: Final = 2.0
MOST_SECONDS: Final = 60.0
"""Between two looks at the same wait: so long after its runner woke up, a task may still wait for nothing."""
MOST_CALLS: Final = 64
_SETTLED: Final = "its calls are in doubt no more: what became of them was recorded after all"


async def list_doubt_waits(pool: Pool, limit: int) -> list[pb.ListDoubtWaitsResponse.DoubtWait]:
    """Those that were seen longest ago; kept from others for a while."""
    parameters = {"limit": limit, "least_seconds": LEAST_SECONDS, "most_seconds": MOST_SECONDS}

    async def work(connection: Connection) -> list[tuple[Any, ...]]:
        return await fetch_all(connection, DOUBTS.see_doubt_waits, parameters)

    waits = []
    for task_id, tenant, epoch, texts, open_calls in await in_ledger_transaction(pool, work):
        told = calls_in_doubt_to_wire(waited_for(texts, open_calls)[:MOST_CALLS])
        waits.append(pb.ListDoubtWaitsResponse.DoubtWait(task_id=task_id, tenant=tenant, epoch=epoch, calls=told))
    return waits


async def requeue_settled(
    pool: Pool, settled: Sequence[pb.RequeueSettledRequest.Settled]
) -> tuple[list[str], Announcement]:
    """The tasks that were put back. Any replica may say it: only the first is heard."""
    drafts = await in_ledger_transaction(pool, partial(_requeue, settled))
    return [draft.row.task_id for draft in drafts], announcement_of(drafts)


async def _requeue(settled: Sequence[pb.RequeueSettledRequest.Settled], connection: Connection) -> list[Draft]:
    tasks, budgets = await lock_tasks(connection, sorted({one.task_id for one in settled}))
    drafts = []
    for one in settled:
        row = tasks.pop(one.task_id, None)
        if row is not None and _waits_as_seen(row, one.epoch):
            draft = Draft(row, budgets[row.root_task_id])
            draft.move(TaskState.QUEUED, Reason.CALL_RESOLVED, _SETTLED, actor=LEDGER)
            drafts.append(draft)
    await write(connection, drafts)
    return drafts


def _waits_as_seen(row: TaskRow, epoch: int) -> bool:
    """Still that wait: the next one can only begin under a higher epoch. One that is to end is ended, not put back."""
    waits = row.state is TaskState.WAITING_USER and row.reason == Reason.TOOL_IN_DOUBT
    return waits and row.epoch == epoch and row.ending is None
