"""Drives one task of the loop `control` under one claim: runs the function and answers its requests.

The function runs in a coroutine of its own and never writes. This loop writes for it, between interruptions, so that a
cancellation never hits a commit.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from services.worker.claim_ledger import StepEntry
from services.worker.control.function_run import (
    CANCELLED,
    BeginModelCall,
    BeginStep,
    CallTools,
    CancelModelCall,
    FailModelCall,
    FindCalls,
    FunctionRequest,
    FunctionRun,
    Raised,
    ReadFile,
    ReadMessages,
    RecordModelCall,
    RecordStep,
    Request,
    Returned,
)
from services.worker.control.json_values import is_large
from services.worker.control.model_calls import (
    AttemptReport,
    after_denial,
    answer_entries,
    reserve_request,
    size_of_prompt,
)
from services.worker.control.runner_calls import CallsAtRunner
from services.worker.dependencies import Dependencies
from services.worker.held_claims import HeldTask
from services.worker.kept_content import KeptContents
from services.worker.loop import Loop
from services.worker.model_attempt import by_message
from services.worker.model_metrics import OTHER, count_model_call
from services.worker.transitions import close_out, late_call, wait_before_attempt
from tenure.agents.functions import content_of
from tenure.control import Function, RecordedCall, ResultLost
from tenure.domain import entries
from tenure.domain.agents import AgentKind
from tenure.domain.control import (
    INTERRUPTED,
    MESSAGES,
    Diverged,
    after_function_failure,
    check_end,
    divergence,
    has_interruption,
    messages_at,
    missing_calls,
    recorded_intents,
    recorded_step,
    step_limit,
)
from tenure.domain.errors import TryLater, Unavailable, WrongState
from tenure.domain.images import sees_images
from tenure.domain.long_output import SHORTENED, whole_content
from tenure.domain.next_action import calls_to_make
from tenure.domain.retry import FailureClass
from tenure.domain.states import Reason, ReleaseReason, TaskState
from tenure.domain.sub_agents import SPAWN_SUB_AGENTS
from tenure.domain.task import ControlWork
from tenure.domain.texts import digest_of_path
from tenure.domain.tools import Outcome, ToolDefinition, call_id, unknown_tool_text, unknown_tools
from tenure.runtime.request_context import within_trace
from tenure.runtime.rpc.status import PeerFailed

_log: Final = logging.getLogger(__name__)
PROGRESS_SECONDS: Final = 30.0
REVISION_NOT_HERE: Final = "REVISION_NOT_HERE"

Answer = (
    entries.ControlStep
    | entries.ControlFailure
    | AttemptReport
    | Sequence[Outcome]
    | Sequence[RecordedCall]
    | Sequence[entries.UserMessage]
    | bytes
    | None
)


class ControlLoop(Loop):
    """The loop of a control function."""

    _is_stepping = False
    _interruptible: AttemptReport | None = None

    def __init__(self, dependencies: Dependencies, held_task: HeldTask) -> None:
        super().__init__(dependencies, held_task)
        self._at_runner = CallsAtRunner(dependencies, held_task, self._ledger, self._watch)

    async def _work(self) -> ReleaseReason:
        self._begin()
        control = self._spec.control
        assert control is not None, "a task of the control loop has a function"
        self._check_revision(control)
        function = self._function(control)
        if (unknown := await self._unknown_approvals(function)) is not None:
            await close_out(self._dependencies, self._held_task, self._ledger, self._pending, unknown)
            return ReleaseReason.CLOSED
        with within_trace(self._ledger.attempt_trace()):  # for spans that the function makes itself
            spec, task_id, files = self._spec, self._held_task.task_id, self._point.conversation.files
            named, model = spec.agent.approve_tools, self._dependencies.defaults.replay_model
            async with FunctionRun(function, control, task_id, spec.goal, named, files, model) as run:
                transition = await self._serve(run)
        await close_out(self._dependencies, self._held_task, self._ledger, self._pending, transition)
        return ReleaseReason.CLOSED

    def _function(self, control: ControlWork) -> Function:
        try:
            return self._dependencies.functions[control.function]
        except KeyError:  # an earlier process with this worker id offered the function
            raise Unavailable(f"this worker has no function {control.function}") from None

    def _check_revision(self, control: ControlWork) -> None:
        """Raises Unavailable (REVISION_NOT_HERE) for a task of other code: the task returns to the queue unchanged."""
        pin = self._spec.agent_pin
        if pin is None or not pin.needs_build or self._dependencies.digests.get(control.function) == pin.digest:
            return
        raise Unavailable(f"this worker does not have the code of {pin.reference}", reason=REVISION_NOT_HERE)

    async def _unknown_approvals(self, function: Function) -> entries.Transition | None:
        """Returns the end of a task whose submit asks for the approval of a tool that its agent does not have.

        The gateway refuses most of them. Such a name is a mistake, and the tool that it means would run unasked.
        """
        content, named = content_of(function), self._spec.agent.approve_tools
        if not named or content is None or content.kind is not AgentKind.PYTHON:
            return None
        known = {tool.name for tool in content.tools}
        if not known.issuperset(named):
            known |= {tool.name for tool in (await self._service_tools()).tools}
        unknown = unknown_tools(named, known)
        if not unknown:
            return None
        text = "; ".join(unknown_tool_text(*one) for one in unknown)
        return entries.Transition(TaskState.FAILED, Reason.FUNCTION_FAILED, f"approve_tools: {text}")

    async def _serve(self, run: FunctionRun) -> entries.Transition:
        """Answers the function's requests until the task must leave this worker."""
        while True:
            function_request = await self._held_task.interrupts.guard(self._next(run), on_notice=self._look_for_message)
            self._is_stepping = False
            if not isinstance(function_request.request, FailModelCall):  # its further attempts belong to the same step
                self._clock.stop()
            self._held_task.progress.announce_backoff(0)
            try:
                answer = await self._answer(function_request.request)
            except Diverged as why:
                return divergence(why)
            except ResultLost as lost:
                if not function_request.answer.done():
                    function_request.answer.set_exception(lost)
                continue
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
                await self._executed(step)
                # the function may have cancelled the wait for the record, or that for the answer to BeginStep
                if recorded_step(self._point, step, entry.name, is_model_call=True) is not None:
                    return None
                stored = await self._stored(entry)
                if stored.failure is not None and entry.failure is None:
                    return stored.failure
                await self._write([(step, stored)])
                return None
            case BeginModelCall() | RecordModelCall() | FailModelCall() | CancelModelCall():
                return await self._answer_model_call(request)
            case CallTools():
                return await self._call_tools(request)
            case FindCalls() | ReadMessages() | ReadFile():
                return await self._look(request)
            case Returned(step=step, result_json=result):
                check_end(self._point, step)
                self._pending += await self._stopped_call()  # that the function no longer waits for
                return entries.Transition(TaskState.SUCCEEDED, Reason.FUNCTION_RETURNED, "", result)
            case Raised(failure=failure):
                self._pending += [*await self._stopped_call(), (self._point.step, failure)]
                return after_function_failure(
                    failure,
                    self._point.retries,
                    self._spec.policy.retry,
                    random_fraction=random.random(),
                    unusable=self._point.progress.unusable,
                )

    async def _begin_step(self, request: BeginStep) -> entries.ControlStep | entries.Transition | None:
        recorded = recorded_step(self._point, request.step, request.name)
        if recorded is not None:
            return await self._whole(recorded)
        if (limit := step_limit(self._point, request.step)) is not None:
            return limit
        await self._wait_trusted()
        self._time(request.step)
        self._is_stepping = True
        self._held_task.progress.announce_backoff(request.timeout_seconds)
        return None

    async def _look(self, request: FindCalls | ReadMessages | ReadFile) -> Answer | entries.Transition:
        if isinstance(request, ReadFile):
            return await self._read_file(request)
        step = request.step
        if isinstance(request, FindCalls):
            intents = recorded_intents(self._point, step)
            return [RecordedCall(intent.tool, intent.arguments_json) for intent in intents]
        messages, read = messages_at(self._point, step), len(self._point.said)
        if messages and step > self._point.step:
            if (limit := step_limit(self._point, step)) is not None:
                return limit
            await self._write([(step, entries.ControlStep(MESSAGES, str(read)))])
        return messages

    async def _read_file(self, request: ReadFile) -> bytes | None:
        """Returns the content of a file; None for an image that the model does not see. Raises ResultLost."""
        file, model = request.file, request.model
        if model and not sees_images(model, self._dependencies.defaults.sees_images):
            return None
        path = file.path if file.image is None else file.image.kept.path
        return await self._held_task.interrupts.guard(self._contents.read(path, file.digest))

    async def _answer_model_call(
        self, request: BeginModelCall | RecordModelCall | FailModelCall | CancelModelCall
    ) -> Answer | entries.Transition:
        match request:
            case BeginModelCall(step=step, name=name):
                recorded = recorded_step(self._point, step, name, is_model_call=True)
                if recorded is not None:
                    return await self._whole(recorded)
                if (limit := step_limit(self._point, step)) is not None:
                    return limit
                await self._show_tools(request.request.tools)
                return await self._begin_model_call(request)
            case RecordModelCall(report=report, answer=answer, entry=entry):
                self._end_watch()
                await self._watch.answered()
                if report.is_interrupted:
                    return await self._interrupted(report.step, entry.name)
                stored = await self._stored(entry)
                await self._write(answer_entries(report, answer, stored))
                return stored.failure
            case FailModelCall(begun=begun, report=report) if report.is_interrupted:
                self._end_watch()
                count_model_call(report.reserved.model, report.seconds, FailureClass.INTERRUPTED)
                return await self._interrupted(begun.step, begun.name)
            case FailModelCall():
                self._end_watch()
                return await self._after_failed_attempt(request)
            case CancelModelCall(step=step, name=name):
                self._end_watch()
                if recorded_step(self._point, step, name, is_model_call=True) is None:
                    cancelled = entries.ControlStep(name, failure=CANCELLED)
                    await self._write([*await self._stopped_call(), (step, cancelled)])
                return None

    def _end_watch(self) -> None:
        self._interruptible = None
        self._watch.end()

    async def _look_for_message(self) -> None:
        """Interrupts the running model call of an agent if there is an interrupting message.

        A ledger that does not answer interrupts nothing.
        """
        try:
            await self._ledger.catch_up()
        except (TryLater, PeerFailed) as error:
            _log.warning("interrupting messages could not be read", extra={"why": str(error)})
        if self._interruptible is not None and has_interruption(self._point):
            self._interruptible.interrupt()

    async def _interrupted(self, step: int, name: str) -> entries.ControlFailure:
        """Stops the call of the open attempt, if there is one, and records that its step was interrupted.

        An answer that came before is billed, and not used.
        """
        _log.info("a message interrupted a model call", extra={"step": step})
        self._clock.stop()
        settled = await self._stopped_call()
        failures = [(step, by_message(body)) for step, body in settled if isinstance(body, entries.ModelFailure)]
        await self._write([*failures, (step, entries.ControlStep(name, failure=INTERRUPTED))])
        return INTERRUPTED

    async def _begin_model_call(
        self, begin: BeginModelCall
    ) -> AttemptReport | entries.ControlStep | entries.Transition:
        """Joins the call of an attempt that outlived its former owner, or reserves the next attempt.

        A function that calls the provider itself now cannot join: that call is stopped. So is one that a message
        interrupted meanwhile.
        """
        if begin.request.interruptible and has_interruption(self._point):
            return entries.ControlStep(begin.name, failure=await self._interrupted(begin.step, begin.name))
        if self._point.open_attempt is None:
            return await self._reserve_attempt(begin)
        if not self._at_runner.takes(begin.request):
            await self._write(await self._stopped_call())
            return await self._reserve_attempt(begin)
        self._time(begin.step)
        await self._wait_trusted()
        return await self._report(begin)

    async def _reserve_attempt(self, begin: BeginModelCall) -> AttemptReport | entries.Transition:
        """Reserves the next attempt of a model call. Returns its report, with which the function makes the attempt."""
        self._time(begin.step)
        outlives_worker = self._at_runner.takes(begin.request)
        reserve = reserve_request(self._point, begin.step, begin.request, outlives_worker=outlives_worker)
        ended = await self._reserve(lambda: self._ledger.reserve(self._pending, reserve))
        if ended is not None:
            return after_denial(self._point, begin.request, ended)
        return await self._report(begin)

    async def _report(self, begin: BeginModelCall) -> AttemptReport:
        """Begins to watch the open attempt. Returns its report."""
        attempt, held_task = self._point.open_attempt, self._held_task
        assert attempt is not None, "the reservation was granted"
        timeout_seconds = (
            self._spec.policy.timeouts.model_call.after_seconds or self._dependencies.models.timeout_seconds
        )
        report = AttemptReport(
            held_task.task_id,
            begin.step,
            attempt,
            timeout_seconds,
            held_task.live.append,
            held_task.progress.on_model_call_progress,
            size_of_prompt(self._point, begin.request),
            self._at_runner.calls_of(attempt, timeout_seconds),
        )
        await self._watch.begin(report, timeout_seconds)
        if begin.request.interruptible:
            self._interruptible = report
            if has_interruption(self._point):  # it came with the reservation, and the code has not read it
                report.interrupt()
        return report

    async def _stopped_call(self) -> list[StepEntry]:
        """Stops the call of the open attempt, if there is one. Returns the entries that settle it."""
        attempt = self._point.open_attempt
        is_at_runner = attempt is not None and attempt.outlives_worker
        return await self._at_runner.stop() if is_at_runner else self._watch.settlement()

    async def _cancel_model_call(self) -> list[StepEntry]:
        try:
            return await self._at_runner.stop()
        except (TryLater, PeerFailed) as error:
            _log.warning("no model runner stopped a call", extra={"step": self._point.step, "why": str(error)})
            return []

    async def _after_failed_attempt(
        self, request: FailModelCall
    ) -> AttemptReport | entries.ControlFailure | entries.Transition:
        """Settles a failed attempt and reserves the next one. Returns the failure of the step if no attempt is left.

        Its class is that of the attempt in the ledger: of a call at a runner, the client knows only a lost connection.
        """
        failure = await self._at_runner.failure(request.report, request.failed)
        count_model_call(request.report.reserved.model, request.report.seconds, failure.error_class or OTHER)
        _log.warning("a model call failed", extra={"step": request.begun.step, "why": failure.message})
        self._pending.append((request.begun.step, failure))
        if late := late_call(self._point, self._spec.policy, failure):
            return late
        wait_seconds = wait_before_attempt(self._point, failure, random.random())
        await self._settle_failure()
        if wait_seconds is None:
            return replace(
                request.failed.failure,
                error_class=failure.error_class,
                retryable=failure.retryable,
                retry_after_seconds=failure.retry_after_seconds,
            )
        await self._back_off(wait_seconds)
        return await self._reserve_attempt(request.begun)

    async def _show_tools(self, own: Sequence[ToolDefinition], called: Sequence[str] = ()) -> None:
        """Adds to the tools in the ledger those that a model is offered, and those that are called.

        Of the tool service, the code may give all tools to sub-agents that it spawns.
        """
        known = {tool.name: tool for tool in self._point.tools or ()}
        added = {tool.name: tool for tool in own}
        if missing := set(called) - known.keys() - added.keys():
            listed = (await self._service_tools()).tools
            added |= {one.name: one for one in listed if one.name in missing or SPAWN_SUB_AGENTS in missing}
        tools = tuple({**known, **added}.values())
        if any(known.get(name) != tool for name, tool in added.items()):
            self._pending.append((0, entries.ToolsDefined(tools)))
        self._tools.use_tools(tools)

    async def _call_tools(self, request: CallTools) -> list[Outcome] | entries.Transition:
        missing = missing_calls(self._point, request.step, request.calls)
        if missing and (limit := step_limit(self._point, request.step)) is not None:
            return limit
        await self._show_tools([tool.shown for tool in request.own], [call.tool for call in request.calls])
        if missing:
            await self._wait_trusted()
            await self._write([(request.step, intent) for intent in missing])
        if request.step == self._point.step:  # open calls are of the newest step; those of others have their outcomes
            self._tools.use_own_tools(request.own)
            self._own_approvals = tuple(tool.name for tool in request.own if tool.needs_approval)
            move = calls_to_make(self._point, self._own_approvals)
            transition = await self._execute_calls(move) if move.intents or move.asks else None
            if transition is not None:
                return transition
            await self._write([])
        outcomes = [self._point.outcomes[call_id(request.step, index)] for index in range(len(request.calls))]
        own = {tool.name for tool in request.own}
        return [
            await self._whole_outcome(outcome) if call.tool in own else outcome
            for call, outcome in zip(request.calls, outcomes, strict=True)
        ]

    # Results that are too large for the ledger.

    @property
    def _contents(self) -> KeptContents:
        return KeptContents(self._dependencies.tools, self._dependencies.trust, self._held_task)

    async def _stored(self, entry: entries.ControlStep) -> entries.ControlStep:
        """Returns the entry as the ledger takes it: with a reference in place of a large result, or as a failure."""
        if not is_large(entry.result_json):
            return entry
        keeping = self._contents.keep(entry.result_json.encode())
        try:
            kept = await self._held_task.interrupts.guard(keeping)
        except WrongState as refusal:
            failure = entries.ControlFailure(refusal.reason, refusal.message, retryable=False)
            return replace(entry, result_json="", failure=failure)
        return replace(entry, result_json="", kept=kept)

    async def _whole(self, entry: entries.ControlStep) -> entries.ControlStep:
        """Returns the recorded step with its result. Raises ResultLost."""
        if entry.kept is None:
            return entry
        reading = self._contents.read(entry.kept.path, entry.kept.digest)
        content = await self._held_task.interrupts.guard(reading)
        return replace(entry, result_json=content.decode())

    async def _whole_outcome(self, outcome: Outcome) -> Outcome:
        """Returns the outcome of an own tool with all that the tool returned. Raises ResultLost."""
        digest = digest_of_path(outcome.output_path)
        if not digest or outcome.detail == SHORTENED:
            return outcome
        reading = self._contents.read(outcome.output_path, digest)
        content = await self._held_task.interrupts.guard(reading)
        return replace(outcome, content=whole_content(outcome.content, content.decode()), truncated=False)

    async def _write(self, more: Sequence[StepEntry]) -> None:
        pending = [*self._pending, *more]
        self._pending = []
        await self._ledger.append(pending)
