"""A function's requests to its loop: no step loses its number or its record, whatever the function cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from services.worker.control.function_run import (
    BeginModelCall,
    BeginStep,
    CancelModelCall,
    FunctionRequest,
    FunctionRun,
    Raised,
    RecordModelCall,
    RecordStep,
    Returned,
)
from services.worker.control.model_calls import AttemptReport
from tenure.control import ModelCallAnswer, ModelCallReport, ModelCallRequest, OwnTool, StepFailed, TokenUsage, Work
from tenure.domain.entries import ControlStep, ModelAttempt
from tenure.domain.task import ControlWork
from tenure.domain.tools import EffectClass

SECONDS = 60.0


class Loop:
    """The other side of the requests: the record of the steps, by their numbers."""

    def __init__(self, run: FunctionRun) -> None:
        self._run = run
        self.recorded: dict[int, ControlStep] = {}

    async def next(self) -> FunctionRequest:
        async with asyncio.timeout(SECONDS):
            return await self._run.next()

    async def until_end(self) -> Returned | Raised:
        """Answers all requests. Returns the last one."""
        while True:
            asked = await self.next()
            match asked.request:
                case Returned() | Raised():
                    return asked.request
                case RecordStep(step=step, entry=entry):
                    self.recorded.setdefault(step, entry)
                case CancelModelCall(step=step, name=name):
                    self.recorded.setdefault(step, ControlStep(name))
            if not asked.answer.done():
                asked.answer.set_result(None)

    @property
    def names(self) -> dict[int, str]:
        return {step: entry.name for step, entry in sorted(self.recorded.items())}


def run_of(function: Callable[[Work, Any], Coroutine[Any, Any, Any]]) -> FunctionRun:
    return FunctionRun(function, ControlWork("f"), "task", "")


async def say() -> str:
    return "said"


async def fail() -> None:
    raise KeyError("month")


async def cancelled(making: Coroutine[Any, Any, Any], cancel: asyncio.Event) -> None:
    """Begins something, and cancels it when the test says so."""
    made = asyncio.ensure_future(making)
    await cancel.wait()
    made.cancel()
    with suppress(asyncio.CancelledError):
        await made


def second_step(work: Work) -> Coroutine[Any, Any, Any]:
    return work.step("second", say)


def second_steps(work: Work) -> Coroutine[Any, Any, Any]:
    return work.gather(("second", say), ("third", say))


def second_call(work: Work) -> Coroutine[Any, Any, Any]:
    return work.call_model("second", ModelCallRequest(model="m", input_tokens=1, max_output_tokens=1), never)


async def never(_report: Any) -> Any:
    raise AssertionError("the call was cancelled before it was reserved")


@pytest.mark.parametrize("second", [second_step, second_steps, second_call])
async def test_a_wait_for_a_former_record_may_be_cancelled(second: Callable[[Work], Coroutine[Any, Any, Any]]) -> None:
    cancel = asyncio.Event()

    async def function(work: Work, _given: Any) -> None:
        with suppress(StepFailed):
            await work.gather(("failed", fail), ("made", say))
        await cancelled(second(work), cancel)
        await work.step("last", say)

    async with run_of(function) as run:
        loop = Loop(run)
        for _ in range(4):  # the beginnings of both steps, and again when each is waited for
            begun = await loop.next()
            assert isinstance(begun.request, BeginStep)
            begun.answer.set_result(None)
        former = await loop.next()
        assert isinstance(former.request, RecordStep)
        assert former.request.entry.name == "failed"
        cancel.set()
        assert isinstance(await loop.until_end(), Returned)
    names = list(loop.names.values())
    assert list(loop.names) == list(range(1, len(names) + 1)), "a later execution would diverge at the gap"
    assert names[:3] == ["failed", "made", "second"]
    assert names[-1] == "last"


async def test_steps_cancelled_before_they_begin_keep_their_numbers() -> None:
    cancel = asyncio.Event()

    async def function(work: Work, _given: Any) -> None:
        await cancelled(work.gather(("one", say), ("two", say)), cancel)
        await work.step("last", say)

    async with run_of(function) as run:
        loop = Loop(run)
        begun = await loop.next()  # a loop that waits for its trust window does not answer
        assert isinstance(begun.request, BeginStep)
        cancel.set()
        assert isinstance(await loop.until_end(), Returned)
    assert loop.names == {1: "one", 2: "two", 3: "last"}
    assert {step for step, entry in loop.recorded.items() if entry.failure is not None} == {1, 2}


async def test_a_step_whose_exit_is_caught_is_recorded() -> None:
    def leave() -> None:
        raise SystemExit(3)

    async def function(work: Work, _given: Any) -> str:
        with suppress(SystemExit):
            await work.step("leave", leave)
        return str(await work.step("last", say))

    async with run_of(function) as run:
        loop = Loop(run)
        assert isinstance(await loop.until_end(), Returned)
    assert loop.names == {1: "leave", 2: "last"}


class Halt(BaseException):
    """Not an Exception, as what pytest.fail raises."""


async def test_any_exception_of_a_function_ends_its_task() -> None:
    async def function(_work: Work, _given: Any) -> None:
        raise Halt("enough")

    async with run_of(function) as run:
        last = await Loop(run).until_end()
    assert isinstance(last, Raised)
    assert (last.failure.error_class, last.failure.message, last.failure.retryable) == ("Halt", "enough", False)


HALF = "a\ud800"
REQUEST = ModelCallRequest(model="m", input_tokens=10, max_output_tokens=20)


@pytest.mark.parametrize(
    ("what", "request_of"),
    [
        ("name of step", lambda work: work.step(HALF, say)),
        ("name of step", lambda work: work.gather(("first", say), (HALF, say))),
        ("name of the model call", lambda work: work.call_model(HALF, REQUEST, answer)),
        ("model of the model call m", lambda work: work.call_model("m", replace(REQUEST, model=HALF), answer)),
        ("name of the tool", lambda work: work.call_tool(HALF)),
        ("arguments", lambda work: work.call_tool("pay", {"note": HALF})),
        ("result of step last", lambda work: work.step("last", lambda: HALF)),
    ],
)
async def test_half_of_a_surrogate_pair_fails_the_function(what: str, request_of: Callable[[Work], Any]) -> None:
    """No message can carry it: the worker crashed when it recorded the step, and so did the next worker."""

    async def function(work: Work, _given: Any) -> Any:
        return await request_of(work)

    async with run_of(function) as run:
        last = await Loop(run).until_end()
    assert isinstance(last, Raised)
    assert what in last.failure.message
    assert "half of a surrogate pair (U+D800 at position" in last.failure.message


async def answer(_report: ModelCallReport) -> ModelCallAnswer:
    texts = {"text": HALF, "model": "m", "stop_reason": "end_turn", "request_id": "request"}
    return ModelCallAnswer(result={"text": HALF}, usage=TokenUsage(1, 1), **texts)


async def test_half_of_a_surrogate_pair_of_a_model_is_replaced() -> None:
    async def function(work: Work, _given: Any) -> Any:
        return await work.call_model("m", REQUEST, answer)

    report = AttemptReport("task", 1, ModelAttempt(1, "m", 10, 20, 30), SECONDS, lambda *_: None, lambda: None)
    async with run_of(function) as run:
        loop = Loop(run)
        begin, record = await loop.next(), None
        assert isinstance(begin.request, BeginModelCall)
        begin.answer.set_result(report)
        record = await loop.next()
        assert isinstance(record.request, RecordModelCall)
        record.answer.set_result(None)
        last = await loop.until_end()
    assert isinstance(last, Returned)
    assert last.result_json == '{"text":"a\ufffd"}'


def test_a_tool_s_description_is_whole_characters() -> None:
    async def pay(_context: Any, _given: Any) -> str:
        return ""

    with pytest.raises(ValueError, match="description of pay"):
        OwnTool(name="pay", description=HALF, input_schema={"type": "object"}, effect=EffectClass.PURE, run=pay)
