"""How much is queued, and for how long: for operators, and for whoever scales workers."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from services.checkpoint.queries import QUEUE, fetch_all, ledger_connection
from tenure.domain.task import Priority
from tenure.runtime import metrics
from tenure.runtime.duties import rest
from tenure.v1 import task_pb2
from tenure.wire.enums import PRIORITIES
from tenure.wire.times import timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from tenure.runtime.postgres import Pool

INTERVAL_SECONDS: Final = 5.0
_RESTS: Final = 10
"""A look costs what the queues are long: it is followed by a rest that is so many times longer."""
MOST_LISTED: Final = 1000
MOST_NAMED: Final = 100
"""Queues with a metric of their own, in the life of a process: their names are chosen by who submits."""
OTHERS: Final = "(others)"


@dataclass(frozen=True, slots=True)
class Depth:
    """One queue and tier. `oldest`, `age_seconds`: of what is not held back; None, 0: there is nothing."""

    queue: str
    tier: Priority
    queued: int
    held_back: int
    oldest: datetime | None
    age_seconds: float


class QueueDepths:
    """Looks for whoever asks, however many do, without taking more than a small part of the database's time."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._looking = asyncio.Lock()
        self._began_at = self._rested_at = float("-inf")
        self._depths: list[Depth] = []
        self._named: set[str] = set()
        self._told: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """A duty: for ever. Tells the metrics."""
        while True:
            self._tell(await self.look())
            await rest(INTERVAL_SECONDS * random.uniform(0.8, 1.2))

    async def listed(self) -> list[task_pb2.QueueDepth]:
        """By queue and priority; at most MOST_LISTED, of more the longest."""
        found = sorted(await self.look(), key=lambda each: (each.queue, each.tier))
        return [
            task_pb2.QueueDepth(
                queue=each.queue,
                priority=PRIORITIES.to_wire(each.tier),
                queued=each.queued,
                held_back=each.held_back,
                oldest_queue_time=None if each.oldest is None else timestamp(each.oldest),
            )
            for each in found
        ]

    async def look(self) -> list[Depth]:
        """The longest first, as of after the question. Those who asked before a look began share it."""
        clock = asyncio.get_running_loop().time
        asked_at = clock()
        async with self._looking:
            if self._began_at < asked_at:
                await rest(max(0.0, self._rested_at - clock()))
                began_at = clock()
                self._depths = await self._look()
                self._began_at, self._rested_at = began_at, clock() + _RESTS * (clock() - began_at)
            return self._depths

    async def _look(self) -> list[Depth]:
        async with ledger_connection(self._pool) as connection:
            rows = await fetch_all(connection, QUEUE.depth, {"most": MOST_LISTED})
        return [
            Depth(queue, Priority(priority), queued, held_back, oldest, max(0.0, age_seconds or 0.0))
            for queue, priority, queued, held_back, oldest, age_seconds in rows
        ]

    def _tell(self, depths: Iterable[Depth]) -> None:
        sums: dict[tuple[str, str], tuple[int, int, float]] = dict.fromkeys(self._told, (0, 0, 0.0))
        for each in depths:
            key = (self._name(each.queue), each.tier.name)
            queued, held_back, age_seconds = sums.get(key, (0, 0, 0.0))
            sums[key] = (queued + each.queued, held_back + each.held_back, max(age_seconds, each.age_seconds))
        for (queue, priority), (queued, held_back, age_seconds) in sums.items():
            metrics.gauge("tenure_queue_depth", queued, queue=queue, priority=priority)
            metrics.gauge("tenure_queue_held_back", held_back, queue=queue, priority=priority)
            metrics.gauge("tenure_queue_oldest_age_seconds", age_seconds, queue=queue, priority=priority)
        self._told = set(sums)

    def _name(self, queue: str) -> str:
        if queue not in self._named and len(self._named) < MOST_NAMED:
            self._named.add(queue)
        return queue if queue in self._named else OTHERS
