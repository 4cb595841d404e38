"""Forget: what the tools have of a task that the ledger has pruned goes. All but its fence.

The fence stays for ever, raised to the task's last grant and closed: whoever holds a token of the task, and wakes up
when everything else is gone, is refused as ever. No higher token can come to be, because the ledger registers grants
only of tasks that it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from services.tools.statements import QUERIES
from tenure.domain.errors import Unavailable
from tenure.runtime import metrics
from tenure.runtime.failpoint import failpoint
from tenure.runtime.postgres import Pool, connection

if TYPE_CHECKING:
    from uuid import UUID

    from services.tools.calls.closing import Closing
    from services.tools.workspace.sweep import WorkspaceSweep
    from tenure.domain.token import Claims

CALLS_A_BATCH: Final = 200


class Forgetting:
    """Repeatable at every point: what is half done is done again, by whatever replica is asked."""

    def __init__(self, pool: Pool, closing: Closing, workspaces: WorkspaceSweep) -> None:
        self._pool, self._closing, self._workspaces = pool, closing, workspaces

    async def forget(self, claims: Claims, task_id: UUID) -> None:
        """Raises StaleEpoch, and Unavailable (CALL_STILL_RUNS) while something of the task runs."""
        if not await self._closing.end(claims, task_id):
            raise Unavailable("a call of this task still runs", reason="CALL_STILL_RUNS", retry_after_seconds=5.0)
        await failpoint("tools.before_forget")
        # Marked first: a stale caller leaves no trail from then on, so that nothing comes after what is deleted.
        async with connection(self._pool) as postgres:
            await postgres.execute(QUERIES.forget_task, {"task_id": task_id})
            await postgres.execute(QUERIES.forget_refusals, {"task_id": task_id})
        while await self._forget_calls(task_id) == CALLS_A_BATCH:
            pass
        await failpoint("tools.after_forget")
        metrics.count("tenure_forgotten_tasks_total")
        self._workspaces.hand_in(claims.tenant, str(task_id))

    async def _forget_calls(self, task_id: UUID) -> int:
        """A bounded number; how many went."""
        async with connection(self._pool) as postgres:
            cursor = await postgres.execute(QUERIES.forget_calls, {"task_id": task_id, "limit": CALLS_A_BATCH})
            return cursor.rowcount
