"""Admits the tasks that wait in the lines of their sources, when fewer than Source.at_most of them are live.

Whatever may let a line admit a task writes a row for that in its own transaction, and this duty handles the rows in
others. One transaction at a time looks at a line, after the lock of the line, so it sees what the one before it did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from services.checkpoint.queries import SOURCE_LINES, fetch_all
from services.checkpoint.queue.due import DueWork
from services.checkpoint.queue.sweeps import after_sweep, before_sweep
from services.checkpoint.submit.create import yielding_to_rivals
from services.checkpoint.watch.announcement import Announcement
from tenure.domain.task import MOST_LIVE
from tenure.runtime.observability import metrics
from tenure.runtime.process import note_progress
from tenure.runtime.store.postgres import Connection, Pool, in_transaction

LINES_A_SWEEP: Final = 100


class LineSweeper:
    """One duty. What this process commits wakes it at once, the rest when `due` looks."""

    def __init__(self, pool: Pool, announce: Callable[[Announcement], None], due: DueWork) -> None:
        self._pool, self._announce, self._due = pool, announce, due

    async def run(self) -> None:
        """Runs until cancelled."""
        admitted = metrics.cell("tenure_swept_tasks_total", sweep="lines")
        while True:
            await self._due.wait("lines")
            looked_at = LINES_A_SWEEP
            while looked_at == LINES_A_SWEEP:
                note_progress()
                looked_at, task_ids = await admit_due(self._pool)
                self._announce(Announcement(claimable=bool(task_ids)))
                admitted.value += len(task_ids)


async def admit_due(pool: Pool) -> tuple[int, list[str]]:
    """Looks at the lines that may admit a task. Returns how often one of them was due, and the ids of the tasks.

    Nothing else of the tasks changes, and no entry is written.
    """

    async def work(connection: Connection) -> tuple[int, list[str]]:
        due = await fetch_all(connection, SOURCE_LINES.take, {"limit": LINES_A_SWEEP})
        if not due:
            return 0, []
        await before_sweep()
        tenants, kinds, ids = (list(column) for column in zip(*set(due), strict=True))
        lines = {"tenants": tenants, "kinds": kinds, "ids": ids}
        await connection.execute(SOURCE_LINES.lock, lines)
        with yielding_to_rivals():  # an exclusive task that does not wait in line
            admitted = await fetch_all(connection, SOURCE_LINES.admit, {**lines, "most": MOST_LIVE})
        return len(due), [task_id for (task_id,) in admitted]

    looked_at, task_ids = await in_transaction(pool, work)
    if looked_at:
        await after_sweep()
    return looked_at, task_ids
