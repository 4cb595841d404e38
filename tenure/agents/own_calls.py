"""Makes the tool calls that an agent makes at the same time as one step of its function, so that they run in parallel.

The libraries begin the calls of one answer one after the other, each in a coroutine of its own, and nothing says how
many will come. So the first call waits until no more arrive, and then all are made. A later execution makes the same
calls in the same steps: the ledger says which calls a step has, and the step waits for them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Final

from pydantic_core import to_jsonable_python

from tenure.control.own_tools import ForModel, OwnTool, OwnToolContext
from tenure.control.work import MAX_CALLS, RecordedCall, Work
from tenure.domain.tool_arguments import storable_json
from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.validators.common import MAX_CONTROL_JSON_BYTES

QUIET_ITERATIONS: Final = 30
"""The iterations of the event loop without another call after which there are no more. A library needs a few a call."""
ARRIVAL_SECONDS: Final = 60.0
"""How long a later execution waits for the calls of a recorded step."""
_LOOK_SECONDS: Final = 0.01


def value_of(content: str) -> Any:
    """Returns the value of a successful outcome: the JSON that the tool's run recorded, or else the text itself.

    A person who resolves a call in doubt as happened gives its result as text.
    """
    try:
        return json.loads(content)
    except ValueError:
        return content


def content_of(value: Any) -> str:
    """Returns the content from which `value_of` makes the value again. A text that is not JSON is its own content."""
    is_plain = isinstance(value, str) and value_of(value) == value
    return str(value) if is_plain else json.dumps(value, ensure_ascii=False)


def for_model(value: Any, limit_bytes: int) -> ForModel:
    """Returns the content for a model that reads so many bytes of it: a longer text is shortened, so it is not JSON."""
    is_long = isinstance(value, str) and len(value.encode(errors="surrogatepass")) > limit_bytes
    return ForModel(value if is_long else content_of(value))


def check_finite(value: Any, what: str) -> None:
    """Raises ValueError for NaN and infinity in a result: JSON has neither, and Pydantic writes null in their place."""
    try:
        json.dumps(to_jsonable_python(value, fallback=str), allow_nan=False)
    except ValueError as error:
        raise ValueError(f"{what} ran, and its result cannot be recorded: {error}; return a text or None") from None


def _problem_of(arguments: Mapping[str, Any]) -> str:
    """Returns why the ledger cannot have these arguments; "": it can. A model may write NaN, for example."""
    try:
        text = json.dumps(dict(arguments), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        size = len(text.encode())
        storable_json(text)
    except (ValueError, RecursionError) as error:
        return str(error)
    is_small = size <= MAX_CONTROL_JSON_BYTES
    return "" if is_small else f"they have {size} bytes of JSON, at most {MAX_CONTROL_JSON_BYTES} are allowed"


def _future() -> asyncio.Future[Outcome]:
    return asyncio.get_running_loop().create_future()


@dataclass(eq=False, slots=True)
class _Call:
    tool: OwnTool
    arguments: Mapping[str, Any]
    outcome: asyncio.Future[Outcome] = field(default_factory=_future)

    def is_recorded_as(self, recorded: RecordedCall, *, exactly: bool) -> bool:
        """Whether this may be the recorded call. Not `exactly`: a person may have edited the arguments."""
        if self.tool.name != recorded.tool:
            return False
        return not exactly or json.loads(recorded.arguments_json) == dict(self.arguments)


class OwnCalls:
    """The calls of own tools of one execution. `lock`: held for each request to `work`."""

    def __init__(self, work: Work, lock: asyncio.Lock) -> None:
        self._work, self._lock = work, lock
        self._waiting: list[_Call] = []
        self._being_made: list[_Call] = []
        self._making: asyncio.Task[None] | None = None

    async def call(self, tool: OwnTool, arguments: Mapping[str, Any]) -> Outcome:
        """Returns the outcome of a call, which is made together with those that other coroutines make now.

        A call whose arguments cannot be recorded is not made: the model gets an error, and may call again.
        """
        if problem := _problem_of(arguments):
            message = f"The arguments of {tool.name} cannot be recorded: {problem}."
            return Outcome(OutcomeStatus.INVALID_ARGUMENTS, message)
        call = _Call(tool, arguments)
        self._waiting.append(call)
        if self._making is None:
            self._making = asyncio.create_task(self._make(), name="own calls")
        try:
            return await call.outcome
        finally:
            self._leave(call)

    def _leave(self, call: _Call) -> None:
        """Forgets the call. The last caller that leaves stops the calls that are being made."""
        for calls in (self._waiting, self._being_made):
            if call in calls:
                calls.remove(call)
        if self._making is not None and not self._waiting and not self._being_made:
            self._making.cancel()

    async def _make(self) -> None:
        try:
            while self._waiting:
                async with self._lock:
                    calls = await self._next()
                    self._being_made = list(calls)
                    outcomes = await self._work.call_own_tools(_requests(calls))
                for call, outcome in zip(calls, outcomes, strict=True):
                    if not call.outcome.done():
                        call.outcome.set_result(outcome)
        except asyncio.CancelledError:
            for call in (*self._waiting, *self._being_made):
                call.outcome.cancel()
        except BaseException as error:  # noqa: BLE001  each caller raises it
            for call in (*self._waiting, *self._being_made):
                if not call.outcome.done():
                    call.outcome.set_exception(error)
        finally:
            self._making = None

    async def _next(self) -> list[_Call]:
        """Takes the calls of the next step out of those that wait."""
        await self._quiet()
        recorded = await self._work.recorded_calls()
        ends_at = monotonic() + ARRIVAL_SECONDS
        matches = _recorded_ones(self._waiting, recorded)
        while matches is None and monotonic() < ends_at:
            await asyncio.sleep(_LOOK_SECONDS)
            matches = _recorded_ones(self._waiting, recorded)
        chosen = matches or list(_compatible(self._waiting))
        self._waiting = [call for call in self._waiting if call not in chosen]
        return chosen

    async def _quiet(self) -> None:
        """Waits until no more calls arrive."""
        count, quiet = 0, 0
        while quiet < QUIET_ITERATIONS:
            quiet, count = (quiet + 1, count) if count == len(self._waiting) else (0, len(self._waiting))
            await asyncio.sleep(0)


def _recorded_ones(waiting: Sequence[_Call], recorded: Sequence[RecordedCall]) -> list[_Call] | None:
    """Returns the recorded calls in their order; None: not all of them have arrived."""
    chosen: dict[int, _Call] = {}
    for exactly in (True, False):
        for index, each in enumerate(recorded):
            left = (call for call in waiting if call not in chosen.values())
            if index not in chosen and (call := next(_matching(left, each, exactly=exactly), None)) is not None:
                chosen[index] = call
    return [chosen[index] for index in range(len(recorded))] if len(chosen) == len(recorded) else None


def _matching(calls: Iterator[_Call], recorded: RecordedCall, *, exactly: bool) -> Iterator[_Call]:
    return (call for call in calls if call.is_recorded_as(recorded, exactly=exactly))


def _compatible(calls: Sequence[_Call]) -> Iterator[_Call]:
    """Yields the first calls, up to one whose tool has another definition than a tool of the same name before it."""
    meanings: dict[str, Any] = {}
    for call in calls[:MAX_CALLS]:
        meaning = (call.tool.definition, call.tool.needs_approval)
        if meanings.setdefault(call.tool.name, meaning) != meaning:
            return
        yield call


def _requests(calls: Sequence[_Call]) -> list[tuple[OwnTool, Mapping[str, Any]]]:
    """Returns the calls with one tool for each name, which runs the code of each of its calls."""

    async def run(context: OwnToolContext, arguments: Mapping[str, Any]) -> str:
        _, _, index = context.call_id.rpartition(".")
        return await calls[int(index)].tool.run(context, arguments)

    tools: dict[str, OwnTool] = {}
    for call in calls:
        if call.tool.name not in tools:
            tools[call.tool.name] = replace(call.tool, run=run)
    return [(tools[call.tool.name], call.arguments) for call in calls]
