"""People who settle calls in doubt, each task's in the manner that its plan has.

A careful operator waits until the runner is proven gone, looks outside, and says what is there: by such words nothing
happens twice, whatever is killed or wakes up. The others are wrong at times, as people are; then the checker allows
what they have allowed, and nothing more.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

from checker.check import Violation
from checker.collect import read_effects
from checker.history import (
    History,
    Method,
    ObservedEffect,
    OperationResult,
)
from tenure.domain.errors import TryLater
from tenure.domain.in_doubt import Abandon, Decision, DidNotHappen, Happened
from tenure.domain.tools import EffectClass
from tenure.v1 import admin_service_pb2 as pb
from tenure.v1 import tool_pb2
from tenure.wire.tool import decision_to_wire
from tests.fault.suite.schedule import Manner
from tests.fault.suite.traffic import Submitted, Traffic, tenant_of

CALL_SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 0.3

Doubt = tuple[str, str, int]
"""A task, a call of it, and the attempt that is in doubt."""


@dataclass(slots=True)
class Operators:
    """`run` is their duty. `records`: where the effects are to be seen."""

    traffic: Traffic
    records: Path
    _said: dict[Doubt, tuple[str, Decision]] = field(default_factory=dict)
    _rng: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self._rng.seed(self.traffic.schedule.seed)

    async def run(self) -> None:
        """Until cancelled: a word on every call that a task waits for."""
        while True:
            tasks = {task.task_id: task for task in self.traffic.tasks if task.task_id}
            async with asyncio.TaskGroup() as people:
                for user in (self.traffic.users[0], self.traffic.guests[0]):
                    with suppress(TryLater):
                        async for one in user.in_doubt():
                            if one.call.task_id in tasks:
                                people.create_task(self._see_to(one.call, tasks[one.call.task_id]))
            await asyncio.sleep(PAUSE_SECONDS)

    async def _see_to(self, call: tool_pb2.InDoubtCall, task: Submitted) -> None:
        doubt = call.task_id, call.call_id, call.call_attempt
        if doubt not in self._said:
            decision = self._decide(call, task)
            if decision is None:
                return
            self._said[doubt] = str(uuid4()), decision
        request_id, decision = self._said[doubt]
        words = [(request_id, decision)] * (1 + task.planned.repeats)
        if task.planned.contested:
            words.append((str(uuid4()), Abandon()))
        self._rng.shuffle(words)
        answers = await asyncio.gather(*(self._say(task, doubt, *word) for word in words))
        if OperationResult.UNKNOWN not in answers:
            del self._said[doubt]  # what is listed again was not settled by it: an operator looks anew

    def _decide(self, call: tool_pb2.InDoubtCall, task: Submitted) -> Decision | None:
        match task.planned.manner:
            case Manner.CAREFUL:
                return self._as_it_looks(call) if call.runner_gone else None
            case Manner.HASTY:
                return self._as_it_looks(call)
            case Manner.VOUCHES:
                return DidNotHappen(runner_is_gone=True)
            case Manner.BELIEVES:
                return Happened("so they told me")
            case Manner.GIVES_UP:
                return Abandon()
            case Manner.SAYS_NOTHING:
                return None

    def _as_it_looks(self, call: tool_pb2.InDoubtCall) -> Decision:
        is_there = any(
            (effect.task_id, effect.call_id) == (call.task_id, call.call_id) for effect in read_effects(self.records)
        )
        return Happened() if is_there else DidNotHappen()

    async def _say(self, task: Submitted, doubt: Doubt, request_id: str, decision: Decision) -> OperationResult:
        task_id, call_id, call_attempt = doubt
        request = pb.ResolveInDoubtCallRequest(
            task_id=task_id,
            call_id=call_id,
            call_attempt=call_attempt,
            decision=decision_to_wire(decision),
            reason="seen to",
            request_id=request_id,
        )
        known = {"task_id": task_id, "call_id": call_id, "call_attempt": call_attempt, "request_id": request_id}
        with self.traffic.log.call("operator", Method.RESOLVE, tenant=tenant_of(task), **known) as call:
            user = self.traffic.user_of(task)
            call.answered((await user.admin.ResolveInDoubtCall(request, timeout=CALL_SECONDS)).task)
        return call.operation.answer


def careful_words_repeat_nothing(traffic: Traffic, history: History) -> Iterator[Violation]:
    """The checker takes people at their word. Of the careful ones we know more: what they say is so."""
    careful = {task.task_id for task in traffic.tasks if task.planned.manner is Manner.CAREFUL}
    once = {
        (call.task_id, call.call_id)
        for call in history.calls or ()
        if call.task_id in careful and call.effect_class in {EffectClass.UNSAFE, EffectClass.KEYED}
    }
    places: dict[tuple[str, str], list[ObservedEffect]] = {}
    for effect in history.effects or ():
        places.setdefault((effect.task_id, effect.call_id), []).append(effect)
    for (task_id, call_id), effects in places.items():
        if (task_id, call_id) in once and len(effects) > 1:
            text = f"the effect of call {call_id} happened {len(effects)} times, by words of an operator who had looked"
            yield Violation("I12", task_id, text)
