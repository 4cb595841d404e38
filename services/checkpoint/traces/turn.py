"""Records which replica exports traces, and how far they are exported: one row for all replicas, and one for each task.

The turn lasts for a time, by the database's clock, with a number that only grows. Two replicas that export at the same
time, because one was frozen, send the same spans: only one of them moves the cursor.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from services.checkpoint.queries import fetch_all, fetch_one, in_ledger_transaction, ledger_connection
from tenure.domain.traces import TracedTask
from tenure.runtime import metrics
from tenure.runtime.sql import Queries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tenure.runtime.postgres import Connection, Pool

_log: Final = logging.getLogger(__name__)
TRACES: Final = Queries.load("services.checkpoint", "sql/traces.sql")
TURN_SECONDS: Final = 15.0
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


class ExportTurn:
    """A replica's turn. Writes under it change nothing once another replica has the turn."""

    def __init__(self, pool: Pool, number: int) -> None:
        self._is_lost = False
        self._pool, self._number = pool, number
        self._feed_id, self._cursor = "", (0, 0)
        self._kept_at = self._moved_at = float("-inf")

    def is_lost(self) -> bool:
        """Whether another replica has the turn."""
        return self._is_lost

    async def keep(self) -> None:
        """Renews the turn if a third of it has passed."""
        now = time.monotonic()
        if now - self._kept_at < TURN_SECONDS / 3:
            return
        row = await self._write(TRACES.keep_turn, {"turn_seconds": TURN_SECONDS})
        if row is not None:
            self._kept_at, self._feed_id, self._cursor = now, row[0], (row[1], row[2])

    async def read_changes(self) -> None:
        """Makes the tasks of new changes due, page by page. Also keeps the turn."""
        await self.keep()
        while not self.is_lost() and await self._read_page():
            await self.keep()

    async def due(self, after: str, limit: int) -> list[DueTask]:
        """Returns tasks to look at, in the order of their ids after `after`. Forgets those that were pruned."""
        async with ledger_connection(self._pool) as connection:
            rows = await fetch_all(connection, TRACES.due, {"after": after, "limit": limit})
        if pruned := [row[0] for row in rows if row[-1]]:
            _log.warning("tasks were pruned before their traces were exported", extra={"tasks": len(pruned)})
            metrics.count("tenure_trace_tasks_pruned_total", len(pruned))
            await self._write(TRACES.forget_pruned, {"task_ids": pruned})
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
        await self._write(TRACES.note_exported, parameters)

    async def end(self) -> None:
        """Releases the lease: another replica may begin at once."""
        await self._write(TRACES.end_turn, {})

    async def _read_page(self) -> bool:
        """Reads a page of changes. Returns whether there may be more at once."""
        async with ledger_connection(self._pool) as connection:
            # First the horizon: what is below it is complete, and so on the page that is read after it.
            feed = await fetch_one(connection, TRACES.feed, {})
            assert feed is not None, "the row is made with the table and never deleted"
            feed_id, pruned_xid, pruned_position, horizon, newest = feed
            is_ahead = self._cursor[0] > newest
            if feed_id != self._feed_id or is_ahead or self._cursor < (pruned_xid, pruned_position):
                behind = (horizon, 0) if is_ahead and feed_id == self._feed_id else (pruned_xid, pruned_position)
                await self._skip_gap(feed_id, behind)
                return True
            parameters = {"xid": self._cursor[0], "position": self._cursor[1], "limit": CHANGES_A_PAGE}
            changes = await fetch_all(connection, TRACES.read_changes, parameters)
        is_full = len(changes) == CHANGES_A_PAGE
        last: tuple[int, int] = (changes[-1][0], changes[-1][1]) if changes else self._cursor
        behind = last if is_full else max(last, (horizon, 0))
        if changes or time.monotonic() - self._moved_at > REFRESH_SECONDS:
            await self._note_changes(sorted({change[2] for change in changes}), behind)
        return is_full

    async def _note_changes(self, task_ids: list[str], behind: tuple[int, int]) -> None:
        xid, position = self._cursor
        places = {"xid": xid, "position": position, "to_xid": behind[0], "to_position": behind[1]}
        if await self._write(TRACES.note_changes, {**places, "task_ids": task_ids}) is not None:
            self._cursor, self._moved_at = behind, time.monotonic()

    async def _skip_gap(self, feed_id: str, behind: tuple[int, int]) -> None:
        _log.warning("changes were pruned before traces read them: traces of tasks that ended then may be missing")
        metrics.count("tenure_trace_gaps_total")
        after: str | None = NO_TASK
        while after is not None and not self.is_lost():  # the cursor moves last: another replica begins again
            await self.keep()
            row = await self._write(TRACES.make_known_due, {"after": after, "limit": KNOWN_A_PAGE})
            after = row[0] if row is not None else None
        if self.is_lost():
            return
        parameters = {"feed_id": feed_id, "xid": behind[0], "position": behind[1]}
        if await self._write(TRACES.skip_gap, parameters) is not None:
            self._feed_id, self._cursor = feed_id, behind

    async def _write(self, statement: bytes, parameters: dict[str, Any]) -> tuple[Any, ...] | None:
        """Runs a statement under the turn. Returns its row, or None when another replica has the turn."""
        complete = {"turn": self._number, **parameters}
        row = await in_ledger_transaction(self._pool, lambda connection: fetch_one(connection, statement, complete))
        self._is_lost = self._is_lost or row is None
        return row


async def take_turn(pool: Pool, holder: str) -> ExportTurn | None:
    """Returns the turn, or None while another replica has it."""

    async def work(connection: Connection) -> int | None:
        await connection.execute(TRACES.begin, {})
        row = await fetch_one(connection, TRACES.take_turn, {"turn_seconds": TURN_SECONDS, "holder": holder})
        return None if row is None else row[0]

    number = await in_ledger_transaction(pool, work)
    return None if number is None else ExportTurn(pool, number)


def settled(tasks: Sequence[DueTask]) -> dict[str, Exported]:
    """Returns the tasks of which all is exported already: they need not be looked at again."""
    return {
        due.task.task_id: Exported(due.exported, is_due=False)
        for due in tasks
        if due.exported >= due.sequence and not due.is_held
    }
