"""The batches that open tasks.

When a worker dies, hundreds of its tasks are opened at once; a transaction for each would take most of the takeover.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from services.checkpoint.commit.opening import Opening, OpenResult, open_batch, open_task
from services.checkpoint.commit.prepared import task_of
from services.checkpoint.ledger_batches import LedgerBatches
from services.checkpoint.queries import SESSION_SETTINGS
from tenure.domain.errors import Unavailable
from tenure.runtime.failpoints import failpoint
from tenure.runtime.store.batching import BatchLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.checkpoint.watch.announcement import Announcement
    from tenure.domain.errors import TenureError
    from tenure.domain.fencing import Claims
    from tenure.runtime.settings import Secret
    from tenure.runtime.store.postgres import Pool

LIMITS: Final = BatchLimits(max_items=32, full_reason="OPEN_QUEUE_FULL")
"""More tasks in a batch make an Open hardly cheaper, but the first of them wait longer."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """An Open that waits for its batch. `abandoned`: its caller no longer waits, so it must not raise the fence."""

    opening: Opening
    abandoned: bool = False


class LedgerOpener(LedgerBatches[_Waiting, OpenResult]):
    """Opens tasks, many in one transaction."""

    def __init__(
        self,
        dsn: str | Secret,
        pool: Pool,
        announce: Callable[[Announcement], None],
        in_session: tuple[tuple[str, str], ...] = SESSION_SETTINGS,
    ) -> None:
        super().__init__(
            "opens",
            dsn,
            pool,
            announce,
            in_session,
            key=lambda waiting: task_of(waiting.opening.claims),
            size=lambda _: 0,
            limits=LIMITS,
        )

    async def open(self, claims: Claims, *, joins_model_calls: bool = False, after: int = 0) -> OpenResult:
        """Raises the fence to the claim. Raises NotFound, StaleEpoch or WrongState; then nothing has changed.

        Raises Unavailable or LimitReached when the ledger cannot open the task now; then its fence may be raised.
        """
        waiting = _Waiting(Opening(claims, joins_model_calls, after))
        try:
            return await self._submit(waiting)
        except asyncio.CancelledError:
            waiting.abandoned = True
            raise

    async def _alone(self, item: _Waiting) -> OpenResult:
        opened, announcement = await open_task(self._pool, item.opening)
        self._announce(announcement)
        return opened

    async def _together(self, batch: Sequence[_Waiting]) -> list[OpenResult | TenureError]:
        wanted = {task_of(waiting.opening.claims): waiting.opening for waiting in batch if not waiting.abandoned}
        opened = await self._open(list(wanted.values())) if wanted else []
        results: dict[str, OpenResult | TenureError] = dict(zip(wanted, opened, strict=True))
        return [results.get(task_of(waiting.opening.claims), _ABANDONED) for waiting in batch]

    async def _open(self, batch: Sequence[Opening]) -> list[OpenResult | TenureError]:
        async with self._postgres.transaction() as transaction:
            await failpoint("checkpoint.before_open")
            results, announcement = await open_batch(transaction, batch)
        self._announce(announcement)
        await failpoint("checkpoint.after_open")
        return results


_ABANDONED: Final[TenureError] = Unavailable("the caller of Open no longer waits for it", reason="ABANDONED")
