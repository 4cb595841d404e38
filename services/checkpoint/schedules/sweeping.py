"""The duty that finds schedules with due times. Any number of replicas may run it; each schedule has its own
transaction.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Final

from services.checkpoint.queries import fetch_all
from services.checkpoint.queue.due import DueWork
from services.checkpoint.queue.sweeps import after_sweep, before_sweep
from services.checkpoint.schedules.rows import SCHEDULES
from services.checkpoint.schedules.runs import decide
from services.checkpoint.task_defaults import TaskDefaults
from services.checkpoint.watch.announcement import Announcement
from tenure.domain.errors import TenureError, TryLater
from tenure.runtime.observability import metrics
from tenure.runtime.process import heed_cancellation, note_progress
from tenure.runtime.store.postgres import Pool, in_transaction, pool_connection

SCHEDULES_A_SWEEP: Final = 100
POSTPONED_SECONDS: Final = 60.0
SOON_SECONDS: Final = 5.0

_log: Final = logging.getLogger(__name__)


class ScheduleSweeper:
    """Runs until cancelled. A full sweep is followed by the next at once."""

    def __init__(
        self,
        pool: Pool,
        announce: Callable[[Announcement], None],
        due: DueWork,
        defaults: TaskDefaults,
    ) -> None:
        self._pool, self._announce, self._due = pool, announce, due
        self._defaults = defaults

    async def run(self) -> None:
        while True:
            await self._due.wait("schedules")
            while await self._sweep() == SCHEDULES_A_SWEEP:
                heed_cancellation()  # a wait for a connection may have swallowed it
            heed_cancellation()

    async def _sweep(self) -> int:
        """Returns how many schedules were due. Random order: replicas that find the same ones begin with different
        ones.
        """
        async with pool_connection(self._pool) as connection:
            rows = await fetch_all(connection, SCHEDULES.due, {"limit": SCHEDULES_A_SWEEP})
        schedule_ids = [schedule_id for (schedule_id,) in rows]
        random.shuffle(schedule_ids)
        for schedule_id in schedule_ids:
            note_progress()
            await self._look_at(schedule_id)
        return len(schedule_ids)

    async def _look_at(self, schedule_id: str) -> None:
        """Decides one schedule. Postpones it after any failure, so that the other schedules do not wait for it."""
        try:
            await before_sweep()
            decided = await decide(self._pool, schedule_id, self._defaults)
            await after_sweep()
            self._announce(decided.announcement)
            for outcome, count in decided.counts.items():
                metrics.count("tenure_schedule_runs_total", count, outcome=outcome)
        except Exception as error:  # noqa: BLE001  logged, shown in the schedule, and tried again
            heed_cancellation()
            await self._postpone(schedule_id, error)

    async def _postpone(self, schedule_id: str, error: Exception) -> None:
        """Postpones a schedule. Raises Unavailable when this cannot be written either: then no schedule is the
        cause.
        """
        passing = isinstance(error, TryLater)
        fields = {"schedule": schedule_id, "error": str(error)}
        _log.warning(
            "a schedule failed and was postponed",
            extra=fields,
            exc_info=None if isinstance(error, TenureError) else error,
        )
        postponed = {
            "schedule_id": schedule_id,
            "seconds": SOON_SECONDS if passing else POSTPONED_SECONDS,
            "problem": str(error) if isinstance(error, (TenureError, ValueError)) else "internal error; see the log",
        }
        await in_transaction(self._pool, lambda ledger: ledger.execute(SCHEDULES.postpone, postponed))
