"""Lists the newest calls of all tasks, for the ledger to compare after a restore."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final
from uuid import UUID

from services.models.statements import QUERIES
from tenure.runtime.store.postgres import Pool, pool_connection

PAGE: Final = 500


async def list_calls(pool: Pool) -> AsyncIterator[dict[str, Any]]:
    """Yields the newest call of each task, by id, for `tenure serve checkpoint compare-model-calls`."""
    after = UUID(int=0)
    while True:
        async with pool_connection(pool) as postgres:
            rows = await (await postgres.execute(QUERIES.list_generations, {"after": after, "most": PAGE})).fetchall()
        for task_id, tenant, step, attempt_number, sent_at in rows:
            yield {
                "task_id": str(task_id),
                "tenant": tenant,
                "step": step,
                "attempt_number": attempt_number,
                "sent_at": "" if sent_at is None else sent_at.isoformat(),
            }
        if len(rows) < PAGE:
            return
        after = rows[-1][0]
