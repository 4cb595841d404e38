"""Group commit: what waits is written together, by one loop, as soon as the write before is done.

    async def write(batch: Sequence[Commit]) -> Sequence[Receipt | TenureError]: …

    commits = Batcher("commits", write, key=lambda commit: commit.task_id, size=lambda commit: len(commit.body))
    duties.start("commits", commits.run)
    receipt = await commits.submit(commit)

There is no window: an item alone is never delayed, and batches grow with the load by themselves. A refusal is an
item's own result and harms no neighbour. A caller that goes away cancels nothing: what was handed in is written.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tenure.domain.errors import LimitReached, TenureError, TryLater, Unavailable
from tenure.domain.retry import RetryPolicy
from tenure.runtime import metrics

_log: Final = logging.getLogger(__name__)
AGAIN: Final = RetryPolicy(initial_seconds=0.02, factor=2.0, cap_seconds=1.0)

Item = TypeVar("Item")
Result = TypeVar("Result")
Write = Callable[[Sequence[Item]], Awaitable[Sequence[Result | TenureError]]]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """`patience_seconds`: how long an item is tried while the store cannot be written to; None: for ever."""

    max_items: int = 128
    max_bytes: int = 1024 * 1024
    max_waiting: int = 8192
    patience_seconds: float | None = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting(Generic[Item, Result]):
    item: Item
    future: asyncio.Future[Result]
    give_up_at: float | None


class Batcher(Generic[Item, Result]):
    """`write` gets the items of one batch, no two of the same `key`, and answers in their order.

    It must be repeatable: after TryLater, which may hide a success, the same items are written again until their
    patience is over. Any other exception is the fault of an item: the batch is then written one by one.
    """

    def __init__(
        self,
        name: str,
        write: Write[Item, Result],
        *,
        key: Callable[[Item], Hashable],
        size: Callable[[Item], int],
        limits: BatchLimits | None = None,
    ) -> None:
        self._name, self._write, self._key, self._size = name, write, key, size
        self._limits = limits or BatchLimits()
        self._queue: deque[_Waiting[Item, Result]] = deque()
        self._arrived = asyncio.Event()
        self._batches = metrics.cell("tenure_batches_total", batcher=name)
        self._items = metrics.cell("tenure_batched_items_total", batcher=name)

    async def submit(self, item: Item) -> Result:
        """The item's result, once it is durable. Raises its refusal, LimitReached at once when the queue is full, and
        Unavailable when the store could not be written to in time (then it may or may not have been written).
        """
        if len(self._queue) >= self._limits.max_waiting:
            raise LimitReached(f"too many {self._name} wait", reason="QUEUE_FULL", retry_after_seconds=0.1)
        loop = asyncio.get_running_loop()
        patience = self._limits.patience_seconds
        future: asyncio.Future[Result] = loop.create_future()
        self._queue.append(_Waiting(item, future, None if patience is None else loop.time() + patience))
        self._arrived.set()
        return await future

    async def run(self) -> None:
        """The loop; a duty. When it is cancelled, what still waits is told that it may try elsewhere."""
        batch: list[_Waiting[Item, Result]] = []
        try:
            while True:
                while not self._queue:
                    self._arrived.clear()
                    await self._arrived.wait()
                batch = self._take()
                await self._settle(batch)
        finally:
            for waiting in (*batch, *self._queue):
                _fail(waiting, Unavailable("stopped before this was written", reason="DRAINING"))
            self._queue.clear()

    def _take(self) -> list[_Waiting[Item, Result]]:
        """The oldest that fit together. One larger than a batch goes alone; a second of a key waits for the next."""
        taken: list[_Waiting[Item, Result]] = []
        later: list[_Waiting[Item, Result]] = []
        keys: set[Hashable] = set()
        size = 0
        while self._queue and len(taken) < self._limits.max_items:
            waiting = self._queue.popleft()
            key, its_size = self._key(waiting.item), self._size(waiting.item)
            if key in keys:
                later.append(waiting)
                continue
            if taken and size + its_size > self._limits.max_bytes:
                later.append(waiting)
                break
            taken.append(waiting)
            keys.add(key)
            size += its_size
        self._queue.extendleft(reversed(later))
        return taken

    async def _settle(self, batch: list[_Waiting[Item, Result]]) -> None:
        """Write until every item has its answer."""
        clock = asyncio.get_running_loop().time
        failures = 0
        while batch:
            try:
                return await self._write_once(batch)
            except TryLater as error:
                failures += 1
                wait_seconds = AGAIN.wait_seconds(failures, random.random(), error.retry_after_seconds)
                batch = _still_patient(batch, clock(), error)
                metrics.count("tenure_batches_repeated_total", batcher=self._name)
            except Exception as error:  # noqa: BLE001  whatever is wrong with one item, its neighbours are not at fault
                if len(batch) == 1:
                    return _fail(batch[0], error)
                _log.warning("a batch failed and is written one by one", extra={"batcher": self._name}, exc_info=True)
                return await self._settle_one_by_one(batch)
            await asyncio.sleep(wait_seconds if batch else 0)
        return None

    async def _settle_one_by_one(self, batch: list[_Waiting[Item, Result]]) -> None:
        for waiting in batch:
            await self._settle([waiting])

    async def _write_once(self, batch: list[_Waiting[Item, Result]]) -> None:
        results = await self._write([waiting.item for waiting in batch])
        self._batches.value += 1
        self._items.value += len(batch)
        for waiting, result in zip(batch, results, strict=True):
            if isinstance(result, TenureError):
                _fail(waiting, result)
            elif not waiting.future.done():  # its caller may have gone away
                waiting.future.set_result(result)


def _still_patient(batch: list[_Waiting[Item, Result]], now: float, error: TryLater) -> list[_Waiting[Item, Result]]:
    left = []
    for waiting in batch:
        if waiting.give_up_at is not None and now >= waiting.give_up_at:
            _fail(waiting, error)
        else:
            left.append(waiting)
    return left


def _fail(waiting: _Waiting[Item, Result], error: Exception) -> None:
    if not waiting.future.done():
        waiting.future.set_exception(error)
