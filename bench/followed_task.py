"""A task seen through the public API: who runs it since when, by our own clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from tenure.client import Client
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api

PATIENCE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Start:
    """The task became RUNNING. `at`: when we were told, so a little later than it was durable."""

    at: float
    owner: str
    epoch: int


@dataclass(slots=True)
class FollowedTask:
    """What the watch has brought so far."""

    task_id: str
    starts: list[Start] = field(default_factory=list)
    step: int = 0
    ended: bool = False
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def owner(self) -> str:
        """Who was the last to open it."""
        return self.starts[-1].owner

    async def until(self, holds: Callable[[FollowedTask], bool]) -> None:
        """Waits for news that make it so. TimeoutError after a minute."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._changed:
            await self._changed.wait_for(lambda: holds(self))

    async def next_start(self, known: int) -> Start:
        """The first start after those known."""
        await self.until(lambda task: len(task.starts) > known)
        return self.starts[known]

    async def follow(self, client: Client) -> None:
        """Until the task ends."""
        async for event in client.watch(self.task_id):
            if event.HasField("entry"):
                async with self._changed:
                    self._take(event.entry)
                    self._changed.notify_all()
        async with self._changed:
            self.ended = True
            self._changed.notify_all()

    def _take(self, entry: ledger_pb2.Entry) -> None:
        self.step = max(self.step, entry.step)
        moved = entry.body.transition
        if entry.body.HasField("transition") and moved.to_state == task_pb2.TASK_STATE_RUNNING:
            self.starts.append(Start(monotonic(), entry.actor, entry.epoch))


@asynccontextmanager
async def submitted(client: Client, model: str) -> AsyncIterator[FollowedTask]:
    """A new task, followed inside the block, cancelled at its end when it has not ended by then."""
    request = api.SubmitTaskRequest(agent=task_pb2.AgentSpec(model=model))
    followed = FollowedTask((await client.submit("measure", request=request)).task_id)
    following = asyncio.create_task(followed.follow(client))
    try:
        yield followed
    finally:
        if not followed.ended:
            await client.cancel(followed.task_id, "measured")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await following
