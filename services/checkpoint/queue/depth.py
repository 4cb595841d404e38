"""Counts queued tasks and measures how long they wait, for operators and for autoscalers of workers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from services.checkpoint.page_tokens import read_token, write_token
from services.checkpoint.queries import QUERIES, QUEUE, fetch_all
from tenure.domain.errors import InvalidRequest
from tenure.domain.states import TERMINAL, TaskState
from tenure.domain.task import Priority
from tenure.runtime.observability import metrics
from tenure.runtime.process import rest
from tenure.runtime.store.postgres import Pool, pool_connection
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.wire.common import PRIORITIES, STATES, seconds, timestamp

# Live tasks by age, and held tasks by their last progress.

DEFAULT_PAGE: Final = 50
_LIVING: Final = tuple(state.value for state in TaskState if state not in TERMINAL)
_FIRST: Final = ("-infinity", "00000000-0000-0000-0000-000000000000")


async def list_aging(pool: Pool, tenant: str, request: pb.ListAgingRequest) -> pb.ListAgingResponse:
    """Returns one page; its token is the position of its last row. Raises InvalidRequest."""
    after, after_task_id = read_token(request.page_token, _FIRST)
    limit = request.page_size or DEFAULT_PAGE
    parameters: dict[str, Any] = {"tenant": tenant, "after_task_id": after_task_id, "limit": limit}
    if request.view == task_pb2.AGING_VIEW_HELD:
        statement, parameters["idle_seconds"] = QUERIES.aging_held, seconds(request.idle)
    else:
        statement = QUERIES.aging_oldest
        parameters |= {"after": after, "states": [_state(number) for number in request.states] or list(_LIVING)}
    async with pool_connection(pool) as connection:
        rows = await fetch_all(connection, statement, parameters)
    token = write_token(rows[-1][-1], rows[-1][0]) if len(rows) == limit else ""
    return pb.ListAgingResponse(tasks=[_task(row) for row in rows], next_page_token=token)


def _task(row: tuple[Any, ...]) -> task_pb2.AgingTask:
    task_id, state, reason, queue, loop, owner, attempt, step, epoch, ending, *times, _place = row
    created_at, updated_at, deadline_at, next_retry_at = times
    return task_pb2.AgingTask(
        task_id=task_id,
        state=STATES.to_wire(TaskState(state)),
        reason=reason,
        queue=queue,
        loop=loop,
        owner=owner,
        attempt=attempt,
        step=step,
        epoch=epoch,
        cancel_requested=ending,
        create_time=timestamp(created_at),
        update_time=timestamp(updated_at),
        deadline_time=timestamp(deadline_at),
        next_retry_time=None if next_retry_at is None else timestamp(next_retry_at),
    )


def _state(number: int) -> str:
    try:
        state = STATES.to_domain(number)
    except ValueError:
        raise InvalidRequest(violations=[("states", "contains an unknown state")]) from None
    if state in TERMINAL:
        raise InvalidRequest(violations=[("states", f"{state} is a terminal state; only live tasks are listed")])
    return state.value


INTERVAL_SECONDS: Final = 5.0
_PAUSE_FACTOR: Final = 10
"""A read costs time in proportion to the queues, so a pause that is this many times longer follows it."""
MAX_LISTED: Final = 1000
MAX_NAMED: Final = 100
"""Queues with their own metric labels in a process. Clients choose queue names, so the number needs a bound."""
OTHERS: Final = "(others)"


@dataclass(frozen=True, slots=True)
class Depth:
    """The depth of one queue and tier. `held_back`: of the queued tasks, those that more workers would not help.

    `stopped`: of these, those that a stop covers. `oldest` and `age_seconds` leave out held back tasks; None and 0 mean
    no task.
    """

    queue: str
    tier: Priority
    queued: int
    held_back: int
    stopped: int
    oldest: datetime | None
    age_seconds: float


class QueueDepths:
    """Reads the depths for all callers, however many, and uses only a small part of the database's time."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._sampling = asyncio.Lock()
        self._began_at = self._paused_until = float("-inf")
        self._depths: list[Depth] = []
        self._named: set[str] = set()
        self._reported: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Runs as a duty until cancelled: updates the metrics."""
        while True:
            self._report(await self.look())
            await rest(INTERVAL_SECONDS * random.uniform(0.8, 1.2))

    async def listed(self) -> list[task_pb2.QueueDepth]:
        """Returns depths by queue and priority: at most MAX_LISTED, the longest queues."""
        depths = sorted(await self.look(), key=lambda each: (each.queue, each.tier))
        return [
            task_pb2.QueueDepth(
                queue=each.queue,
                priority=PRIORITIES.to_wire(each.tier),
                queued=each.queued,
                held_back=each.held_back,
                stopped=each.stopped,
                oldest_queue_time=None if each.oldest is None else timestamp(each.oldest),
            )
            for each in depths
        ]

    async def look(self) -> list[Depth]:
        """Returns depths, longest first, read after the call began. Callers that arrived before a read began
        share it.
        """
        clock = asyncio.get_running_loop().time
        asked_at = clock()
        async with self._sampling:
            if self._began_at < asked_at:
                await rest(max(0.0, self._paused_until - clock()))
                began_at = clock()
                self._depths = await self._look()
                self._began_at, self._paused_until = began_at, clock() + _PAUSE_FACTOR * (clock() - began_at)
            return self._depths

    async def _look(self) -> list[Depth]:
        async with pool_connection(self._pool) as connection:
            rows = await fetch_all(connection, QUEUE.depth, {"most": MAX_LISTED})
        return [
            Depth(queue, Priority(priority), queued, held_back, stopped, oldest, max(0.0, age_seconds or 0.0))
            for queue, priority, queued, held_back, stopped, oldest, age_seconds in rows
        ]

    def _report(self, depths: Iterable[Depth]) -> None:
        sums: dict[tuple[str, str], tuple[int, int, int, float]] = dict.fromkeys(self._reported, (0, 0, 0, 0.0))
        for each in depths:
            key = (self._name(each.queue), each.tier.name)
            queued, held_back, stopped, age_seconds = sums.get(key, (0, 0, 0, 0.0))
            age_seconds = max(age_seconds, each.age_seconds)
            sums[key] = (queued + each.queued, held_back + each.held_back, stopped + each.stopped, age_seconds)
        for (queue, priority), (queued, held_back, stopped, age_seconds) in sums.items():
            metrics.gauge("tenure_queue_depth", queued, queue=queue, priority=priority)
            metrics.gauge("tenure_queue_held_back", held_back, queue=queue, priority=priority)
            metrics.gauge("tenure_queue_stopped", stopped, queue=queue, priority=priority)
            metrics.gauge("tenure_queue_oldest_age_seconds", age_seconds, queue=queue, priority=priority)
        self._reported = set(sums)

    def _name(self, queue: str) -> str:
        if queue not in self._named and len(self._named) < MAX_NAMED:
            self._named.add(queue)
        return queue if queue in self._named else OTHERS
