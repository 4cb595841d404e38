"""One seed, from its first submit to its verdict."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from checker.history import History, Method, OperationResult
from checker.verify import Violation, examine
from tenure.client import Client
from tenure.domain.errors import TryLater
from tenure.domain.states import TERMINAL, WAITING, TaskState
from tenure.domain.tools import OutcomeStatus
from tenure.v1 import task_pb2
from tenure.wire.common import STATES
from tests.fault.suite import faults
from tests.fault.suite.evidence import Marks, collect
from tests.fault.suite.installation import Installation
from tests.fault.suite.operators import Operators, careful_words_repeat_nothing
from tests.fault.suite.scenarios import FAMILY
from tests.fault.suite.schedule import Manner, Mode, Schedule
from tests.fault.suite.stops import delete_bounds, resume, set_bounds, stop_and_resume
from tests.fault.suite.traffic import Submitted, Traffic, cancel, tenant_of
from tests.fault.suite.verdict import violations_of
from tests.support.patience import slowness_now

REST_SECONDS: Final = 30.0
"""So long after the last fault every task must have ended, or wait for a person (I30)."""
PATIENCE_SECONDS: Final = 180.0
POLL_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a seed. `hit`: the failpoints that a process died at; `not_checked`: what was not checked."""

    schedule: Schedule
    violations: list[Violation]
    injected: Counter[str]
    hit: Counter[str]
    figures: Counter[str]
    not_checked: frozenset[str]
    seconds: float
    rested_after_seconds: float
    slowness: float
    history: History


