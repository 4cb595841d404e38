"""The `control` loop of one task under one claim: run the function, and answer what it asks for.

The function runs in a coroutine of its own and never writes: what it asks for is written here, between interruptions,
so that a cancellation never hits a commit.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from services.worker.claim_ledger import Fact
from services.worker.control.function_run import (
    BeginStep,
    CallTools,
    FunctionRequest,
    FunctionRun,
    Raised,
    RecordStep,
    Request,
    Returned,
)
from services.worker.loop import Loop
from services.worker.transitions import leave
from tenure.control import Function
from tenure.domain import entries as facts
from tenure.domain.control import (
    Diverged,
    after_function_failure,
    check_end,
    divergence,
    missing_calls,
    recorded_step,
    step_limit,
)
from tenure.domain.errors import Unavailable
from tenure.domain.states import Reason, ReleaseReason, TaskState
from tenure.domain.task import ControlWork
from tenure.domain.tools import Outcome, call_id
from tenure.domain.turn import calls_to_make

SIGN_SECONDS: Final = 30.0

Answer = facts.ControlStep | Sequence[Outcome] | None


class ControlLoop(Loop):
    """A function's loop."""

    _is_stepping = False

    async def _work(self) -> ReleaseReason:
        self._begin()
        control = self._spec.control
        assert control is not None, "such a loop is that of a function"
        async with FunctionRun(self._function(control), control, self._held_task.task_id) as run:
            transition = await self._serve(run)
        await leave(self._dependencies, self._held_task, self._ledger, self._pending, transition)
        return ReleaseReason.CLOSED

    def _function(self, control: ControlWork) -> Function:
        try:
            return self._dependencies.functions[control.function]
        except KeyError:  # offered by an earlier process of this name
            raise Unavailable(f"this worker has no function {control.function}") from None

    async def _serve(self, run: FunctionRun) -> facts.Transition:
        """Answers the function until the task is to be left."""
        while True:
            function_request = await self._held_task.interrupts.guard(self._next(run))
            self._is_stepping = False
            self._clock.stop()
            self._held_task.progress.announce_backoff(0)
            try:
                answer = await self._answer(function_request.request)
            except Diverged as why:
                return divergence(why)
            if isinstance(answer, facts.Transition):
                return answer
            if not function_request.answer.done():  # the function was cancelled meanwhile by what it is made of
                function_request.answer.set_result(answer)

    async def _next(self, run: FunctionRun) -> FunctionRequest:
        """What the function asks for next. A step has a timeout of its own: its silence is no standstill."""
        while True:
            try:
                async with asyncio.timeout(SIGN_SECONDS):
                    return await run.next()
            except TimeoutError:
                if self._is_stepping:
                    self._held_task.progress.on_tool_progress()

    async def _answer(self, request: Request) -> Answer | facts.Transition:
        match request:
            case BeginStep():
                return await self._begin_step(request)
            case RecordStep(step=step, fact=fact):
                await self._write([(step, fact)])
                return None
            case CallTools():
                return await self._call_tools(request)
            case Returned(step=step, result_json=result):
                check_end(self._point, step)
                return facts.Transition(TaskState.SUCCEEDED, Reason.FUNCTION_RETURNED, "", result)
            case Raised(failure=failure):
                self._pending.append((self._point.step, failure))
                return after_function_failure(
                    failure, self._point.retries, self._spec.policy.retry, luck=random.random()
                )

    async def _begin_step(self, request: BeginStep) -> facts.ControlStep | facts.Transition | None:
        recorded = recorded_step(self._point, request.step, request.name)
        if recorded is not None:
            return recorded
        if (limit := step_limit(self._point, request.step)) is not None:
            return limit
        await self._wait_trusted()
        self._time(request.step)
        self._is_stepping = True
        self._held_task.progress.announce_backoff(request.timeout_seconds)
        return None

    async def _call_tools(self, request: CallTools) -> list[Outcome] | facts.Transition:
        missing = missing_calls(self._point, request.step, request.calls)
        if missing and (limit := step_limit(self._point, request.step)) is not None:
            return limit
        await self._define_tools()
        if missing:
            await self._wait_trusted()
            await self._write([(request.step, intent) for intent in missing])
        move = calls_to_make(self._point)
        if move.intents or move.asks:
            transition = await self._execute_calls(move)
            if transition is not None:
                return transition
            await self._write([])
        return [self._point.outcomes[call_id(request.step, index)] for index in range(len(request.calls))]

    async def _write(self, more: Sequence[Fact]) -> None:
        pending = [*self._pending, *more]
        self._pending = []
        await self._ledger.append(pending)
