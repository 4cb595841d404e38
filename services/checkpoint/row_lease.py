"""Row leases: a replica's time-limited right to the work that one row describes.

The column `lease_number` of the row only grows. Every write under the lease compares it, so a replica that was frozen
changes nothing once another replica took the lease. `leased_until` is by the database's clock. The statements
`keep_lease` and `end_lease` of the row's SQL file write them; a statement that takes leases is beside them.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from services.checkpoint.queries import fetch_one, in_ledger_transaction
from tenure.domain.errors import TenureError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenure.runtime.postgres import Pool
    from tenure.runtime.sql import Queries

END_SECONDS: Final = 2.0


class RowLease:
    """A lease that this replica took. `key`: the parameters that name the row and its lease number.

    `taken_at`: the monotonic time at which the lease was requested; without it, `keep` is called first.
    """

    def __init__(
        self,
        pool: Pool,
        statements: Queries,
        key: Mapping[str, Any],
        seconds: float,
        taken_at: float = float("-inf"),
    ) -> None:
        self._pool, self._statements, self._key, self._seconds = pool, statements, key, seconds
        self._kept_at = taken_at
        self.is_lost = False
        """Whether a write found that another replica took the lease, or that the row permits none."""

    def left_seconds(self) -> float:
        """Returns how long the lease lasts at least: it was renewed after this replica asked for the renewal."""
        return self._kept_at + self._seconds - time.monotonic()

    async def keep(self) -> tuple[Any, ...] | None:
        """Renews the lease. Returns the row of `keep_lease`, or None when the lease is lost."""
        asked_at = time.monotonic()
        row = await self.write(self._statements.keep_lease, {"lease_seconds": self._seconds})
        if row is not None:
            self._kept_at = asked_at
        return row

    async def write(self, statement: bytes, parameters: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Runs a statement under the lease. Returns its row, or None when the lease is lost."""
        complete = {**self._key, **parameters}
        row = await in_ledger_transaction(self._pool, lambda connection: fetch_one(connection, statement, complete))
        self.is_lost = self.is_lost or row is None
        return row

    async def end(self, **parameters: Any) -> None:
        """Releases the lease, so that another replica may take it at once. It expires if the database does not answer
        soon.
        """
        with suppress(TimeoutError, TenureError):
            async with asyncio.timeout(END_SECONDS):
                await self.write(self._statements.end_lease, parameters)
