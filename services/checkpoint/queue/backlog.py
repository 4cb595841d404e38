"""Counts deliveries of webhooks that wait, tasks whose calls are in doubt, and stops. For metrics only."""

from __future__ import annotations

import random
from typing import Final

from services.checkpoint.queries import QUEUE, fetch_row
from tenure.runtime.observability import metrics
from tenure.runtime.process import rest
from tenure.runtime.store.postgres import Pool, pool_connection

INTERVAL_SECONDS: Final = 10.0


class Backlog:
    """Reads the backlog of all tenants. Each replica reports the same numbers."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def run(self) -> None:
        """Updates the metrics, as a duty."""
        while True:
            await self.look()
            await rest(INTERVAL_SECONDS * random.uniform(0.8, 1.2))

    async def look(self) -> None:
        """Reads once."""
        async with pool_connection(self._pool) as connection:
            row = await fetch_row(connection, QUEUE.backlog, {})
        pending, overdue_seconds, dead, paused, in_doubt, in_doubt_seconds, stops = row
        metrics.gauge("tenure_webhook_deliveries", pending, state="pending")
        metrics.gauge("tenure_webhook_deliveries", dead, state="dead")
        metrics.gauge("tenure_webhook_overdue_seconds", max(0.0, overdue_seconds or 0.0))
        metrics.gauge("tenure_webhooks_paused", paused)
        metrics.gauge("tenure_stops", stops)
        metrics.gauge("tenure_tasks_in_doubt", in_doubt)
        metrics.gauge("tenure_tasks_in_doubt_age_seconds", max(0.0, in_doubt_seconds or 0.0))
