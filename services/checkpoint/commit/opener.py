"""The connection that opens tasks in batches, and the handling of its failures.

When a worker dies, hundreds of its tasks are opened at once; a transaction for each would take most of the takeover. As
with commits there is no time window: a single Open is never delayed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from services.checkpoint.commit.opening import Opening, open_batch, open_task
from services.checkpoint.commit.prepared import task_of
from services.checkpoint.queries import SCHEMA, SESSION_SETTINGS, prepare_connection
from tenure.domain.errors import Unavailable
from tenure.runtime.failpoints import failpoint
from tenure.runtime.rpc.status import LOCK_TIMEOUT
from tenure.runtime.store.batching import Batcher, BatchLimits
from tenure.runtime.store.dedicated_connection import DedicatedConnection
from tenure.runtime.store.postgres import PoolOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.checkpoint.commit.opening import OpenResult
    from services.checkpoint.watch.announcement import Announcement
    from tenure.domain.errors import TenureError
    from tenure.domain.fencing import Claims
    from tenure.runtime.settings import Secret
    from tenure.runtime.store.postgres import Pool

LOCK_TIMEOUT_SECONDS: Final = 0.25
"""Other transactions hold a task's lock for milliseconds; one that holds it longer must not delay the batches."""
LIMITS: Final = BatchLimits(max_items=32, full_reason="OPEN_QUEUE_FULL")
"""More tasks in a batch make an Open hardly cheaper, but the first of them wait longer."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """An Open that waits for its batch. `abandoned`: its caller no longer waits, so it must not raise the fence."""

    opening: Opening
    abandoned: bool = False


class LedgerOpener:
    """Opens tasks, many in one transaction. Close it at the end. The duty is `run`."""

    def __init__(
        self,
        dsn: str | Secret,
        pool: Pool,
        announce: Callable[[Announcement], None],
        in_session: tuple[tuple[str, str], ...] = SESSION_SETTINGS,
    ) -> None:
        self._postgres = DedicatedConnection(
            dsn,
            service="checkpoint-opens",
            schema=SCHEMA,
            options=PoolOptions(lock_timeout_seconds=LOCK_TIMEOUT_SECONDS, settings=in_session),
            prepare=prepare_connection,
        )
        self._pool = pool
        self._announce = announce
        self._batcher: Batcher[_Waiting, OpenResult] = Batcher(
            "opens", self._write, key=lambda waiting: task_of(waiting.opening.claims), size=lambda _: 0, limits=LIMITS
        )

    async def __aenter__(self) -> Self:
        await self._postgres.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._postgres.close()

    async def run(self) -> None:
        """Opens batches until it is cancelled. A duty."""
        await self._batcher.run()

    async def open(self, claims: Claims, *, joins_model_calls: bool = False, after: int = 0) -> OpenResult:
        """Raises the fence to the claim. Raises NotFound, StaleEpoch or WrongState; then nothing has changed.

        Raises Unavailable or LimitReached when the ledger cannot open the task now; then its fence may be raised.
        """
        waiting = _Waiting(Opening(claims, joins_model_calls, after))
        try:
            return await self._batcher.submit(waiting)
        except asyncio.CancelledError:
            waiting.abandoned = True
            raise
        except Unavailable as error:
            if error.reason != LOCK_TIMEOUT:
                raise
        return await self._open_alone(waiting.opening)

    async def _open_alone(self, opening: Opening) -> OpenResult:
        """Opens a task whose batch timed out at a lock. Connections of the pool wait longer for the lock."""
        opened, announcement = await open_task(self._pool, opening)
        self._announce(announcement)
        return opened

    async def _write(self, batch: Sequence[_Waiting]) -> list[OpenResult | TenureError]:
        wanted = {task_of(waiting.opening.claims): waiting.opening for waiting in batch if not waiting.abandoned}
        try:
            opened = await self._open_together(list(wanted.values())) if wanted else []
        except Unavailable as error:
            if error.reason != LOCK_TIMEOUT:
                raise
            return [error for _ in batch]
        results: dict[str, OpenResult | TenureError] = dict(zip(wanted, opened, strict=True))
        return [results.get(task_of(waiting.opening.claims), _ABANDONED) for waiting in batch]

    async def _open_together(self, batch: Sequence[Opening]) -> list[OpenResult | TenureError]:
        async with self._postgres.transaction() as transaction:
            await failpoint("checkpoint.before_open")
            results, announcement = await open_batch(transaction, batch)
        self._announce(announcement)
        await failpoint("checkpoint.after_open")
        return results


_ABANDONED: Final[TenureError] = Unavailable("the caller of Open no longer waits for it", reason="ABANDONED")
