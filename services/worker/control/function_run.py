"""Runs a control function: its steps, model calls and tool calls become requests to the loop that holds the claim."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, NamedTuple, Self

from services.worker.control.callables import call
from services.worker.control.model_calls import AttemptReport, check_request
from tenure.control import Function, ModelCallAnswer, ModelCallRequest, RunModelCall, StepFailed, ToolFailed
from tenure.control.failures import CallFailure, failure_of, failure_of_call
from tenure.control.work import STEP_TIMEOUT_SECONDS
from tenure.domain.control import FunctionToolCall
from tenure.domain.entries import ControlFailure, ControlStep
from tenure.domain.task import ControlWork
from tenure.domain.tool_arguments import storable_json
from tenure.domain.tools import Outcome
from tenure.runtime import semconv
from tenure.runtime.telemetry import span
from tenure.validators import MAX_CONTROL_JSON_BYTES

# The requests of a function to its loop. The function waits for the answer, so there is one at a time.


@dataclass(frozen=True, slots=True)
class BeginStep:
    """Asks for the recorded step. The answer None means: make the step now, within the timeout."""

    step: int
    name: str
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class RecordStep:
    """Asks to record a step. Answered when the entry is in the ledger."""

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
    """Asks to record an answer with its step. Answered when both are in the ledger."""

    report: AttemptReport
    answer: ModelCallAnswer
    entry: ControlStep


@dataclass(frozen=True, slots=True)
class FailModelCall:
    """Asks to record a failed attempt. Answered with the report of the next attempt; None: there is none."""

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
    """Asks for tool calls. Answered with their outcomes, in order."""

    step: int
    calls: tuple[FunctionToolCall, ...]


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
    | Returned
    | Raised
)


MAX_NAME_CHARACTERS: Final = 200
MAX_CALLS: Final = 64
"""The maximum number of tool calls in one step."""

Ask = Callable[[Request], Awaitable[Any]]


class FunctionWork:
    """Implements tenure.control.Work. Steps and calls share one number sequence: 1, 2, 3 and so on."""

    def __init__(self, task_id: str, goal: str, ask: Ask) -> None:
        self._task_id, self._goal, self._ask = task_id, goal, ask
        self._is_busy = False
        self._failed: RecordStep | CancelModelCall | None = None
        self.steps = 0

    @property
    def task_id(self) -> str:
        return self._task_id

    @property
    def goal(self) -> str:
        return self._goal

    @property
    def key(self) -> str:
        return f"{self._task_id}/{self.steps}"

    async def step(
        self, name: str, run: Callable[..., Any], /, *args: Any, timeout_seconds: float = STEP_TIMEOUT_SECONDS
    ) -> Any:
        """Returns the result of the step, recorded now or earlier. Raises StepFailed."""
        if not 0 < len(name) <= MAX_NAME_CHARACTERS or timeout_seconds <= 0:
            raise ValueError(f"a step needs a name of 1 to {MAX_NAME_CHARACTERS} characters and a positive timeout")
        with self._one_at_a_time():
            step = await self._next()
            recorded: ControlStep | None = await self._ask(BeginStep(step, name, timeout_seconds))
            if recorded is None:
                recorded = await self._make(step, name, run, args, timeout_seconds)
        if recorded.failure is not None:
            raise StepFailed(name, recorded.failure)
        return json.loads(recorded.result_json)

    async def call_model(self, name: str, request: ModelCallRequest, run: RunModelCall) -> Any:
        """Makes a model call, or returns its recorded result. Raises StepFailed."""
        if not name or len(name) > MAX_NAME_CHARACTERS:
            raise ValueError(f"a model call needs a name of 1 to {MAX_NAME_CHARACTERS} characters")
        check_request(request)
        with self._one_at_a_time():
            begin = BeginModelCall(await self._next(), name, request)
            try:
                made: ControlStep | AttemptReport = await self._ask(begin)
                while isinstance(made, AttemptReport):
                    made = await self._attempt(begin, made, run)
            except (asyncio.CancelledError, SystemExit):  # by the function: at the end of the run nothing is settled
                self._failed = CancelModelCall(begin.step, name)
                raise
        if made.failure is not None:
            raise StepFailed(name, made.failure)
        return json.loads(made.result_json)

    async def call_tool(self, tool: str, arguments: Mapping[str, Any] | None = None) -> str:
        """Returns the content of the call's outcome. Raises ToolFailed."""
        (outcome,) = await self.call_tools([(tool, arguments or {})])
        if outcome.is_error:
            raise ToolFailed(tool, outcome)
        return outcome.content

    async def call_tools(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Outcome]:
        """Returns the outcomes of the calls, in order."""
        if not 0 < len(calls) <= MAX_CALLS:
            raise ValueError(f"call_tools takes 1 to {MAX_CALLS} calls at a time, got {len(calls)}")
        wanted_calls = tuple(
            FunctionToolCall(tool, encode(dict(arguments), "the arguments")) for tool, arguments in calls
        )
        with self._one_at_a_time():
            outcomes: list[Outcome] = await self._ask(CallTools(await self._next(), wanted_calls))
        return outcomes

    async def settle(self) -> None:
        """Records the failure of a step that the function caught or cancelled, before the next request."""
        failed, self._failed = self._failed, None
        if failed is not None:
            await self._ask(failed)

    async def _next(self) -> int:
        await self.settle()
        self.steps += 1
        return self.steps

    async def _make(
        self, step: int, name: str, run: Callable[..., Any], args: tuple[Any, ...], timeout_seconds: float
    ) -> ControlStep:
        began = monotonic()
        try:
            with span(f"step {name}", {semconv.TASK_ID: self._task_id, semconv.STEP: step}):
                async with asyncio.timeout(timeout_seconds):
                    result = await call(run, args)
            result_json = encode(result, f"the result of step {name}")
        except Exception as error:
            failure = failure_of(error)
            entry = ControlStep(name, failure=failure, duration_seconds=monotonic() - began)
            self._failed = RecordStep(step, entry)
            raise StepFailed(name, failure) from error
        entry = ControlStep(name, result_json, duration_seconds=monotonic() - began)
        await self._ask(RecordStep(step, entry))
        return entry

    async def _attempt(
        self, begin: BeginModelCall, report: AttemptReport, run: RunModelCall
    ) -> ControlStep | AttemptReport:
        """Makes one attempt. Returns the recorded step, or the report of the next attempt. Raises StepFailed."""
        try:
            answer = await report.make(run)
            result_json = encode(answer.result, f"the result of the model call {begin.name}")
        except Exception as error:
            failed = failure_of_call(error)
            following: AttemptReport | None = await self._ask(FailModelCall(begin, report, failed))
            if following is not None:
                return following
            entry = ControlStep(begin.name, failure=failed.failure, duration_seconds=report.seconds)
            self._failed = RecordStep(begin.step, entry)
            raise StepFailed(begin.name, failed.failure) from error
        entry = ControlStep(begin.name, result_json, duration_seconds=report.seconds)
        await self._ask(RecordModelCall(report, answer, entry))
        return entry

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


def encode(value: Any, what: str) -> str:
    """Encodes a value as JSON.

    Raises TypeError for another type, and ValueError for a value too large, nested too deeply or not finite.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    size = len(text.encode())
    if size > MAX_CONTROL_JSON_BYTES:
        raise ValueError(
            f"{what} has {size} bytes of JSON, at most {MAX_CONTROL_JSON_BYTES} are allowed: store it elsewhere"
        )
    try:
        storable_json(text)
    except ValueError as error:
        raise ValueError(f"{what} cannot be stored: {error}") from None
    return text


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

    def __init__(self, function: Function, control: ControlWork, task_id: str, goal: str) -> None:
        self._function, self._control = function, control
        self._work = FunctionWork(task_id, goal, self._ask)
        self._requests: asyncio.Queue[FunctionRequest] = asyncio.Queue(maxsize=1)
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
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
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
        except (Exception, SystemExit) as error:  # noqa: BLE001  the user's function may raise anything
            _log.warning("a function failed", exc_info=True, extra={"function": self._control.function})
            last = Raised(failure_of(error))
        except WorkIsOver:
            return
        await self._ask(last)
