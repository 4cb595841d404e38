"""Group commit: one loop writes all waiting items together as soon as the previous write is done.

    async def write(batch: Sequence[Commit]) -> Sequence[Receipt | TenureError]: …

    commits = Batcher("commits", write, key=lambda commit: commit.task_id, size=lambda commit: len(commit.body))
    duties.start("commits", commits.run)
    receipt = await commits.submit(commit)

There is no time window: a single item is never delayed, and batches grow with the load. A refusal is the result of one
item and does not affect the others of its batch. A batch that fails is divided until the item at fault is alone; then
the next batches do not wait for it. A caller that is cancelled does not cancel the write of its item.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final, Generic, TypeVar

from tenure.domain.errors import LimitReached, TenureError, TryLater, Unavailable
from tenure.domain.retry import RetryPolicy
from tenure.runtime.observability import metrics
from tenure.runtime.process import note_progress, resting
from tenure.runtime.rpc.status import DRAINING, LOCK_TIMEOUT, OUTCOME_UNKNOWN, STATEMENT_TIMEOUT

_log: Final = logging.getLogger(__name__)
AGAIN: Final = RetryPolicy(initial_seconds=0.02, factor=2.0, cap_seconds=1.0)
TRIES_TOGETHER: Final = 2
"""After so many failures in a row a batch is divided. One failure is mostly a connection that the server had closed."""
_MAY_BE_ONE_ITEM: Final = frozenset({LOCK_TIMEOUT, STATEMENT_TIMEOUT, "OUT_OF_MEMORY", "TRANSACTION_CONFLICT"})
_SLOW: Final = frozenset({LOCK_TIMEOUT, STATEMENT_TIMEOUT})
"""Reasons of failures that may take seconds each, so that halves would take too long."""

Item = TypeVar("Item")
Result = TypeVar("Result")
Write = Callable[[Sequence[Item]], Awaitable[Sequence[Result | TenureError]]]
Answer = Callable[[Result | Exception], None]
"""Receives the result of one item exactly once. It must not raise."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The bounds of one batch and of the queue. `full_reason`: the reason of LimitReached when the queue is full.

    `patience_seconds`: how long an item is retried while the store is unavailable, or fails each time it gets the item;
    None: without end.
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
    items is over. An error that is not an outage for sure (`_may_be_one_item`) may be the fault of one item: the batch
    is divided until that item is alone. Alone it gets its error, or, after TryLater, is written again beside the next
    batches (a suspect).
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
        self._suspects: list[_Waiting[Item, Result]] = []
        self._suspect_failures, self._suspects_due = 0, 0.0
        self._arrived = asyncio.Event()
        self._batches = metrics.cell("tenure_batches_total", batcher=name)
        self._items = metrics.cell("tenure_batched_items_total", batcher=name)
        self._depth = metrics.cell("tenure_batch_items_waiting", batcher=name)
        self._seconds = metrics.histogram("tenure_batch_seconds", batcher=name)
        self._item_seconds = metrics.histogram("tenure_batch_item_seconds", batcher=name)

    def enqueue(self, item: Item, answer: Answer[Result]) -> None:
        """Queues an item. `answer` later gets what `submit` would return or raise. Raises LimitReached at once."""
        size = self._size(item)
        full = len(self._queue) + len(self._suspects) >= self._limits.max_waiting
        if full or self._queue_bytes + size > self._limits.max_waiting_bytes:
            message = f"the queue of {self._name} is full"
            raise LimitReached(message, reason=self._limits.full_reason, retry_after_seconds=0.2)
        self._queue.append(_Waiting(item, answer, self._key(item), size, monotonic(), self._item_seconds))
        self._queue_bytes += size
        self._depth.value += 1
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
                if batch := self._take():
                    await self._settle(batch)
                elif self._suspects:
                    await self._rest(max(0.0, self._suspects_due - monotonic()))
                else:
                    await self._rest(None)
                await self._retry_suspects()
        finally:
            interrupted = Unavailable(
                "the service stopped while this was being written", reason=DRAINING, metadata=OUTCOME_UNKNOWN
            )
            for waiting in (*batch, *self._suspects):
                waiting.resolve(interrupted)
            for waiting in self._queue:
                waiting.resolve(Unavailable("the service stopped before this was written", reason=DRAINING))
            self._depth.value -= len(self._queue)
            self._queue.clear()
            self._suspects.clear()
            self._queue_bytes = 0

    async def _rest(self, seconds: float | None) -> None:
        """Waits for an item, or until the suspects are due."""
        self._arrived.clear()
        with resting():
            if seconds is None:
                await self._arrived.wait()
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._arrived.wait()

    def _take(self) -> list[_Waiting[Item, Result]]:
        """Removes the oldest items that fit in one batch from the queue and returns them.

        An item larger than a batch goes alone. A second item with the same key waits for the next batch, and one with
        the key of a suspect until the suspect has its answer.
        """
        taken: list[_Waiting[Item, Result]] = []
        later: list[_Waiting[Item, Result]] = []
        keys: set[Hashable] = {suspect.key for suspect in self._suspects}
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
        self._depth.value -= len(taken)
        return taken

    async def _settle(self, batch: list[_Waiting[Item, Result]]) -> None:
        """Writes the batch, again or in parts if necessary, until every item has its answer or is a suspect."""
        parts = deque([_Part(batch)])
        while parts:
            part = parts.popleft()
            error = await self._attempt(part.items)
            if error is None:
                continue
            part.failures += 1
            if part.failures == 1 and part.items is batch:
                self._log_failure(batch, error)
            if not isinstance(error, TryLater):
                if len(part.items) == 1:
                    self._blame(part.items[0], error)
                else:
                    parts.extend(part.divided(failures=0))
                continue
            if error.reason != LOCK_TIMEOUT or len(part.items) == 1:  # the others had no try without the locked row
                part.items = self._still_patient(part.items, error)
            if _may_be_one_item(error) and (part.failures >= TRIES_TOGETHER or error.reason in _SLOW):
                if len(part.items) == 1:
                    self._suspect(part.items[0])
                else:
                    parts.extend(part.divided(failures=part.failures, alone=error.reason in _SLOW))
            elif part.items:
                parts.append(part)
                await asyncio.sleep(AGAIN.wait_seconds(part.failures, random.random(), error.retry_after_seconds))

    async def _attempt(self, items: list[_Waiting[Item, Result]]) -> Exception | None:
        """Writes items. Returns the error; None: each has its answer."""
        try:
            await self._write_once(items)
        except TryLater as error:
            metrics.count("tenure_batches_repeated_total", batcher=self._name)
            return error
        except Exception as error:  # noqa: BLE001  an error of one item must not fail the others
            return error
        return None

    def _suspect(self, waiting: _Waiting[Item, Result]) -> None:
        """Leaves an item that failed alone to `_retry_suspects`."""
        if not self._suspects:
            self._suspect_failures, self._suspects_due = 0, 0.0
        self._suspects.append(waiting)

    async def _retry_suspects(self) -> None:
        """Writes each suspect alone, until one fails again: then the others wait, too, because it may be an outage."""
        while self._suspects and monotonic() >= self._suspects_due:
            waiting = self._suspects[0]
            error = await self._attempt([waiting])
            del self._suspects[0]
            if error is None:
                continue
            if not isinstance(error, TryLater):
                self._blame(waiting, error)
                continue
            self._suspects += self._still_patient([waiting], error)
            self._suspect_failures += 1
            wait_seconds = AGAIN.wait_seconds(self._suspect_failures, random.random(), error.retry_after_seconds)
            self._suspects_due = monotonic() + wait_seconds

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

    def _log_failure(self, batch: list[_Waiting[Item, Result]], error: Exception) -> None:
        fields = {"batcher": self._name, "items": len(batch), "error": str(error), "cause": _cause(error)}
        _log.warning("a batch could not be written; it is tried again or divided", extra=fields)

    def _blame(self, waiting: _Waiting[Item, Result], error: Exception) -> None:
        fields = {"batcher": self._name, "key": str(waiting.key), "error": str(error), "cause": _cause(error)}
        _log.error(
            "an item cannot be written", extra=fields, exc_info=None if isinstance(error, TenureError) else error
        )
        waiting.resolve(error)


@dataclass(slots=True, eq=False)
class _Part(Generic[Item, Result]):
    """Items that are written together. `failures`: how often that failed in a row."""

    items: list[_Waiting[Item, Result]]
    failures: int = 0

    def divided(self, *, failures: int, alone: bool = False) -> list[_Part[Item, Result]]:
        """Returns the halves, or each item alone."""
        size = 1 if alone else max(1, (len(self.items) + 1) // 2)
        starts = range(0, len(self.items), size)
        return [_Part(self.items[start : start + size], failures) for start in starts]


def _may_be_one_item(error: TryLater) -> bool:
    """Whether an item may be at fault: the store took the batch, and then gave it up or lost the connection."""
    return error.reason in _MAY_BE_ONE_ITEM or OUTCOME_UNKNOWN.items() <= error.metadata.items()


def _cause(error: Exception) -> str:
    """Returns the first line of the cause: the text of a database may go on with the statement."""
    return str(error.__cause__ or error).partition("\n")[0]


def _resolve(done: asyncio.Future[Result], result: Result | Exception) -> None:
    if done.done():  # the caller was cancelled
        return
    if isinstance(result, Exception):
        done.set_exception(result)
    else:
        done.set_result(result)
