"""Runs a control function: its steps, model calls and tool calls become requests to the loop that holds the claim."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, NamedTuple, Self

from services.worker.control.callables import call
from services.worker.control.json_values import check_text, encode, result_of
from services.worker.control.model_calls import AttemptReport, check_request
from tenure.agents.execution import unit
from tenure.control import Function, ModelCallAnswer, ModelCallRequest, OwnTool, RunModelCall, StepFailed, ToolFailed
from tenure.control.failures import CallFailure, NotReplayable, failure_of, failure_of_call
from tenure.control.work import MAX_CALLS, STEP_TIMEOUT_SECONDS, RecordedCall
from tenure.domain.control import MESSAGES, FunctionToolCall
from tenure.domain.entries import ControlFailure, ControlStep, UserMessage
from tenure.domain.images import SubmittedFile
from tenure.domain.task import ControlWork
from tenure.domain.texts import MAX_KEPT_BYTES
from tenure.domain.tool_arguments import well_formed_value
from tenure.domain.tools import Outcome

# The requests of a function to its loop. The function waits for the answer, so there is one at a time.


@dataclass(frozen=True, slots=True)
class BeginStep:
    """Asks for the recorded step. The answer None means: make the step now, within the timeout."""

    step: int
    name: str
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class RecordStep:
    """Asks to record a step. Answered when the entry is in the ledger.

    Another answer is the failure that a result too large for the ledger could not be kept: nothing is recorded then.
    """

    step: int
    entry: ControlStep


@dataclass(frozen=True, slots=True)
class BeginModelCall:
    """Asks for the recorded step of a model call. Another answer is the report of a reserved attempt: make it now."""

    step: int
    name: str
    request: ModelCallRequest


@dataclass(frozen=True, slots=True)
class RecordModelCall:
    """Asks to record an answer with its step. Answered when both are in the ledger.

    Another answer is the failure that is recorded as the step, because its result could not be kept.
    """

    report: AttemptReport
    answer: ModelCallAnswer
    entry: ControlStep


@dataclass(frozen=True, slots=True)
class FailModelCall:
    """Asks to record a failed attempt. Answered with the report of the next attempt, or the failure of the step."""

    begun: BeginModelCall
    report: AttemptReport
    failed: CallFailure


@dataclass(frozen=True, slots=True)
class CancelModelCall:
    """Asks to settle a model call that the function itself cancelled, and to record that the step failed."""

    step: int
    name: str


@dataclass(frozen=True, slots=True)
class CallTools:
    """Asks for tool calls. Answered with their outcomes, in order. `own`: the tools of calls that this process runs."""

    step: int
    calls: tuple[FunctionToolCall, ...]
    own: tuple[OwnTool, ...] = ()


@dataclass(frozen=True, slots=True)
class FindCalls:
    """Asks for the recorded tool calls of a step."""

    step: int


@dataclass(frozen=True, slots=True)
class ReadMessages:
    """Asks for the messages of users since the last look, and records as this step that they were read, if any."""

    step: int


@dataclass(frozen=True, slots=True)
class ReadFile:
    """Asks for the content of a file. Answered with None if it is an image, and the model of this name sees none."""

    file: SubmittedFile
    model: str = ""


@dataclass(frozen=True, slots=True)
class Returned:
    """The function returned, after this number of steps."""

    step: int
    result_json: str


@dataclass(frozen=True, slots=True)
class Raised:
    """The function raised an exception."""

    failure: ControlFailure


Request = (
    BeginStep
    | RecordStep
    | BeginModelCall
    | RecordModelCall
    | FailModelCall
    | CancelModelCall
    | CallTools
    | FindCalls
    | ReadMessages
    | ReadFile
    | Returned
    | Raised
)


MAX_NAME_CHARACTERS: Final = 200

Ask = Callable[[Request], Awaitable[Any]]
NamedStep = tuple[str, *tuple[Any, ...]]
"""A step for `gather`: its name, what it runs, and the arguments."""

CANCELLED: Final = ControlFailure("CancelledError", "the function cancelled it", retryable=False)

_parallel_step: Final = contextvars.ContextVar("_parallel_step", default=0)
"""The number of the step that this coroutine or thread makes beside others."""


class _Made(NamedTuple):
    """A step that was made, and its exception."""

    entry: ControlStep
    error: Exception | None = None


class FunctionWork:
    """Implements tenure.control.Work. Steps and calls share one number sequence: 1, 2, 3 and so on."""

    def __init__(
        self,
        task_id: str,
        goal: str,
        ask: Ask,
        approve_tools: Collection[str] = (),
        files: Sequence[SubmittedFile] = (),
        replay_model: str = "",
    ) -> None:
        self._task_id, self._goal, self._ask, self._files = task_id, goal, ask, files
        self._replay_model = replay_model
        self._approve_tools = frozenset(approve_tools)
        self._is_busy = False
        self._unrecorded: list[RecordStep | CancelModelCall] = []
        self.steps = 0

    @property
    def task_id(self) -> str:
        return self._task_id

    @property
    def goal(self) -> str:
        return self._goal

    @property
    def approve_tools(self) -> Collection[str]:
        return self._approve_tools

    @property
    def files(self) -> Sequence[SubmittedFile]:
        return self._files

    @property
    def replay_model(self) -> str:
        return self._replay_model

    @property
    def key(self) -> str:
        return f"{self._task_id}/{_parallel_step.get() or self.steps}"

    async def step(
        self, name: str, run: Callable[..., Any], /, *args: Any, timeout_seconds: float = STEP_TIMEOUT_SECONDS
    ) -> Any:
        """Returns the result of the step, recorded now or earlier. Raises StepFailed."""
        _check_step(name, timeout_seconds)
        with self._one_at_a_time():
            self.steps += 1
            step = self.steps
            try:
                await self.settle()
                recorded: ControlStep | None = await self._ask(BeginStep(step, name, timeout_seconds))
                if recorded is None:
                    recorded, error = await self._make(name, run, args, timeout_seconds)
                    if recorded.failure is not None:
                        self._unrecorded.append(RecordStep(step, recorded))
                        raise StepFailed(name, recorded.failure) from error
                    unkept: ControlFailure | None = await self._ask(RecordStep(step, recorded))
                    if unkept is not None:
                        self._unrecorded.append(RecordStep(step, ControlStep(name, failure=unkept)))
                        raise StepFailed(name, unkept)
            except asyncio.CancelledError:  # by the function: at the end of the run nothing is recorded
                self._unrecorded.append(RecordStep(step, ControlStep(name, failure=CANCELLED)))
                raise
            except SystemExit as error:  # the function may catch it, and go on
                self._unrecorded.append(RecordStep(step, ControlStep(name, failure=failure_of(error))))
                raise
        return result_of(recorded)

    async def gather(self, *steps: NamedStep, timeout_seconds: float = STEP_TIMEOUT_SECONDS) -> list[Any]:
        """Returns the results of the steps, made in parallel now or recorded earlier. Raises StepFailed."""
        if not 0 < len(steps) <= MAX_CALLS:
            raise ValueError(f"gather takes 1 to {MAX_CALLS} steps at a time, got {len(steps)}")
        for name, *_ in steps:
            _check_step(name, timeout_seconds)
        with self._one_at_a_time():
            requests = [
                BeginStep(number, name, timeout_seconds) for number, (name, *_) in enumerate(steps, self.steps + 1)
            ]
            self.steps += len(steps)
            recorded = await self._recorded_ones(requests)
            made = recorded.index(None) if None in recorded else len(recorded)
            recorded[made:] = await self._make_in_parallel(requests[made:], steps[made:])
        return [result_of(step) for step in recorded]

    async def _recorded_ones(self, requests: Sequence[BeginStep]) -> list[Any]:
        """Returns the recorded step of each request, or None: this one and all after it are to be made."""
        try:
            await self.settle()
            return [await self._ask(begin) for begin in requests]
        except asyncio.CancelledError:  # by the function: a step that has its record keeps it
            self._unrecorded += _records(requests, [ControlStep(begin.name, failure=CANCELLED) for begin in requests])
            raise

    async def _make_in_parallel(self, requests: Sequence[BeginStep], steps: Sequence[NamedStep]) -> list[ControlStep]:
        """Makes steps in parallel and records them in the order of their numbers, up to the first that failed.

        So the ledger never has a step without those before it.
        """

        async def make(begin: BeginStep, run: Callable[..., Any], args: tuple[Any, ...]) -> _Made:
            _parallel_step.set(begin.step)
            try:
                return await self._make(begin.name, run, args, begin.timeout_seconds)
            except SystemExit as error:  # out of a task of its own it would end the worker
                return _Made(ControlStep(begin.name, failure=failure_of(error)))

        running = [
            asyncio.create_task(make(begin, run, tuple(args)))
            for begin, (_, run, *args) in zip(requests, steps, strict=True)
        ]
        made: list[ControlStep] = []
        failed: StepFailed | None = None
        try:
            for begin, step in zip(requests, running, strict=True):
                await self._ask(begin)  # now the function waits for it: the loop reports progress, and times it
                entry, error = await step
                made.append(entry)
                if failed is None and entry.failure is None:
                    unkept: ControlFailure | None = await self._ask(RecordStep(begin.step, entry))
                    if unkept is not None:
                        entry = made[-1] = ControlStep(begin.name, failure=unkept)
                if failed is None and entry.failure is not None:
                    failed = StepFailed(begin.name, entry.failure)
                    failed.__cause__ = error
        except (asyncio.CancelledError, SystemExit):  # by the function: at the end of the run nothing is recorded
            rest = (ControlStep(begin.name, failure=CANCELLED) for begin in requests[len(made) :])
            self._unrecorded += _records(requests, [*made, *rest])
            raise
        finally:
            for step in running:
                step.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        if failed is not None:
            self._unrecorded += _records(requests, made)
            raise failed
        return made

    async def call_model(self, name: str, request: ModelCallRequest, run: RunModelCall) -> Any:
        """Makes a model call, or returns its recorded result. Raises StepFailed."""
        if not name or len(name) > MAX_NAME_CHARACTERS:
            raise ValueError(f"a model call needs a name of 1 to {MAX_NAME_CHARACTERS} characters")
        check_text(name, f"the name of the model call {name!a}")
        check_request(request)
        check_text(request.model, f"the model of the model call {name}")
        with self._one_at_a_time():
            self.steps += 1
            begin = BeginModelCall(self.steps, name, request)
            try:
                await self.settle()
                made: ControlStep | AttemptReport = await self._ask(begin)
                while isinstance(made, AttemptReport):
                    made = await self._attempt(begin, made, run)
            except (asyncio.CancelledError, SystemExit):  # by the function: at the end of the run nothing is settled
                self._unrecorded.append(CancelModelCall(begin.step, name))
                raise
        return result_of(made)

    async def call_tool(self, tool: str, arguments: Mapping[str, Any] | None = None) -> str:
        """Returns the content of the call's outcome. Raises ToolFailed."""
        (outcome,) = await self.call_tools([(tool, arguments or {})])
        if outcome.is_error:
            raise ToolFailed(tool, outcome)
        return outcome.content

    async def call_tools(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Outcome]:
        """Returns the outcomes of the calls, in order."""
        return await self._call(calls, ())

    async def call_own_tools(self, calls: Sequence[tuple[OwnTool, Mapping[str, Any]]]) -> list[Outcome]:
        """Returns the outcomes of the calls, in order. Raises ValueError for two tools of one name."""
        own = {tool.name: tool for tool, _ in calls}
        if any(own[tool.name] is not tool for tool, _ in calls):
            raise ValueError("call_own_tools got two tools of one name; a name has one meaning in a task")
        return await self._call([(tool.name, arguments) for tool, arguments in calls], tuple(own.values()))

    async def recorded_calls(self) -> Sequence[RecordedCall]:
        """Returns the recorded tool calls of the next step."""
        with self._one_at_a_time():
            await self.settle()
            recorded: Sequence[RecordedCall] = await self._ask(FindCalls(self.steps + 1))
        return recorded

    async def new_messages(self) -> list[UserMessage]:
        """Returns the messages of users since the last look."""
        with self._one_at_a_time():
            await self.settle()
            messages: list[UserMessage] = await self._ask(ReadMessages(self.steps + 1))
            self.steps += bool(messages)
        return messages

    async def read_file(self, file: SubmittedFile) -> bytes:
        """Returns the content of a file. Raises ResultLost."""
        return await self._read(ReadFile(file)) or b""

    async def image_for(self, model: str, file: SubmittedFile) -> bytes | None:
        """Returns the content of an image; None: the model does not see images. Raises ResultLost."""
        return await self._read(ReadFile(file, model))

    async def _read(self, request: ReadFile) -> bytes | None:
        with self._one_at_a_time():
            await self.settle()
            content: bytes | None = await self._ask(request)
        return content

    async def _call(self, calls: Sequence[tuple[str, Mapping[str, Any]]], own: tuple[OwnTool, ...]) -> list[Outcome]:
        if not 0 < len(calls) <= MAX_CALLS:
            raise ValueError(f"a function makes 1 to {MAX_CALLS} calls at a time, got {len(calls)}")
        for tool, _ in calls:
            check_text(tool, f"the name of the tool {tool!a}")
        wanted_calls = tuple(
            FunctionToolCall(tool, encode(dict(arguments), "the arguments")) for tool, arguments in calls
        )
        with self._one_at_a_time():
            await self.settle()
            self.steps += 1
            outcomes: list[Outcome] = await self._ask(CallTools(self.steps, wanted_calls, own))
        return outcomes

    async def settle(self) -> None:
        """Records the failures of steps that the function caught or cancelled, before the next request.

        The function may cancel this wait, too. What has no answer then is asked again: the loop records a step once.
        """
        while self._unrecorded:
            request = self._unrecorded[0]
            unkept: ControlFailure | None = await self._ask(request)
            if unkept is not None and isinstance(request, RecordStep):
                await self._ask(RecordStep(request.step, ControlStep(request.entry.name, failure=unkept)))
            del self._unrecorded[0]

    async def _make(self, name: str, run: Callable[..., Any], args: tuple[Any, ...], timeout_seconds: float) -> _Made:
        """Makes a step. Returns its entry, and the exception if it failed."""
        began = monotonic()
        try:
            async with asyncio.timeout(timeout_seconds):
                with unit(f"the step {name}"):
                    result = await call(run, args)
            result_json = encode(result, f"the result of step {name}", MAX_KEPT_BYTES)
        except Exception as error:  # noqa: BLE001  recorded, or raised as StepFailed
            failure = failure_of(error)
            return _Made(ControlStep(name, failure=failure, duration_seconds=monotonic() - began), error)
        return _Made(ControlStep(name, result_json, duration_seconds=monotonic() - began))

    async def _attempt(
        self, begin: BeginModelCall, report: AttemptReport, run: RunModelCall
    ) -> ControlStep | AttemptReport:
        """Makes one attempt. Returns the recorded step, or the report of the next attempt. Raises StepFailed."""
        try:
            answer = await report.make(run)
            # A model may write half of a surrogate pair in its JSON, which is not a reason to pay for another call.
            result = well_formed_value(answer.result)
            result_json = encode(result, f"the result of the model call {begin.name}", MAX_KEPT_BYTES)
        except Exception as error:
            failed = report.with_size(failure_of_call(error))
            following: AttemptReport | ControlFailure = await self._ask(FailModelCall(begin, report, failed))
            if isinstance(following, AttemptReport):
                return following
            entry = ControlStep(begin.name, failure=following, duration_seconds=report.seconds)
            self._unrecorded.append(RecordStep(begin.step, entry))
            raise StepFailed(begin.name, following) from error
        entry = ControlStep(begin.name, result_json, duration_seconds=report.seconds)
        unkept: ControlFailure | None = await self._ask(RecordModelCall(report, answer, entry))
        return entry if unkept is None else ControlStep(begin.name, failure=unkept)

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Raises RuntimeError for a second step or call at the same time.

        The order of steps and calls identifies them after a takeover, so there must be one order.
        """
        if self._is_busy:
            raise RuntimeError("a step or call began while another was running; use call_tools for several calls")
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False


def _check_step(name: str, timeout_seconds: float) -> None:
    if not (0 < len(name) <= MAX_NAME_CHARACTERS and timeout_seconds > 0):  # NaN is not above 0, either
        raise ValueError(f"a step needs a name of 1 to {MAX_NAME_CHARACTERS} characters and a positive timeout")
    if name == MESSAGES:
        raise ValueError(f"{name} is the name of the steps of new_messages(): choose another one")
    check_text(name, f"the name of step {name!a}")


def _records(requests: Sequence[BeginStep], made: Sequence[ControlStep]) -> list[RecordStep | CancelModelCall]:
    return [RecordStep(begin.step, entry) for begin, entry in zip(requests, made, strict=True)]


# One run of a function: from its start to its end or its cancellation.

_log: Final = logging.getLogger(__name__)
STOP_SECONDS: Final = 1.0
"""The time for a cancelled function to clean up. After it the task leaves this worker in any case."""

_overdue: Final[set[asyncio.Task[None]]] = set()
"""Functions that ignored their cancellation. Their further requests are refused."""


class WorkIsOver(BaseException):
    """Ends a function that ignored its cancellation and sends a request.

    Not an Exception, which it would ignore too.
    """


class FunctionRequest(NamedTuple):
    """A request of the function and the future of its answer."""

    request: Request
    answer: asyncio.Future[Any]


class FunctionRun:
    """Runs the function in `async with`: starts it at the beginning, and cancels it at the end if it is not done."""

    def __init__(
        self,
        function: Function,
        control: ControlWork,
        task_id: str,
        goal: str,
        approve_tools: Collection[str] = (),
        files: Sequence[SubmittedFile] = (),
        replay_model: str = "",
    ) -> None:
        self._function, self._control = function, control
        self._work = FunctionWork(task_id, goal, self._ask, approve_tools, files, replay_model)
        self._requests: asyncio.Queue[FunctionRequest] = asyncio.Queue()  # each request has its number: none is lost
        self._is_over = False
        self._running: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._run(), name=f"function {self._control.function}")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        self._running.cancel()
        await asyncio.wait({self._running}, timeout=STOP_SECONDS)
        if not self._running.done():
            _log.warning("a control function ignores its cancellation", extra={"function": self._control.function})
            _overdue.add(self._running)
            self._running.add_done_callback(_overdue.discard)

    async def next(self) -> FunctionRequest:
        """Waits for the function's next request."""
        return await self._requests.get()

    async def _ask(self, request: Request) -> Any:
        if self._is_over:
            raise WorkIsOver
        if self._running.get_loop() is not (loop := asyncio.get_running_loop()):
            raise NotReplayable(
                "the function used its work, or ran an agent, in another thread: await it in the function itself, "
                "for example agent.run(…) in place of agent.run_sync(…)"
            )
        answer: asyncio.Future[Any] = loop.create_future()
        await self._requests.put(FunctionRequest(request, answer))
        return await answer

    async def _run(self) -> None:
        try:
            input_value = json.loads(self._control.input_json or "null")
            result = await self._function(self._work, input_value)
            result_json = encode(result, "the result of the function")
            await self._work.settle()
            last: Request = Returned(self._work.steps, result_json)
        except asyncio.CancelledError as error:
            if self._is_over:
                raise
            last = Raised(failure_of(error))  # the function cancelled a coroutine of its own
        except WorkIsOver:
            return
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001  the user's function may raise anything, and the loop waits for it
            _log.warning("a function failed", exc_info=True, extra={"function": self._control.function})
            last = Raised(failure_of(error))
        if not self._is_over:
            await self._ask(last)
