"""Deletes the entries of pruned tasks, a bounded number of rows in each transaction, with a pause after each.

No commit locks any of these rows, and no reader sees them: a request for the task gets NotFound. After a crash between
two batches the pruning is not cleared yet, and the next replica continues with the remaining rows.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from services.checkpoint.queries import RETENTION, fetch_all, fetch_in_transaction, fetch_row, ledger_transaction
from services.checkpoint.retention_rules import TaskEntries, split_batch
from tenure.runtime.failpoints import failpoint
from tenure.runtime.observability import metrics
from tenure.runtime.process import rest
from tenure.runtime.store.postgres import Connection, Pool, in_transaction, pool_connection
from tenure.v1 import checkpoint_service_pb2 as pb

ENTRIES_A_BATCH: Final = 1000
TASKS_A_BATCH: Final = 50
INTERVAL_SECONDS: Final = 1.0
LAG_INTERVAL_SECONDS: Final = 15.0


class PrunedRowCleaner:
    """Clears prunings. Any number of replicas may run it: each takes prunings that no other has locked."""

    def __init__(self, pool: Pool, kept_seconds: float) -> None:
        self._pool = pool
        self._kept_seconds = kept_seconds
        self._cleared = metrics.cell("tenure_pruned_entries_total")

    async def run(self) -> None:
        """Runs as a duty until cancelled. Pauses as long as a batch took, so that it uses at most half of the time."""
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            cleared = await self.clear_once()
            rest_seconds = clock() - began if cleared else INTERVAL_SECONDS
            await rest(rest_seconds * random.uniform(0.8, 1.2))

    async def clear_once(self) -> int:
        """Clears one batch and returns the number of deleted entries."""
        cleared = await in_transaction(self._pool, _clear)
        if cleared:
            await failpoint("checkpoint.after_clear")
        self._cleared.value += cleared
        return cleared

    async def run_lag(self) -> None:
        """Reports how far behind retention is, in seconds, as a duty."""
        while True:
            async with pool_connection(self._pool) as connection:
                lags = await fetch_row(connection, RETENTION.lags, {"kept_seconds": self._kept_seconds})
            due, entries, tools = lags
            lag_seconds = {"tasks": due if self._kept_seconds else None, "entries": entries, "tools": tools}
            for stage, lag in lag_seconds.items():
                metrics.gauge("tenure_retention_lag_seconds", max(0.0, lag or 0.0), stage=stage)
            await rest(LAG_INTERVAL_SECONDS)


async def _clear(connection: Connection) -> int:
    left = await fetch_all(connection, RETENTION.to_clear, {"limit": TASKS_A_BATCH})
    portions = split_batch([TaskEntries(task_id, entries) for task_id, entries in left], ENTRIES_A_BATCH)
    if not portions:
        return 0
    await failpoint("checkpoint.before_clear")
    for portion in portions:
        await connection.execute(RETENTION.clear_entries, portion._asdict())
    noted = {"task_ids": [one.task_id for one in portions], "lefts": [one.entries_left for one in portions]}
    await connection.execute(RETENTION.note_cleared, noted)
    before = dict(left)
    return sum(before[one.task_id] - one.entries_left for one in portions)


# Pruned tasks that the tool service still has records of: offered to coordinators until they report that it has none.

RESERVE_SECONDS: Final = 10.0
MAX_RESERVE_SECONDS: Final = 600.0
"""The longest pause between two tries: after an outage of the tool service, the last task may wait that long."""


async def list_prunings(pool: Pool, limit: int) -> list[pb.ListPruningsResponse.Pruning]:
    """Returns the oldest prunings, reserved for the caller for a while."""
    parameters = {"limit": limit, "reserve_seconds": RESERVE_SECONDS, "most_seconds": MAX_RESERVE_SECONDS}
    rows = await fetch_in_transaction(pool, RETENTION.offer_prunings, parameters)
    rows.sort(key=lambda row: row[4])  # RETURNING has no order
    return [
        pb.ListPruningsResponse.Pruning(task_id=task_id, tenant=tenant, epoch=epoch, claim_id=claim_id)
        for task_id, tenant, epoch, claim_id, _ in rows
    ]


@ledger_transaction
async def record_forgotten(connection: Connection, task_ids: Sequence[str]) -> None:
    """Records that the tool service has forgotten these tasks."""
    await connection.execute(RETENTION.note_forgotten, {"task_ids": list(task_ids)})
