"""Simulated agent tasks that come and go while a test replaces keys or certificates: none of them may notice."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from typing import Final

from tenure.client import Client
from tenure.v1 import task_pb2
from tests.end_to_end.installation import Installation, check_whole

MODEL: Final = "sim-e2e-keyed-paced"
EFFECTS: Final = [f"keyed {number}" for number in range(1, 6)]
AT_ONCE: Final = 4
CHECKED_WHOLE: Final = 8


@dataclass(slots=True)
class SteadyLoad:
    """Tasks with five model calls and five effects each. `ended`: by the names of their effects."""

    install: Installation
    ended: dict[str, task_pb2.Task] = field(default_factory=dict)

    async def run_while(self, replacing: asyncio.Task[None], client: Client | None = None) -> None:
        """Runs tasks until the replacement has ended, and at least once more after that. Raises its error.

        `client`: submits the tasks, if its identity is what the test replaces.
        """
        submitting = Installation(self.install.stack, client or self.install.client)
        has_ended = False
        while not has_ended:
            has_ended = replacing.done()
            goals = [uuid.uuid4().hex for _ in range(AT_ONCE)]
            ids = [await submitting.submit(MODEL, goal) for goal in goals]
            for goal, task_id in zip(goals, ids, strict=True):
                self.ended[goal] = await self.install.ended(task_id)
        await replacing

    async def check(self) -> None:
        """No task failed, lost its claim, or made an effect twice."""
        endings = {(task.state, task.claim_count, task.attempt) for task in self.ended.values()}
        assert endings == {(task_pb2.TASK_STATE_SUCCEEDED, 1, 1)}
        effects = {goal: self.install.effects(goal) for goal in self.ended}
        assert effects == dict.fromkeys(self.ended, EFFECTS)
        for task in list(self.ended.values())[-CHECKED_WHOLE:]:
            check_whole([entry async for entry in self.install.client.entries(task.task_id)])
