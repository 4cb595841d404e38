"""Drives one task of the loop `control` under one claim: runs the function and answers its requests.

The function runs in a coroutine of its own and never writes. This loop writes for it, between interruptions, so that a
cancellation never hits a commit.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from services.worker.claim_ledger import StepEntry
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
from services.worker.transitions import close_out
from tenure.control import Function
from tenure.domain import entries
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

PROGRESS_SECONDS: Final = 30.0

Answer = entries.ControlStep | Sequence[Outcome] | None


class ControlLoop(Loop):
    """The loop of a control function."""

    _is_stepping = False

    async def _work(self) -> ReleaseReason:
        self._begin()
        control = self._spec.control
        assert control is not None, "a task of the control loop has a function"
        async with FunctionRun(self._function(control), control, self._held_task.task_id) as run:
            transition = await self._serve(run)
        await close_out(self._dependencies, self._held_task, self._ledger, self._pending, transition)
        return ReleaseReason.CLOSED

    def _function(self, control: ControlWork) -> Function:
        try:
            return self._dependencies.functions[control.function]
        except KeyError:  # an earlier process with this worker id offered the function
            raise Unavailable(f"this worker has no function {control.function}") from None

    async def _serve(self, run: FunctionRun) -> entries.Transition:
        """Answers the function's requests until the task must leave this worker."""
        while True:
            function_request = await self._held_task.interrupts.guard(self._next(run))
            self._is_stepping = False
            self._clock.stop()
            self._held_task.progress.announce_backoff(0)
            try:
                answer = await self._answer(function_request.request)
            except Diverged as why:
                return divergence(why)
            if isinstance(answer, entries.Transition):
                return answer
            if not function_request.answer.done():  # the function cancelled the coroutine that asked
                function_request.answer.set_result(answer)

    async def _next(self, run: FunctionRun) -> FunctionRequest:
        """Waits for the function's next request. Reports progress during a step, which has a timeout of its own."""
        while True:
            try:
                async with asyncio.timeout(PROGRESS_SECONDS):
                    return await run.next()
            except TimeoutError:
                if self._is_stepping:
                    self._held_task.progress.on_tool_progress()

    async def _answer(self, request: Request) -> Answer | entries.Transition:
        match request:
            case BeginStep():
                return await self._begin_step(request)
            case RecordStep(step=step, entry=entry):
                await self._executed()
                await self._write([(step, entry)])
                return None
            case CallTools():
                return await self._call_tools(request)
            case Returned(step=step, result_json=result):
                check_end(self._point, step)
                return entries.Transition(TaskState.SUCCEEDED, Reason.FUNCTION_RETURNED, "", result)
            case Raised(failure=failure):
                self._pending.append((self._point.step, failure))
                return after_function_failure(
                    failure, self._point.retries, self._spec.policy.retry, random_fraction=random.random()
                )

    async def _begin_step(self, request: BeginStep) -> entries.ControlStep | entries.Transition | None:
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

    async def _call_tools(self, request: CallTools) -> list[Outcome] | entries.Transition:
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

    async def _write(self, more: Sequence[StepEntry]) -> None:
        pending = [*self._pending, *more]
        self._pending = []
        await self._ledger.append(pending)
