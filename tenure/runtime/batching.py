"""Group commit: one loop writes all waiting items together as soon as the previous write is done.

    async def write(batch: Sequence[Commit]) -> Sequence[Receipt | TenureError]: …

    commits = Batcher("commits", write, key=lambda commit: commit.task_id, size=lambda commit: len(commit.body))
    duties.start("commits", commits.run)
    receipt = await commits.submit(commit)

There is no time window: a single item is never delayed, and batches grow with the load. A refusal is the result of one
item and does not affect the others of its batch. A caller that is cancelled does not cancel the write of its item.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final, Generic, TypeVar

from tenure.domain.errors import LimitReached, TenureError, TryLater, Unavailable
from tenure.domain.retry import RetryPolicy
from tenure.runtime import metrics
from tenure.runtime.process import note_progress, resting
from tenure.runtime.rpc_status import DRAINING, LOCK_TIMEOUT, OUTCOME_UNKNOWN

_log: Final = logging.getLogger(__name__)
AGAIN: Final = RetryPolicy(initial_seconds=0.02, factor=2.0, cap_seconds=1.0)

Item = TypeVar("Item")
Result = TypeVar("Result")
Write = Callable[[Sequence[Item]], Awaitable[Sequence[Result | TenureError]]]
Answer = Callable[[Result | Exception], None]
"""Receives the result of one item exactly once. It must not raise."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The bounds of one batch and of the queue. `full_reason`: the reason of LimitReached when the queue is full.

    `patience_seconds`: how long an item is retried while the store is unavailable; None: without end.
    """

    max_items: int = 128
    max_bytes: int = 1024 * 1024
    max_waiting: int = 8192
    max_waiting_bytes: int = 128 * 1024 * 1024
    patience_seconds: float | None = 5.0
    full_reason: str = "QUEUE_FULL"


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Item, Result]):
    item: Item
    answer: Answer[Result]
    key: Hashable
    size: int
    since: float
    seconds: metrics.Histogram
    answered: bool = False

    def resolve(self, result: Result | Exception) -> None:
        if not self.answered:
            self.answered = True
            self.seconds.observe(monotonic() - self.since)
            self.answer(result)


class Batcher(Generic[Item, Result]):
    """Collects items in batches and writes them.

    `write` gets the items of one batch, no two with the same `key`, and returns their results in the same order. It
    must be repeatable: after TryLater, which may hide a success, the batch is written again until the patience of its
    items is over. Any other exception is the fault of one item, so the items of the batch are then written one by one.
    The same happens to a batch that failed because another transaction held a row lock: the other items do not need
    that row.
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
        self._queue_bytes = 0
        self._arrived = asyncio.Event()
        self._batches = metrics.cell("tenure_batches_total", batcher=name)
        self._items = metrics.cell("tenure_batched_items_total", batcher=name)
        self._depth = metrics.cell("tenure_batch_items_waiting", batcher=name)
        self._seconds = metrics.histogram("tenure_batch_seconds", batcher=name)
        self._item_seconds = metrics.histogram("tenure_batch_item_seconds", batcher=name)

    def enqueue(self, item: Item, answer: Answer[Result]) -> None:
        """Queues an item. `answer` later gets what `submit` would return or raise. Raises LimitReached at once."""
        size = self._size(item)
        full = len(self._queue) >= self._limits.max_waiting
        if full or self._queue_bytes + size > self._limits.max_waiting_bytes:
            message = f"the queue of {self._name} is full"
            raise LimitReached(message, reason=self._limits.full_reason, retry_after_seconds=0.2)
        self._queue.append(_Waiting(item, answer, self._key(item), size, monotonic(), self._item_seconds))
        self._queue_bytes += size
        self._depth.value = len(self._queue)
        self._arrived.set()

    async def submit(self, item: Item) -> Result:
        """Returns the item's result when it is durable.

        Raises the item's refusal; LimitReached at once if the queue is full; Unavailable if the store was not available
        in time, and then the item may or may not have been written.
        """
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.enqueue(item, partial(_resolve, done))
        return await done

    async def run(self) -> None:
        """Writes batches until it is cancelled; it is a duty. Then waiting items get Unavailable (DRAINING)."""
        batch: list[_Waiting[Item, Result]] = []
        try:
            while True:
                while not self._queue:
                    self._arrived.clear()
                    with resting():
                        await self._arrived.wait()
                batch = self._take()
                await self._settle(batch)
        finally:
            interrupted = Unavailable(
                "the service stopped while this was being written", reason=DRAINING, metadata=OUTCOME_UNKNOWN
            )
            for waiting in batch:
                waiting.resolve(interrupted)
            for waiting in self._queue:
                waiting.resolve(Unavailable("the service stopped before this was written", reason=DRAINING))
            self._queue.clear()
            self._queue_bytes = 0
            self._depth.value = 0

    def _take(self) -> list[_Waiting[Item, Result]]:
        """Removes the oldest items that fit in one batch from the queue and returns them.

        An item larger than a batch goes alone. A second item with the same key waits for the next batch.
        """
        taken: list[_Waiting[Item, Result]] = []
        later: list[_Waiting[Item, Result]] = []
        keys: set[Hashable] = set()
        size = 0
        while self._queue and len(taken) < self._limits.max_items:
            waiting = self._queue[0]
            if waiting.key in keys:
                later.append(self._queue.popleft())
                continue
            if taken and size + waiting.size > self._limits.max_bytes:
                break
            taken.append(self._queue.popleft())
            keys.add(waiting.key)
            size += waiting.size
        self._queue.extendleft(reversed(later))
        self._queue_bytes -= size
        self._depth.value = len(self._queue)
        return taken

    async def _settle(self, batch: list[_Waiting[Item, Result]]) -> None:
        """Writes the batch, again if necessary, until every item has its answer."""
        failures = 0
        while batch:
            try:
                return await self._write_once(batch)
            except TryLater as error:
                if error.reason == LOCK_TIMEOUT and len(batch) > 1:  # only one item may need that lock
                    return await self._settle_one_by_one(batch)
                failures += 1
                wait_seconds = AGAIN.wait_seconds(failures, random.random(), error.retry_after_seconds)
                batch = self._still_patient(batch, error)
                metrics.count("tenure_batches_repeated_total", batcher=self._name)
            except Exception as error:  # noqa: BLE001  an error of one item must not fail the others
                if len(batch) == 1:
                    return self._blame(batch[0], error)
                _log.warning(
                    "a batch failed; its items are written one by one", extra={"batcher": self._name}, exc_info=True
                )
                return await self._settle_one_by_one(batch)
            await asyncio.sleep(wait_seconds if batch else 0)
        return None

    async def _settle_one_by_one(self, batch: list[_Waiting[Item, Result]]) -> None:
        for waiting in batch:
            await self._settle([waiting])

    async def _write_once(self, batch: list[_Waiting[Item, Result]]) -> None:
        began = monotonic()
        note_progress()  # each write of a repeated or divided batch is progress
        results = await self._write([waiting.item for waiting in batch])
        self._batches.value += 1
        self._items.value += len(batch)
        self._seconds.observe(monotonic() - began)
        for waiting, result in zip(batch, results, strict=True):
            waiting.resolve(result)

    def _still_patient(self, batch: list[_Waiting[Item, Result]], error: TryLater) -> list[_Waiting[Item, Result]]:
        patience = self._limits.patience_seconds
        if patience is None:
            return batch
        latest = monotonic() - patience
        for waiting in batch:
            if waiting.since <= latest:
                waiting.resolve(error)
        return [waiting for waiting in batch if not waiting.answered]

    def _blame(self, waiting: _Waiting[Item, Result], error: Exception) -> None:
        if not isinstance(error, TenureError):
            _log.error(
                "an item cannot be written", extra={"batcher": self._name, "key": str(waiting.key)}, exc_info=error
            )
        waiting.resolve(error)


def _resolve(done: asyncio.Future[Result], result: Result | Exception) -> None:
    if done.done():  # the caller was cancelled
        return
    if isinstance(result, Exception):
        done.set_exception(result)
    else:
        done.set_result(result)
