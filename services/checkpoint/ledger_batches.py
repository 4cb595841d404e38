"""Batches of one kind of write, on a connection of their own; what a lock delays is written alone.

There is no time window: a single item is never delayed, and batches grow with the load.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, Self, TypeVar

from services.checkpoint.queries import SCHEMA, SESSION_SETTINGS
from services.checkpoint.watch.announcement import Announcement
from tenure.domain.errors import TenureError, Unavailable
from tenure.runtime.rpc.status import LOCK_TIMEOUT
from tenure.runtime.settings import Secret
from tenure.runtime.store.batching import Batcher, BatchLimits
from tenure.runtime.store.dedicated_connection import DedicatedConnection
from tenure.runtime.store.postgres import Pool, PoolOptions

LOCK_TIMEOUT_SECONDS: Final = 0.25
"""Other transactions hold a lock for milliseconds; one that holds it longer must not delay the batches."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class LedgerBatches(ABC, Generic[Item, Result]):
    """Writes items, many in one transaction. Close it at the end. The duty is `run`."""

    def __init__(
        self,
        name: str,
        dsn: str | Secret,
        pool: Pool,
        announce: Callable[[Announcement], None],
        in_session: tuple[tuple[str, str], ...] = SESSION_SETTINGS,
        *,
        key: Callable[[Item], Hashable],
        size: Callable[[Item], int],
        limits: BatchLimits,
    ) -> None:
        self._postgres = DedicatedConnection(
            dsn,
            service=f"checkpoint-{name}",
            schema=SCHEMA,
            options=PoolOptions(lock_timeout_seconds=LOCK_TIMEOUT_SECONDS, settings=in_session),
        )
        self._pool = pool
        self._announce = announce
        self._batcher: Batcher[Item, Result] = Batcher(name, self._write, key=key, size=size, limits=limits)

    async def __aenter__(self) -> Self:
        await self._postgres.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._postgres.close()

    async def run(self) -> None:
        """Writes batches until it is cancelled. A duty."""
        await self._batcher.run()

    async def _submit(self, item: Item) -> Result:
        """Returns the result of the batch; after a timeout at a lock, that of the item alone."""
        try:
            return await self._batcher.submit(item)
        except Unavailable as error:
            if error.reason != LOCK_TIMEOUT:
                raise
        return await self._alone(item)

    async def _write(self, batch: Sequence[Item]) -> Sequence[Result | TenureError]:
        try:
            return await self._together(batch)
        except Unavailable as error:
            if error.reason != LOCK_TIMEOUT:
                raise
            return [error for _ in batch]

    @abstractmethod
    async def _together(self, batch: Sequence[Item]) -> Sequence[Result | TenureError]:
        """Writes a batch in one transaction, on the connection of the batches."""

    @abstractmethod
    async def _alone(self, item: Item) -> Result:
        """Writes an item on a connection of the pool, which waits longer for a lock."""
