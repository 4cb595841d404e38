"""A task that is watched through the public API, with the starts of its workers by this process's clock."""

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
    """A transition to RUNNING. `at` is when it was received, a little later than it was durable."""

    at: float
    owner: str
    epoch: int


@dataclass(slots=True)
class FollowedTask:
    """The starts and the step of a task, by the entries that were received so far."""

    task_id: str
    starts: list[Start] = field(default_factory=list)
    step: int = 0
    ended: bool = False
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def owner(self) -> str:
        """The worker that opened the task last."""
        return self.starts[-1].owner

    async def until(self, holds: Callable[[FollowedTask], bool]) -> None:
        """Waits until the condition holds, checked at each entry. Raises TimeoutError after a minute."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._changed:
            await self._changed.wait_for(lambda: holds(self))

    async def next_start(self, known: int) -> Start:
        """Waits for, and returns, the first start after the first `known` ones."""
        await self.until(lambda task: len(task.starts) > known)
        return self.starts[known]

    async def follow(self, client: Client) -> None:
        """Reads the task's entries until the task ends."""
        async for event in client.watch(self.task_id):
            if event.HasField("entry"):
                async with self._changed:
                    self._apply(event.entry)
                    self._changed.notify_all()
        async with self._changed:
            self.ended = True
            self._changed.notify_all()

    def _apply(self, entry: ledger_pb2.Entry) -> None:
        self.step = max(self.step, entry.step)
        transition = entry.body.transition
        if entry.body.HasField("transition") and transition.to_state == task_pb2.TASK_STATE_RUNNING:
            self.starts.append(Start(monotonic(), entry.actor, entry.epoch))


@asynccontextmanager
async def submitted(client: Client, model: str) -> AsyncIterator[FollowedTask]:
    """Submits a task and follows it inside the block. Cancels it at the end of the block if it has not ended."""
    request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(agent=task_pb2.AgentSpec(model=model)))
    followed = FollowedTask((await client.submit("measure", request=request)).task_id)
    following = asyncio.create_task(followed.follow(client))
    try:
        yield followed
    finally:
        if not followed.ended:
            await client.cancel(followed.task_id, "measured")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await following
