"""Changes are kept for a time, for readers that were away. What is older goes, a bounded number at a time.

So do the changes of a feed from before, which are left over when a ledger was copied to another cluster.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from services.checkpoint.queries import QUERIES, fetch_one, in_ledger_transaction
from tenure.runtime import metrics
from tenure.runtime.duties import note_progress, rest

if TYPE_CHECKING:
    from tenure.runtime.postgres import Connection, Pool

CHANGES_A_BATCH: Final = 1000
LEFTOVERS_A_BATCH: Final = 5000
LONGEST_INTERVAL_SECONDS: Final = 60.0


class ChangePruner:
    """In any number of replicas: one prunes at a time. Its transactions touch no row that a commit locks."""

    def __init__(self, pool: Pool, kept_seconds: float) -> None:
        self._pool = pool
        self._kept_seconds = kept_seconds
        self._interval_seconds = min(LONGEST_INTERVAL_SECONDS, max(0.1, kept_seconds / 10))
        self._pruned = metrics.cell("tenure_pruned_changes_total")

    async def run(self) -> None:
        """A duty: for ever. A full batch is followed by the next at once."""
        while True:
            await self._clear_leftovers()
            note_progress()
            pruned = await self.prune_once()
            if pruned < CHANGES_A_BATCH:
                await rest(self._interval_seconds * random.uniform(0.5, 1.0))

    async def prune_once(self) -> int:
        """One batch; how many changes went."""
        pruned = await in_ledger_transaction(self._pool, self._prune)
        self._pruned.value += pruned
        return pruned

    async def clear_leftovers_once(self) -> int:
        """One batch; how many changes were looked at. Fewer than a full one: the end, or another replica is at it."""
        return await in_ledger_transaction(self._pool, self._clear)

    async def _clear_leftovers(self) -> None:
        """Rests after each batch for as long as it took. Until there are none left nothing is pruned."""
        clock = asyncio.get_running_loop().time
        began = clock()
        while await self.clear_leftovers_once() == LEFTOVERS_A_BATCH:
            await rest(clock() - began)
            began = clock()

    async def _clear(self, connection: Connection) -> int:
        found = await fetch_one(connection, QUERIES.clear_leftovers, {"limit": LEFTOVERS_A_BATCH})
        assert found is not None, "a count has a row"
        walked: int = found[0]
        return walked

    async def _prune(self, connection: Connection) -> int:
        parameters = {"limit": CHANGES_A_BATCH, "kept_seconds": self._kept_seconds}
        found = await fetch_one(connection, QUERIES.prune_changes, parameters)
        assert found is not None, "a count has a row"
        pruned: int = found[0]
        return pruned
