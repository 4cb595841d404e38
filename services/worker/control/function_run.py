"""The work that a function is given: each step and call becomes a request to the loop that holds the claim."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, NamedTuple, Self

from tenure.control import Function, StepFailed, ToolFailed
from tenure.control.failures import failure_of
from tenure.control.work import STEP_TIMEOUT_SECONDS
from tenure.domain.control import FunctionToolCall
from tenure.domain.entries import ControlFailure, ControlStep
from tenure.domain.task import ControlWork
from tenure.domain.tools import Outcome
from tenure.runtime import semconv
from tenure.runtime.telemetry import span
from tenure.validators import MAX_CONTROL_JSON_BYTES

# What a function asks of its loop. One at a time; the function waits for the answer.


@dataclass(frozen=True, slots=True)
class BeginStep:
    """Answered with the step as it is recorded, or None: make it now, in at most this time."""

    step: int
    name: str
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class RecordStep:
    """Answered when it is in the ledger."""

    step: int
    fact: ControlStep


@dataclass(frozen=True, slots=True)
class CallTools:
    """Answered with the outcomes, in order."""

    step: int
    calls: tuple[FunctionToolCall, ...]


@dataclass(frozen=True, slots=True)
class Returned:
    """The function is done, after so many steps."""

    step: int
    result_json: str


@dataclass(frozen=True, slots=True)
class Raised:
    """The function is done with."""

    failure: ControlFailure


Request = BeginStep | RecordStep | CallTools | Returned | Raised


# Plain functions as steps: in a thread each, so that they stop nobody else's work.


async def call(run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """What `run(*arguments)` comes to. Cancelled, it stops waiting; a thread goes on, and its result is forgotten."""
    if inspect.iscoroutinefunction(run):
        return await run(*arguments)
    result = await _in_thread(run, arguments)
    return await result if inspect.isawaitable(result) else result


async def _in_thread(run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """A thread of its own that does not keep the process: a step that hangs must not hold up a drain."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if ended.done():
            return
        if error is None:
            ended.set_result(result)
        else:
            ended.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(run, *arguments)
        except BaseException as raised:  # noqa: BLE001  handed over, whatever it is
            error = RuntimeError(f"{raised!r}") if isinstance(raised, StopIteration) else raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name=f"step {getattr(run, '__name__', '')}", daemon=True).start()
    return await ended


MOST_NAME_CHARACTERS: Final = 200
MOST_CALLS: Final = 64
"""In one step."""

Ask = Callable[[Request], Awaitable[Any]]


class FunctionWork:
    """See tenure.control.Work. Steps and calls are counted together, 1, 2, 3 …"""

    def __init__(self, task_id: str, ask: Ask) -> None:
        self._task_id, self._ask = task_id, ask
        self._is_busy = False
        self._failed: RecordStep | None = None
        self.steps = 0

    @property
    def task_id(self) -> str:
        return self._task_id

    @property
    def key(self) -> str:
        return f"{self._task_id}/{self.steps}"

    async def step(
        self, name: str, run: Callable[..., Any], /, *args: Any, timeout_seconds: float = STEP_TIMEOUT_SECONDS
    ) -> Any:
        """What it came to, now or before."""
        if not 0 < len(name) <= MOST_NAME_CHARACTERS or timeout_seconds <= 0:
            raise ValueError(f"a step has a name of 1 to {MOST_NAME_CHARACTERS} characters, and some time")
        with self._alone():
            step = await self._next()
            recorded: ControlStep | None = await self._ask(BeginStep(step, name, timeout_seconds))
            if recorded is None:
                recorded = await self._make(step, name, run, args, timeout_seconds)
        if recorded.failure is not None:
            raise StepFailed(name, recorded.failure)
        return json.loads(recorded.result_json)

    async def call_tool(self, tool: str, arguments: Mapping[str, Any] | None = None) -> str:
        """The content of its outcome."""
        (outcome,) = await self.call_tools([(tool, arguments or {})])
        if outcome.is_error:
            raise ToolFailed(tool, outcome)
        return outcome.content

    async def call_tools(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Outcome]:
        """Their outcomes."""
        if not 0 < len(calls) <= MOST_CALLS:
            raise ValueError(f"1 to {MOST_CALLS} calls at a time")
        wanted_calls = tuple(
            FunctionToolCall(tool, encode(dict(arguments), "the arguments")) for tool, arguments in calls
        )
        with self._alone():
            outcomes: list[Outcome] = await self._ask(CallTools(await self._next(), wanted_calls))
        return outcomes

    async def settle(self) -> None:
        """A failure that the function lives with is recorded before anything follows from it."""
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
            fact = ControlStep(name, failure=failure, duration_seconds=monotonic() - began)
            self._failed = RecordStep(step, fact)
            raise StepFailed(name, failure) from error
        fact = ControlStep(name, result_json, duration_seconds=monotonic() - began)
        await self._ask(RecordStep(step, fact))
        return fact

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Their order is how they are known again, so there must be one."""
        if self._is_busy:
            raise RuntimeError(
                "a step or call was begun while another one is under way; use call_tools for several calls"
            )
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False


def encode(value: Any, what: str) -> str:
    """As JSON. TypeError for what is none, ValueError for what is too large, or not finite."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    size = len(text.encode())
    if size > MAX_CONTROL_JSON_BYTES:
        raise ValueError(
            f"{what} has {size} bytes of JSON, at most {MAX_CONTROL_JSON_BYTES} are kept: put it elsewhere"
        )
    return text


# One run of a function, from its beginning to its end or until it is stopped.

_log: Final = logging.getLogger(__name__)
STOP_SECONDS: Final = 1.0
"""So long a function may tidy up after its cancellation. Its task is left then, whether it has ended or not."""

_overdue: Final[set[asyncio.Task[None]]] = set()
"""Functions that do not end when they are cancelled. What they ask for from now on is refused."""


class WorkIsOver(BaseException):
    """Ends a function that swallowed its cancellation and asks for more. No Exception: it would swallow that too."""


class FunctionRequest(NamedTuple):
    """A request, and where its answer goes."""

    request: Request
    answer: asyncio.Future[Any]


class FunctionRun:
    """`async with` it: the function begins, and is cancelled at the end, if it is not done by then."""

    def __init__(self, function: Function, control: ControlWork, task_id: str) -> None:
        self._function, self._control = function, control
        self._work = FunctionWork(task_id, self._ask)
        self._asked: asyncio.Queue[FunctionRequest] = asyncio.Queue(maxsize=1)
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
            _log.warning("a function goes on though it was cancelled", extra={"function": self._control.function})
            _overdue.add(self._running)
            self._running.add_done_callback(_overdue.discard)

    async def next(self) -> FunctionRequest:
        """What the function asks for next."""
        return await self._asked.get()

    async def _ask(self, request: Request) -> Any:
        if self._is_over:
            raise WorkIsOver
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await self._asked.put(FunctionRequest(request, answer))
        return await answer

    async def _run(self) -> None:
        try:
            given = json.loads(self._control.input_json or "null")
            result = await self._function(self._work, given)
            result_json = encode(result, "what the function returns")
            await self._work.settle()
            last: Request = Returned(self._work.steps, result_json)
        except asyncio.CancelledError as error:
            if self._is_over:
                raise
            last = Raised(failure_of(error))  # something in the function was cancelled, by itself
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a backend's own function raises
            _log.warning("a function failed", exc_info=True, extra={"function": self._control.function})
            last = Raised(failure_of(error))
        except WorkIsOver:
            return
        await self._ask(last)
