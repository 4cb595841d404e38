"""The line of a source, as submits enter it: its limit, and the bursts of submits that become one run.

A task with Source.at_most is created in line, whether the source is busy or not. queue/admitting.py admits it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from services.checkpoint.commit.draft import LEDGER, Draft
from services.checkpoint.commit.task_row import lock_tasks
from services.checkpoint.commit.writing import write
from services.checkpoint.queries import SOURCE_LINES, fetch_row
from tenure.domain.errors import SOURCE_LINE_FULL, LimitReached
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import Source
from tenure.runtime.store.postgres import Connection

MAX_IN_LINE: Final = 1000


class Burst(NamedTuple):
    """Submits of a source with a debounce: the first one's time, when the newest one starts, and the tasks in line."""

    since: datetime
    start_at: datetime
    task_ids: Sequence[str]


async def enter_line(connection: Connection, tenant: str, source: Source) -> Burst | None:
    """Checks that the line of the source takes one more task; two at once may exceed the limit by one.

    Returns the burst that a submit with a debounce belongs to. Raises LimitReached (SOURCE_LINE_FULL).
    """
    if not source.at_most:
        return None
    kind, source_id = source.kind.value, source.source_id
    if source.debounce_seconds:
        await connection.execute(SOURCE_LINES.lock, {"tenants": [tenant], "kinds": [kind], "ids": [source_id]})
    parameters = {"tenant": tenant, "kind": kind, "id": source_id, "most": MAX_IN_LINE}
    debounce = {"debounce_seconds": source.debounce_seconds or 0.0}
    waiting, *burst = await fetch_row(connection, SOURCE_LINES.look, {**parameters, **debounce})
    if waiting >= MAX_IN_LINE:
        message = f"{MAX_IN_LINE:,} tasks of this source wait in line: submit again when some of them have begun"
        raise LimitReached(message, reason=SOURCE_LINE_FULL)
    return Burst(*burst) if source.debounce_seconds else None


async def replace_burst(connection: Connection, burst: Burst, task_id: str) -> list[Draft]:
    """Ends the tasks of the burst that the new task replaces. Runs under the lock of the line, so none was admitted."""
    tasks, budgets = await lock_tasks(connection, burst.task_ids)
    drafts = [Draft(row, budgets[row.root_task_id]) for row in tasks.values() if row.in_line]
    for draft in drafts:
        message = f"the task {task_id} of its source replaces it"
        draft.move(TaskState.CANCELLED, Reason.SUPERSEDED, message, actor=LEDGER)
    await write(connection, drafts)
    return drafts
