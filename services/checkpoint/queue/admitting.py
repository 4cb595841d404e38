"""Admits the tasks that wait in the lines of their sources, when fewer than Source.at_most of them are live.

Whatever may let a line admit a task writes a row for that in its own transaction, and this duty handles the rows in
others. One transaction at a time looks at a line, after the lock of the line, so it sees what the one before it did.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from services.checkpoint.locked_rows import may_be_one_row
from services.checkpoint.queries import SOURCE_LINES, fetch_all, fetch_in_transaction
from services.checkpoint.queue.due import DueWork
from services.checkpoint.queue.sweeps import after_sweep, before_sweep
from services.checkpoint.submit.create import yielding_to_rivals
from services.checkpoint.watch.announcement import Announcement
from tenure.domain.task import MOST_LIVE
from tenure.runtime.observability import metrics
from tenure.runtime.process import note_progress
from tenure.runtime.store.postgres import Connection, Pool, in_transaction

LINES_A_SWEEP: Final = 100

_log: Final = logging.getLogger(__name__)


class LineSweeper:
    """One duty. What this process commits wakes it at once, the rest when `due` looks."""

    def __init__(self, pool: Pool, announce: Callable[[Announcement], None], due: DueWork) -> None:
        self._pool, self._announce, self._due = pool, announce, due

    async def run(self) -> None:
        """Runs until cancelled. Looks at all lines first: replicas of older versions end tasks without a row."""
        await in_transaction(self._pool, lambda connection: connection.execute(SOURCE_LINES.note_all))
        while True:
            await self._due.wait("lines")
            while await self._sweep() == LINES_A_SWEEP:
                pass

    async def _sweep(self) -> int:
        """Returns how many rows were handled. When a task may be at fault for a failure, handles each row alone."""
        note_progress()
        try:
            return await self._admit()
        except Exception as error:
            if not may_be_one_row(error):
                raise
        due = await fetch_in_transaction(self._pool, SOURCE_LINES.due, {"limit": LINES_A_SWEEP})
        return sum([await self._admit_alone(position) for (position,) in due])

    async def _admit_alone(self, position: int) -> int:
        """A row that fails stays: its line is looked at again, and the others do not wait for it."""
        try:
            return await self._admit(position)
        except Exception as error:
            if not may_be_one_row(error):
                raise
            _log.warning("a line was left out", extra={"error": str(error).partition("\n")[0]})
            return 0

    async def _admit(self, *positions: int) -> int:
        """Admits tasks in one transaction. Nothing else of them changes, and no entry is written."""
        looked_at, admitted = await in_transaction(self._pool, partial(_admit, positions))
        if looked_at:
            await after_sweep()
        self._announce(Announcement(claimable=admitted > 0))
        metrics.count("tenure_swept_tasks_total", admitted, sweep="lines")
        return looked_at


async def _admit(positions: Sequence[int], connection: Connection) -> tuple[int, int]:
    """Returns how many rows it handled, and how many tasks it admitted."""
    take = {"positions": list(positions), "limit": LINES_A_SWEEP}
    due = await fetch_all(connection, SOURCE_LINES.take, take)
    if not due:
        return 0, 0
    await before_sweep()
    tenants, kinds, ids = (list(column) for column in zip(*set(due), strict=True))
    lines = {"tenants": tenants, "kinds": kinds, "ids": ids}
    await connection.execute(SOURCE_LINES.lock, lines)
    with yielding_to_rivals():  # an exclusive task, which does not wait in line
        admitted = await fetch_all(connection, SOURCE_LINES.admit, {**lines, "most": MOST_LIVE})
    return len(due), len(admitted)
