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
from functools import partial
from time import monotonic
from typing import Final, Generic, TypeVar

from tenure.domain.errors import LimitReached, TenureError, TryLater, Unavailable
from tenure.domain.retry import RetryPolicy
from tenure.runtime import metrics
from tenure.runtime.process import note_progress, resting
from tenure.runtime.rpc_status import LOCK_TIMEOUT, OUTCOME_UNKNOWN

_log: Final = logging.getLogger(__name__)
AGAIN: Final = RetryPolicy(initial_seconds=0.02, factor=2.0, cap_seconds=1.0)

Item = TypeVar("Item")
Result = TypeVar("Result")
Write = Callable[[Sequence[Item]], Awaitable[Sequence[Result | TenureError]]]
Answer = Callable[[Result | Exception], None]
"""Hears the result of one item, exactly once; must not raise."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of one batch and of what may wait for it; `full_reason` is what is told when that is too much.

    `patience_seconds`: how long an item is tried while the store cannot be written to; None: for ever.
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
    answered: bool = False

    def resolve(self, result: Result | Exception) -> None:
        if not self.answered:
            self.answered = True
            self.answer(result)


class Batcher(Generic[Item, Result]):
    """`write` gets the items of one batch, no two of the same `key`, and answers in their order.

    It must be repeatable: after TryLater, which may hide a success, the same items are written again until their
    patience is over. Any other exception is the fault of an item: the batch is then written one by one. So is a batch
    that failed because another transaction kept a row lock: its other items do not need that row.
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

    def hand_in(self, item: Item, answer: Answer[Result]) -> None:
        """Have it written, and `answer` told what `submit` would return or raise. LimitReached is raised at once."""
        size = self._size(item)
        full = len(self._queue) >= self._limits.max_waiting
        if full or self._queue_bytes + size > self._limits.max_waiting_bytes:
            message = f"too many {self._name} wait"
            raise LimitReached(message, reason=self._limits.full_reason, retry_after_seconds=0.2)
        self._queue.append(_Waiting(item, answer, self._key(item), size, monotonic()))
        self._queue_bytes += size
        self._depth.value = len(self._queue)
        self._arrived.set()

    async def submit(self, item: Item) -> Result:
        """The item's result, once it is durable. Raises its refusal, LimitReached at once when the queue is full, and
        Unavailable when the store could not be written to in time (then it may or may not have been written).
        """
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.hand_in(item, partial(_resolve, done))
        return await done

    async def run(self) -> None:
        """The loop; a duty. When it is cancelled, what still waits is told that it may try elsewhere."""
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
            interrupted = Unavailable("stopped while this was written", reason="DRAINING", metadata=OUTCOME_UNKNOWN)
            for waiting in batch:
                waiting.resolve(interrupted)
            for waiting in self._queue:
                waiting.resolve(Unavailable("stopped before this was written", reason="DRAINING"))
            self._queue.clear()
            self._queue_bytes = 0

    def _take(self) -> list[_Waiting[Item, Result]]:
        """The oldest that fit together. One larger than a batch goes alone; a second of a key waits for the next."""
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
        """Write until every item has its answer."""
        failures = 0
        while batch:
            try:
                return await self._write_once(batch)
            except TryLater as error:
                if error.reason == LOCK_TIMEOUT and len(batch) > 1:  # only one of them may wait for that lock
                    return await self._settle_one_by_one(batch)
                failures += 1
                wait_seconds = AGAIN.wait_seconds(failures, random.random(), error.retry_after_seconds)
                batch = self._still_patient(batch, error)
                metrics.count("tenure_batches_repeated_total", batcher=self._name)
            except Exception as error:  # noqa: BLE001  whatever is wrong with one item, its neighbours are not at fault
                if len(batch) == 1:
                    return self._blame(batch[0], error)
                _log.warning("a batch failed and is written one by one", extra={"batcher": self._name}, exc_info=True)
                return await self._settle_one_by_one(batch)
            await asyncio.sleep(wait_seconds if batch else 0)
        return None

    async def _settle_one_by_one(self, batch: list[_Waiting[Item, Result]]) -> None:
        for waiting in batch:
            await self._settle([waiting])

    async def _write_once(self, batch: list[_Waiting[Item, Result]]) -> None:
        began = monotonic()
        note_progress()  # a batch that is written again, or one by one, goes on with each write
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
            _log.error("this cannot be written", extra={"batcher": self._name, "key": str(waiting.key)}, exc_info=error)
        waiting.resolve(error)


def _resolve(done: asyncio.Future[Result], result: Result | Exception) -> None:
    if done.done():  # its caller went away
        return
    if isinstance(result, Exception):
        done.set_exception(result)
    else:
        done.set_result(result)