@dataclass(slots=True)
class Trial:
    """Runs one schedule on an installation that works, and leaves it working."""

    install: Installation
    schedule: Schedule
    injected: Counter[str] = field(default_factory=Counter)
    late: list[Violation] = field(default_factory=list)

    async def run(self) -> Verdict:
        self.install.check_duties()
        began, marks, deaths = time.monotonic(), Marks.of(self.install), len(self.install.keeper.deaths)
        traffic = Traffic(self.install.users, self.install.guests, self.schedule)
        self.install.traffic = traffic
        people = Operators(traffic, self.install.stack.layout.records)
        await set_bounds(traffic)
        async with asyncio.timeout(PATIENCE_SECONDS * 2), asyncio.TaskGroup() as running:
            clients = running.create_task(traffic.carry_out())
            settling = running.create_task(people.run())
            stop = self.schedule.stop
            stopping = running.create_task(stop_and_resume(traffic, stop)) if stop is not None else None
            await faults.carry_out(self.install, self.schedule, self.injected)
            await faults.mend(self.install)
            if stop is not None and stopping is not None:
                await stopping
                await resume(traffic, stop)  # a request whose answer was lost may have begun it again
            slowness = slowness_now()
            rested = await self._rest(traffic, REST_SECONDS * slowness)
            settling.cancel()
            await self._end_what_waits(traffic)
            await self._rest(traffic, REST_SECONDS * slowness)  # a cancel is carried out after its answer
            await asyncio.wait([clients], timeout=PATIENCE_SECONDS)
            if not clients.done():
                self.late.append(Violation("I30", "", "a client was not done long after everything worked again"))
                clients.cancel()
        await self._claims_go(traffic, REST_SECONDS * slowness)
        await delete_bounds(traffic)
        settled = not self.late
        history = await collect(self.install, traffic, marks, settled=settled)
        died = self.install.keeper.deaths[deaths:]
        report = examine(history)
        return Verdict(
            schedule=self.schedule,
            violations=[
                *self.late,
                *violations_of(self.install, traffic, report, marks, died),
                *careful_words_repeat_nothing(traffic, history),
            ],
            injected=self.injected,
            hit=Counter(death.armed.partition("=")[0] for death in died if death.by_failpoint),
            figures=figures_of(traffic, history),
            not_checked=frozenset(f"{run.invariant}: {run.says} ({run.why_not})" for run in report.not_run),
            seconds=time.monotonic() - began,
            rested_after_seconds=rested,
            slowness=slowness,
            history=history,
        )

    async def _rest(self, traffic: Traffic, within_seconds: float) -> float:
        """Waits until every task stands still; how long that took. In LIVENESS it must not take longer."""
        mended_at = time.monotonic()
        while moving := [task for task in traffic.tasks if not await self._rests(traffic, task)]:
            took = time.monotonic() - mended_at
            if took > within_seconds and self.schedule.mode is Mode.LIVENESS and not self.late:
                self.late = [
                    Violation(
                        "I30", task.task_id, f"{task.planned.scenario} is on its way {took:.0f} s after the faults"
                    )
                    for task in moving
                ]
            if took > PATIENCE_SECONDS:
                self.late += [Violation("I30", task.task_id, f"never came to rest: {took:.0f} s") for task in moving]
                break
            await asyncio.sleep(POLL_SECONDS)
        return time.monotonic() - mended_at

    async def _claims_go(self, traffic: Traffic, within_seconds: float) -> None:
        """Waits until etcd has no claim of theirs. One without a worker may stay for some seconds, not for ever:
        the checker tells.
        """
        task_ids = traffic.task_ids(guests=False) | traffic.task_ids(guests=True)
        ends_at = time.monotonic() + within_seconds
        while self.install.etcd_log.held(task_ids) and time.monotonic() < ends_at:
            await asyncio.sleep(POLL_SECONDS)

    async def _rests(self, traffic: Traffic, task: Submitted) -> bool:
        if not task.task_id:
            return False
        result = await self._found(task, traffic.user_of(task))
        if not result or not all(self._stands_still(one, task) for one in result):
            return False
        asked_to_end = any(
            one.method is Method.CANCEL and one.answer is OperationResult.OK and one.task_id == task.task_id
            for one in traffic.log.operations
        )
        was_requeued = result[0].attempt > 1 and not result[0].cancel_requested
        return not asked_to_end or was_requeued or all(STATES.to_domain(one.state) in TERMINAL for one in result)

    def _stands_still(self, result: task_pb2.Task, task: Submitted) -> bool:
        """Ended, or waiting for a person who will not come: sub-agents are waited for, and most people have a word."""
        state = STATES.to_domain(result.state)
        return state in TERMINAL or (state is TaskState.WAITING_USER and task.planned.manner is Manner.SAYS_NOTHING)

    async def _found(self, task: Submitted, user: Client) -> list[task_pb2.Task]:
        """The task, then its sub-agents; empty: it could not be seen."""
        try:
            results = [await user.get(task.task_id)]
            if task.planned.scenario == FAMILY:
                in_tree = task_pb2.TaskFilter(root_task_id=task.task_id)
                results += [one async for one in user.list_tasks(in_tree) if one.task_id != task.task_id]
                task.below |= {one.task_id for one in results[1:]}
        except TryLater:
            return []
        return results

    async def _end_what_waits(self, traffic: Traffic) -> None:
        """Those that wait for a person are cancelled by one."""
        for task in traffic.tasks:
            user = traffic.user_of(task)
            match = await self._found(task, user) if task.task_id else []
            if match and STATES.to_domain(match[0].state) in WAITING:
                await cancel(traffic.log, task.task_id, "operator", user, tenant_of(task))


def figures_of(traffic: Traffic, history: History) -> Counter[str]:
    """The last lines of the report."""
    counts: Counter[str] = Counter(tasks=len(traffic.tasks))
    for task in history.tasks or ():
        counts[f"ended {task.state}"] += 1
        counts["takeovers"] += max(0, task.claim_count - 1)
    for name in ("entries", "effects", "refusals", "model_calls", "grants", "calls", "operations"):
        counts[name] = len(getattr(history, name) or ())
    words = [one for one in history.operations or () if one.method is Method.RESOLVE]
    counts["words on calls in doubt"] = sum(one.answer is OperationResult.OK for one in words)
    counts["words refused"] = sum(one.answer is OperationResult.FAILED for one in words)
    counts["streams"] = len(history.subscriptions or ())
    counts["stops"], counts["bounds"] = len(history.stops or ()), len(history.bounds or ())
    counts["calls that rules denied"] = sum(
        call.outcome is not None and call.outcome.status is OutcomeStatus.NOT_ALLOWED for call in history.calls or ()
    )
    return counts
