"""Group commit: one loop takes all that waits, has it committed as one batch, and resolves the callers.

There is no window: while a batch is being written the next one gathers, so batches grow with the load and a commit
alone is never delayed. A caller that goes away does not take its batch with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tenure.domain.errors import LimitReached, TenureError, Unavailable
from tenure.runtime import metrics
from tenure.runtime.status import OUTCOME_UNKNOWN
from tenure.v1 import checkpoint_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.checkpoint.prepared import PreparedCommit

Answer = Callable[[pb.CommitResponse | Exception], None]
"""Hears the result of one commit, exactly once; must not raise."""

_log: Final = logging.getLogger(__name__)
_BATCHES: Final = metrics.cell("tenure_commit_batches_total")
_COMMITS: Final = metrics.cell("tenure_commits_total")
_WAITING: Final = metrics.cell("tenure_commits_waiting")
_BATCH_SECONDS: Final = metrics.histogram("tenure_commit_batch_seconds")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of one batch and of what may wait for it."""

    batch_commits: int = 128
    batch_bytes: int = 1024 * 1024
    waiting_commits: int = 8192
    waiting_bytes: int = 128 * 1024 * 1024


class Committer(Protocol):
    """Makes a batch durable; the results in order. Raises a TenureError that is the result of all."""

    async def commit(self, commits: Sequence[PreparedCommit]) -> Sequence[pb.CommitResponse | Exception]: ...


class _Waiting(NamedTuple):
    commit: PreparedCommit
    answer: Answer


class Batcher:
    """Start `run` as a duty. `submit` may be called at any time; what waits when the duty ends is refused.

    `on_refusal` is told of every commit that got an error, besides its caller.
    """

    def __init__(
        self,
        committer: Committer,
        limits: BatchLimits | None = None,
        on_refusal: Callable[[PreparedCommit, Exception], None] | None = None,
    ) -> None:
        self._committer = committer
        self._on_refusal = on_refusal
        self._limits = limits or BatchLimits()
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._there_is_work = asyncio.Event()

    def submit(self, commit: PreparedCommit, answer: Answer) -> None:
        """Have it committed and answered. Raises LimitReached when too much waits already."""
        full = len(self._waiting) >= self._limits.waiting_commits
        if full or self._bytes + commit.size_bytes > self._limits.waiting_bytes:
            raise LimitReached("too many commits wait", reason="COMMIT_QUEUE_FULL", retry_after_seconds=0.2)
        self._waiting.append(_Waiting(commit, answer))
        self._bytes += commit.size_bytes
        _WAITING.value = len(self._waiting)
        self._there_is_work.set()

    async def commit(self, commit: PreparedCommit) -> pb.CommitResponse:
        """The same for one caller that waits. Cancelling it cancels nothing but its waiting."""
        done: asyncio.Future[pb.CommitResponse] = asyncio.get_running_loop().create_future()
        self.submit(commit, partial(_resolve, done))
        return await done

    async def run(self) -> None:
        """Write batch after batch until cancelled."""
        try:
            while True:
                await self._there_is_work.wait()
                await self._write(self._take())
                if not self._waiting:
                    self._there_is_work.clear()
        finally:
            self._refuse_all()

    async def _write(self, batch: list[_Waiting]) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            results = await self._committer.commit([one.commit for one in batch])
        except TenureError as error:
            results = [error] * len(batch)
        except BaseException:
            lost = Unavailable("the commit was interrupted", metadata=OUTCOME_UNKNOWN)
            self._resolve(batch, [lost] * len(batch))
            raise
        _BATCHES.value += 1
        _COMMITS.value += len(batch)
        _BATCH_SECONDS.observe(clock() - began)
        self._resolve(batch, results)

    def _resolve(self, batch: Sequence[_Waiting], results: Sequence[pb.CommitResponse | Exception]) -> None:
        for one, result in zip(batch, results, strict=True):
            one.answer(result)
            if self._on_refusal is not None and isinstance(result, Exception):
                self._on_refusal(one.commit, result)

    def _take(self) -> list[_Waiting]:
        """The oldest, within the bounds; a second commit of a task waits for the next batch, in its place."""
        batch: list[_Waiting] = []
        kept: list[_Waiting] = []
        tasks: set[str] = set()
        size = 0
        while self._waiting and len(batch) < self._limits.batch_commits:
            one = self._waiting[0]
            if batch and size + one.commit.size_bytes > self._limits.batch_bytes:
                break
            self._waiting.popleft()
            if one.commit.task_id in tasks:
                kept.append(one)
                continue
            tasks.add(one.commit.task_id)
            size += one.commit.size_bytes
            batch.append(one)
        self._waiting.extendleft(reversed(kept))
        self._bytes -= size
        _WAITING.value = len(self._waiting)
        return batch

    def _refuse_all(self) -> None:
        """The process ends: nothing of this was written."""
        waiting, self._waiting = list(self._waiting), deque()
        self._bytes = 0
        for one in waiting:
            one.answer(Unavailable("the server is draining", reason="DRAINING"))


def _resolve(done: asyncio.Future[pb.CommitResponse], result: pb.CommitResponse | Exception) -> None:
    if done.done():  # its caller went away
        return
    if isinstance(result, Exception):
        done.set_exception(result)
    else:
        done.set_result(result)
