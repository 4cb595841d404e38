"""Deletes the rows of tasks that have not changed for days: no owner needs their fence or their answer any more.

Also deletes the rows of runners that stopped renewing a day ago.
"""

from __future__ import annotations

import logging
from typing import Final, Never

from services.models.statements import QUERIES
from tenure.domain.errors import TryLater
from tenure.runtime.process import rest
from tenure.runtime.store.postgres import Pool, pool_connection

_log: Final = logging.getLogger(__name__)
MOST: Final = 1000
EVERY_SECONDS: Final = 300.0


class GenerationSweep:
    """Deletes old rows as the duty `run`."""

    def __init__(self, pool: Pool, days: int) -> None:
        self._pool, self._days = pool, days

    async def run(self) -> Never:
        """Sweeps regularly."""
        while True:
            try:
                swept = await self.sweep()
            except TryLater as error:
                _log.warning("could not delete old rows of model calls: %s", error)
                swept = 0
            await rest(1.0 if swept == MOST else EVERY_SECONDS)

    async def sweep(self) -> int:
        """Deletes some old rows and returns how many."""
        async with pool_connection(self._pool) as postgres:
            await postgres.execute(QUERIES.forget_runners)
            cursor = await postgres.execute(QUERIES.sweep_generations, {"days": self._days, "most": MOST})
            return cursor.rowcount
