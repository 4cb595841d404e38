"""Row leases: a replica's time-limited right to the work that one row describes.

The column `lease_number` of the row only grows. Every write under the lease compares it, so a replica that was frozen
changes nothing once another replica took the lease. `leased_until` is by the database's clock. The statements
`keep_lease` and `end_lease` of the row's SQL file write them; a statement that takes leases is beside them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from services.checkpoint.queries import fetch_one
from tenure.domain.errors import TenureError
from tenure.runtime.store.postgres import Pool, in_transaction
from tenure.runtime.store.sql import Queries

END_SECONDS: Final = 2.0


@dataclass(slots=True)
class RowLease:
    """A lease that this replica took. `key`: the parameters that name the row and its lease number.

    `asked_at`: the monotonic time of the last request that was answered. `is_lost`: a write found that another replica
    took the lease, or that the row permits none.
    """

    pool: Pool
    statements: Queries
    key: Mapping[str, Any]
    seconds: float
    asked_at: float = float("-inf")
    is_lost: bool = False

    def left_seconds(self) -> float:
        """Returns how long the lease lasts at least: it was renewed after this replica asked for it."""
        return self.asked_at + self.seconds - time.monotonic()

    async def keep(self) -> tuple[Any, ...] | None:
        """Renews the lease. Returns the row of `keep_lease`, or None when the lease is lost."""
        asked_at = time.monotonic()
        row = await self.write(self.statements.keep_lease, {"lease_seconds": self.seconds})
        if row is not None:
            self.asked_at = asked_at
        return row

    async def write(self, statement: bytes, parameters: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Runs a statement under the lease. Returns its row, or None when the lease is lost."""
        complete = {**self.key, **parameters}
        row = await in_transaction(self.pool, lambda connection: fetch_one(connection, statement, complete))
        self.is_lost = self.is_lost or row is None
        return row

    async def end(self, **parameters: Any) -> None:
        """Releases the lease for other replicas. If the database does not answer soon, the lease expires by itself."""
        with suppress(TimeoutError, TenureError):
            async with asyncio.timeout(END_SECONDS):
                await self.write(self.statements.end_lease, parameters)
