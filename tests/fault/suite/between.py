"""Operators who act between a decision and its execution: every failpoint is a place where a process may be overtaken.

All failpoints of all processes are armed to stop there once and to say so. A stopped process goes on when an operator
has done something to a task, at the latest HOLD_SECONDS after the operator began: it may hold the lock that the
operator waits for. A seed gives each failpoint its first action; as many seeds in a row as there are actions give it
all of them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from checker.history import Method, OperationResult
from tenure.domain.errors import Refused, TryLater
from tenure.domain.states import TERMINAL, TaskState
from tenure.runtime.failpoints import FAILPOINTS
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.common import STATES
from tests.fault.suite.installation import Installation
from tests.fault.suite.schedule import kind_of
from tests.fault.suite.traffic import Submitted, Traffic, cancel, tenant_of

HOLD_SECONDS: Final = 1.5
MEET_SECONDS: Final = 10.0
"""How long a process stays stopped while there is no task, or no ledger, that an operator could act on."""
LOOKED_AT: Final = 6
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


def first_action(name: str, seed: int) -> Action:
    """What is surely done while a process is stopped at this failpoint."""
    actions = list(Action)
    return actions[([*FAILPOINTS].index(name) + seed) % len(actions)]


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
    """`folder`: where those who are stopped leave their names. `met`: each failpoint that was reached, with the actions
    that began while it held its process; without any it has to be met again. `also`: what else is armed. `earlier`: the
    tasks that operators act on while there is no other: a create that is held holds all creates beside it.
    """

    folder: Path
    seed: int
    names: tuple[str, ...]
    also: tuple[str, ...] = ()
    earlier: tuple[Submitted, ...] = ()
    done: list[Done] = field(default_factory=list)
    met: dict[str, list[Action]] = field(default_factory=dict)
    _going: list[asyncio.Task[None]] = field(default_factory=list)
    _newest_at: float = field(default_factory=time.monotonic)
    _over: bool = False

    def nothing_left(self, quiet_seconds: float) -> bool:
        """Whether all processes go on, and each failpoint was reached, or none for so long."""
        all_met, quiet = len(self.met) == len(self.names), time.monotonic() - self._newest_at > quiet_seconds
        return (all_met or quiet) and all(one.done() for one in self._going)

    def begin(self) -> None:
        """All processes serve: from now on it is quiet while no process reaches a failpoint."""
        self._newest_at = time.monotonic()

    async def leave(self) -> None:
        """No operator acts any more, and all begun actions are finished. The tasks are checked afterwards."""
        self._over = True
        await asyncio.gather(*self._going)

    async def arm(self, install: Installation) -> None:
        """Every process that has one of them is killed, and comes back armed. Returns when the ledger serves: the
        others have failpoints on their way to serving, where an operator needs tasks to act on.
        """
        before = len(install.keeper.deaths)
        armed = {name: self._armed(kind_of(name)) for name in install.stack.services}
        for name, settings in armed.items():
            if settings:
                install.keeper.expect_death(name, armed=settings).kill()
        for name, settings in armed.items():
            if settings and kind_of(name) == "checkpoint":
                await install.keeper.serves_or_died(name, before)

    def _armed(self, service: str) -> str:
        """TENURE_FAILPOINTS of a service's process."""
        own = [name for name in self.names if name.startswith(f"{service}.")]
        also = [one for one in self.also if one.startswith(f"{service}.") and one.partition("=")[0] not in own]
        return ";".join([f"{name}=1#touch({self._reached(name)})->1#wait({self._go(name)})" for name in own] + also)

    async def run(self, install: Installation) -> None:
        """Until cancelled: each stopped process meets an operator."""
        try:
            while True:
                for name in self.names:
                    if name not in self.met and self._reached(name).exists():
                        self.met[name], self._newest_at = [], time.monotonic()
                        self._going.append(asyncio.create_task(self._overtake(install, name)))
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for name in self.names:
                self._go(name).touch()
            await asyncio.gather(*self._going)

    async def _overtake(self, install: Installation, name: str) -> None:
        """One to three actions, as long as it is stopped; what was begun is finished either way."""
        began = asyncio.Event()
        actions = asyncio.create_task(self._act(install, name, began))
        waiting = asyncio.create_task(began.wait())
        await asyncio.wait([actions, waiting], timeout=MEET_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        await asyncio.wait([actions], timeout=HOLD_SECONDS * self._rng(name).uniform(0.3, 1.0))
        self._go(name).touch()
        await actions

    async def _act(self, install: Installation, name: str, began: asyncio.Event) -> None:
        rng = self._rng(name)
        actions = [first_action(name, self.seed), *rng.choices([*Action], k=rng.randint(0, 2))]
        while actions and not self._over and not self._go(name).exists():
            with suppress(TryLater):
                traffic = install.traffic
                chosen = None if traffic is None else await _choose(traffic, self.earlier, actions[0], rng)
                if traffic is not None and chosen is not None and not self._go(name).exists():
                    began.set()
                    await self._do(traffic, *chosen, actions.pop(0), name)
                    continue
            await asyncio.sleep(LOOK_SECONDS)

    async def _do(self, traffic: Traffic, task: Submitted, epoch: int, action: Action, name: str) -> None:
        self.met[name].append(action)
        if action is Action.CANCEL and task in traffic.tasks:  # the history of this trial has no earlier tasks
            before = len(traffic.log.operations)
            await cancel(traffic.log, task.task_id, "operator", traffic.user_of(task), tenant_of(task))
            mine = [one for one in traffic.log.operations[before:] if one.task_id == task.task_id]
            if mine and mine[-1].method is Method.CANCEL and mine[-1].answer is OperationResult.OK:
                seen = await traffic.user_of(task).get(task.task_id)
                self.done.append(Done(action, task.task_id, seen.attempt, mine[-1].sequence or 0, epoch, name))
            return
        with suppress(Refused):
            answered = await _ask(traffic, task, action)
            self.done.append(Done(action, task.task_id, answered.attempt, answered.sequence, epoch, name))

    def _rng(self, name: str) -> random.Random:
        """Of one failpoint: what is drawn there does not depend on which one is reached first."""
        return random.Random(f"{self.seed} {name}")

    def _reached(self, name: str) -> Path:
        return self.folder / f"{name}.reached"

    def _go(self, name: str) -> Path:
        return self.folder / f"{name}.go"


async def _choose(
    traffic: Traffic, earlier: Sequence[Submitted], action: Action, rng: random.Random
) -> tuple[Submitted, int] | None:
    """A task with its epoch: one that this can be done to if there is any, and rather one that a worker holds."""
    known = [task for task in traffic.tasks if task.task_id] or earlier
    looked_at = rng.sample(known, min(len(known), LOOKED_AT))
    seen = await asyncio.gather(*(traffic.user_of(task).get(task.task_id) for task in looked_at))
    if not looked_at:
        return None
    task, shown = max(zip(looked_at, seen, strict=True), key=lambda one: _fits(action, STATES.to_domain(one[1].state)))
    return task, shown.epoch


def _fits(action: Action, state: TaskState) -> int:
    if action is Action.REQUEUE:
        return state in TERMINAL
    return 0 if state in TERMINAL else 2 if state is TaskState.RUNNING else 1


async def _ask(traffic: Traffic, task: Submitted, action: Action) -> task_pb2.Task:
    user = traffic.user_of(task)
    known: dict[str, Any] = {"task_id": task.task_id, "reason": "overtaken"}
    repeated = {**known, "request_id": str(uuid4())}
    match action:
        case Action.REQUEUE:
            request = admin.RequeueTaskRequest(**repeated, extra_tokens=EXTRA_TOKENS, extra_steps=10)
            return (await user.admin.RequeueTask(request, timeout=CALL_SECONDS)).task
        case Action.CLOSE_OUT:
            out = admin.CloseOutTaskRequest(**repeated, to_state=task_pb2.TASK_STATE_FAILED, result="by hand")
            return (await user.admin.CloseOutTask(out, timeout=CALL_SECONDS)).task
        case Action.CANCEL:
            return (await user.tasks.CancelTask(api.CancelTaskRequest(**known), timeout=CALL_SECONDS)).task
        case Action.GRANT:
            grant = admin.GrantBudgetRequest(**repeated, extra_tokens=EXTRA_TOKENS)
            return (await user.admin.GrantBudget(grant, timeout=CALL_SECONDS)).task
        case _:
            return (await user.admin.TransferTask(admin.TransferTaskRequest(**known), timeout=CALL_SECONDS)).task
