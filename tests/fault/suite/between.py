"""Operators who act between a decision and its execution: every failpoint is a place where somebody may be overtaken.

All failpoints of all processes are armed to stop there once and to say so. Whoever is stopped goes on when an operator
has done something to a task, at the latest after HOLD_SECONDS: it may hold the lock that the operator waits for. What
is done, to which task, and who goes on first, is drawn from the seed.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from tenure.audit.history import Answer, Method
from tenure.domain.errors import Refused, TryLater
from tenure.domain.states import TERMINAL, TaskState
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import task_pb2
from tenure.wire.enums import STATES
from tests.fault.suite.installation import Installation
from tests.fault.suite.schedule import kind_of
from tests.fault.suite.traffic import Submitted, Traffic, cancel, tenant_of

HOLD_SECONDS: Final = 1.5
CALL_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.03
EXTRA_TOKENS: Final = 1000


class Action(StrEnum):
    """What an operator may do to a task at any time."""

    CANCEL = "cancel"
    REQUEUE = "requeue"
    CLOSE_OUT = "close out"
    TRANSFER = "transfer"
    GRANT = "grant"


@dataclass(frozen=True, slots=True)
class Done:
    """An action that was acknowledged, and the task as the answer showed it. `epoch`: before it was asked for."""

    action: Action
    task_id: str
    attempt: int
    sequence: int
    epoch: int
    at: str

    def __str__(self) -> str:
        return f"{self.action} at {self.at} (attempt {self.attempt}, sequence {self.sequence})"


@dataclass(slots=True)
class Between:
    """`folder`: where those who are stopped leave their names. `met`: each failpoint with the actions done there."""

    folder: Path
    seed: int
    names: tuple[str, ...]
    actions: tuple[Action, ...] = tuple(Action)
    done: list[Done] = field(default_factory=list)
    met: dict[str, list[Action]] = field(default_factory=dict)
    _luck: random.Random = field(default_factory=random.Random)
    _going: list[asyncio.Task[None]] = field(default_factory=list)
    _over: bool = False

    def __post_init__(self) -> None:
        self._luck.seed(self.seed)

    def all_met(self) -> bool:
        """Whether each of the failpoints was reached, and its process goes on."""
        return len(self.met) == len(self.names) and all(one.done() for one in self._going)

    async def leave(self) -> None:
        """Nobody acts any more; what was begun is finished. The tasks are judged afterwards."""
        self._over = True
        await asyncio.gather(*self._going)

    async def arm(self, install: Installation) -> None:
        """Every process that has one of them is killed, and comes back armed. Returns when they serve."""
        before = len(install.keeper.deaths)
        armed = {name: self._armed(kind_of(name)) for name in install.stack.services}
        for name, settings in armed.items():
            if settings:
                install.keeper.expect_death(name, armed=settings).kill()
        for name, settings in armed.items():
            if settings:
                await install.keeper.serves_or_died(name, before)

    def _armed(self, service: str) -> str:
        """TENURE_FAILPOINTS of a service's process."""
        return ";".join(
            f"{name}=1#touch({self._reached(name)})->1#wait({self._go(name)})"
            for name in self.names
            if name.startswith(f"{service}.")
        )

    async def run(self, install: Installation) -> None:
        """Until cancelled: whoever is stopped meets an operator."""
        try:
            while True:
                for name in self.names:
                    if name not in self.met and self._reached(name).exists():
                        self.met[name] = []
                        self._going.append(asyncio.create_task(self._overtake(install, name)))
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for name in self.names:
                self._go(name).touch()
            await asyncio.gather(*self._going)

    async def _overtake(self, install: Installation, name: str) -> None:
        """One to three actions, as long as it is stopped; what was begun is finished either way."""
        if install.traffic is None or self._over:
            self._go(name).touch()
            return
        actions = asyncio.create_task(self._act(install.traffic, name))
        await asyncio.wait([actions], timeout=HOLD_SECONDS * self._luck.uniform(0.3, 1.0))
        self._go(name).touch()
        await actions

    async def _act(self, traffic: Traffic, name: str) -> None:
        tasks = [task for task in traffic.tasks if task.task_id]
        for task in self._luck.sample(tasks, min(len(tasks), self._luck.randint(1, 3))):
            with suppress(TryLater):
                seen = await traffic.user_of(task).get(task.task_id)
                await self._do(traffic, task, self._choose(STATES.to_domain(seen.state)), name, seen.epoch)

    def _choose(self, state: TaskState) -> Action:
        """Mostly what can be done in this state."""
        wanted = {Action.REQUEUE} if state in TERMINAL else {*self.actions} - {Action.REQUEUE}
        fitting = sorted(wanted & {*self.actions})
        return self._luck.choice(fitting if fitting and self._luck.random() < 0.9 else sorted(self.actions))

    async def _do(self, traffic: Traffic, task: Submitted, action: Action, name: str, epoch: int) -> None:
        self.met[name].append(action)
        if action is Action.CANCEL:
            before = len(traffic.log.operations)
            await cancel(traffic.log, task.task_id, "operator", traffic.user_of(task), tenant_of(task))
            mine = [one for one in traffic.log.operations[before:] if one.task_id == task.task_id]
            if mine and mine[-1].method is Method.CANCEL and mine[-1].answer is Answer.OK:
                seen = await traffic.user_of(task).get(task.task_id)
                self.done.append(Done(action, task.task_id, seen.attempt, mine[-1].sequence or 0, epoch, name))
            return
        with suppress(Refused):
            answered = await _ask(traffic, task, action)
            self.done.append(Done(action, task.task_id, answered.attempt, answered.sequence, epoch, name))

    def _reached(self, name: str) -> Path:
        return self.folder / f"{name}.reached"

    def _go(self, name: str) -> Path:
        return self.folder / f"{name}.go"


async def _ask(traffic: Traffic, task: Submitted, action: Action) -> task_pb2.Task:
    user = traffic.user_of(task)
    known: dict[str, Any] = {"task_id": task.task_id, "reason": "overtaken"}
    repeated = {**known, "request_id": str(uuid4())}
    match action:
        case Action.REQUEUE:
            asked = admin.RequeueTaskRequest(**repeated, extra_tokens=EXTRA_TOKENS, extra_steps=10)
            return (await user.admin.RequeueTask(asked, timeout=CALL_SECONDS)).task
        case Action.CLOSE_OUT:
            out = admin.CloseOutTaskRequest(**repeated, to_state=task_pb2.TASK_STATE_FAILED, result="by hand")
            return (await user.admin.CloseOutTask(out, timeout=CALL_SECONDS)).task
        case Action.GRANT:
            grant = admin.GrantBudgetRequest(**repeated, extra_tokens=EXTRA_TOKENS)
            return (await user.admin.GrantBudget(grant, timeout=CALL_SECONDS)).task
        case _:
            return (await user.admin.TransferTask(admin.TransferTaskRequest(**known), timeout=CALL_SECONDS)).task
