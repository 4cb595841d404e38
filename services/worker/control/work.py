"""The work that a function is given: each step and call becomes a request to the loop that holds the claim."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final

from services.worker.control.blocking import call
from services.worker.control.requests import BeginStep, CallTools, RecordStep, Request
from tenure.control import StepFailed, ToolFailed
from tenure.control.failures import failure_of
from tenure.control.work import STEP_TIMEOUT_SECONDS
from tenure.domain.control import Call
from tenure.domain.entries import ControlStep
from tenure.domain.tools import Outcome
from tenure.runtime import semconv
from tenure.runtime.telemetry import span
from tenure.validators import MAX_CONTROL_JSON_BYTES

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
        asked = tuple(Call(tool, encode(dict(arguments), "the arguments")) for tool, arguments in calls)
        with self._alone():
            outcomes: list[Outcome] = await self._ask(CallTools(await self._next(), asked))
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
