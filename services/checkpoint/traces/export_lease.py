"""Records which replica exports traces, and how far they are exported: one row for all replicas, and one for each task.

The row for all replicas has a row lease (row_lease.py). Two replicas that export at the same time, because one was
frozen, send the same spans: only one of them moves the cursor.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from services.checkpoint.queries import fetch_all, fetch_one
from services.checkpoint.row_lease import RowLease
from services.checkpoint.watch.change_feed import ChangeCursor, FeedGap, FeedReader
from tenure.domain.traces import TracedTask
from tenure.runtime.observability import metrics
from tenure.runtime.store.postgres import Connection, Pool, in_transaction, pool_connection
from tenure.runtime.store.sql import Queries

_log: Final = logging.getLogger(__name__)
TRACES: Final = Queries.load("services.checkpoint", "sql/traces.sql")
LEASE_SECONDS: Final = 15.0
CHANGES_A_PAGE: Final = 500
KNOWN_A_PAGE: Final = 5000
NO_TASK: Final = str(UUID(int=0))
"""Below all ids of tasks."""
REFRESH_SECONDS: Final = 30.0
"""How old the cursor may become without changes. It must move before the changes behind it are pruned."""


class DueTask(NamedTuple):
    """A task to look at. `exported` and `sequence`: the entries whose spans are exported, and all entries."""

    task: TracedTask
    exported: int
    sequence: int
    is_held: bool


class Exported(NamedTuple):
    """The part of a task that is exported. `is_due`: it is looked at again without a change."""

    sequence: int
    is_due: bool


class ExportLease:
    """The row lease of the export. Writes under it change nothing once another replica has it."""

    def __init__(self, pool: Pool, number: int) -> None:
        self._pool = pool
        self._lease = RowLease(pool, TRACES, {"lease": number}, LEASE_SECONDS)
        self._reader = FeedReader(pool, TRACES.read_changes, {}, CHANGES_A_PAGE)
        self._cursor = ChangeCursor("", 0, 0)
        self._moved_at = float("-inf")

    def is_lost(self) -> bool:
        """Whether another replica has the lease."""
        return self._lease.is_lost

    async def keep(self) -> None:
        """Renews the lease if a third of it has passed."""
        if self._lease.left_seconds() > LEASE_SECONDS * 2 / 3:
            return
        if (row := await self._lease.keep()) is not None:
            self._cursor = ChangeCursor(*row)

    async def read_changes(self) -> None:
        """Makes the tasks of new changes due, page by page. Also keeps the lease."""
        await self.keep()
        while not self.is_lost() and await self._read_page():
            await self.keep()

    async def due(self, after: str, limit: int) -> list[DueTask]:
        """Returns tasks to look at, in the order of their ids after `after`. Forgets those that were pruned."""
        async with pool_connection(self._pool) as connection:
            rows = await fetch_all(connection, TRACES.due, {"after": after, "limit": limit})
        if pruned := [row[0] for row in rows if row[-1]]:
            _log.warning("tasks were pruned before their traces were exported", extra={"tasks": len(pruned)})
            metrics.count("tenure_trace_tasks_pruned_total", len(pruned))
            await self._lease.write(TRACES.forget_pruned, {"task_ids": pruned})
        return [
            DueTask(TracedTask(task_id, root_task_id, tenant), exported, sequence, is_held)
            for task_id, exported, sequence, root_task_id, tenant, is_held, is_pruned in rows
            if not is_pruned
        ]

    async def note(self, exported: Mapping[str, Exported]) -> None:
        """Records how far tasks are exported."""
        parameters = {
            "task_ids": list(exported),
            "sequences": [one.sequence for one in exported.values()],
            "dues": [one.is_due for one in exported.values()],
        }
        await self._lease.write(TRACES.note_exported, parameters)

    async def end(self) -> None:
        """Releases the lease."""
        await self._lease.end()

    async def _read_page(self) -> bool:
        """Reads a page of changes. Returns whether there may be more at once."""
        page = await self._reader.read(self._cursor)
        if isinstance(page, FeedGap):
            await self._skip_gap(page)
            return True
        if page.changes or time.monotonic() - self._moved_at > REFRESH_SECONDS:
            await self._move(page.cursor, (change.task_id for change in page.changes))
        return page.full

    async def _move(self, behind: ChangeCursor, task_ids: Iterable[str] = ()) -> None:
        parameters = {**self._cursor.to(behind), "task_ids": sorted(set(task_ids))}
        if await self._lease.write(TRACES.note_changes, parameters) is not None:
            self._cursor, self._moved_at = behind, time.monotonic()

    async def _skip_gap(self, gap: FeedGap) -> None:
        _log.warning("changes were pruned before traces read them: traces of tasks that ended then may be missing")
        metrics.count("tenure_trace_gaps_total")
        after: str | None = NO_TASK
        while after is not None and not self.is_lost():  # the cursor moves last: another replica begins again
            await self.keep()
            row = await self._lease.write(TRACES.make_known_due, {"after": after, "limit": KNOWN_A_PAGE})
            after = row[0] if row is not None else None
        if not self.is_lost():
            await self._move(gap.cursor)


async def take_lease(pool: Pool, holder: str) -> ExportLease | None:
    """Returns the lease, or None while another replica has it."""

    async def work(connection: Connection) -> int | None:
        await connection.execute(TRACES.begin, {})
        row = await fetch_one(connection, TRACES.take_lease, {"lease_seconds": LEASE_SECONDS, "holder": holder})
        return None if row is None else row[0]

    number = await in_transaction(pool, work)
    return None if number is None else ExportLease(pool, number)


def settled(tasks: Sequence[DueTask]) -> dict[str, Exported]:
    """Returns the tasks of which all is exported already: they need not be looked at again."""
    return {
        due.task.task_id: Exported(due.exported, is_due=False)
        for due in tasks
        if due.exported >= due.sequence and not due.is_held
    }
