"""Operators' waits of tasks that have not started: such a task does not start before its time when its wait ends.

A row has its start only while its task is queued. So the transaction that ends the wait takes it from the spec again.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.checkpoint.commit.draft import Draft
from services.checkpoint.queries import QUERIES
from services.checkpoint.reads import read_task
from tenure.domain.states import Reason, TaskState
from tenure.runtime.store.postgres import Connection
from tenure.wire.common import moment


async def keep_starts(connection: Connection, drafts: Iterable[Draft]) -> None:
    """Keeps the later starts of the tasks whose operator's wait ended in these drafts. Call it after their write."""
    for draft in drafts:
        if _has_left_operator_wait(draft):
            await _keep_start(connection, draft)


def _has_left_operator_wait(draft: Draft) -> bool:
    was_waiting = any(move.from_reason == Reason.OPERATOR_WAIT for move in draft.moves)
    return was_waiting and draft.row.state is TaskState.QUEUED


async def _keep_start(connection: Connection, draft: Draft) -> None:
    row = draft.row
    spec = (await read_task(connection, row.tenant, row.task_id)).spec
    if not spec.HasField("start_time") or (starts_at := moment(spec.start_time)) <= row.locked_at:
        return
    parameters = {
        "task_id": row.task_id,
        "starts_at": starts_at,
        "queued_seconds": row.task_policy.timeouts.queued.after_seconds,
    }
    await connection.execute(QUERIES.keep_start, parameters)
