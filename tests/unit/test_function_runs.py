"""A function's requests to its loop: no step loses its number or its record, whatever the function cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from services.worker.control.function_run import (
    BeginStep,
    CancelModelCall,
    FunctionRequest,
    FunctionRun,
    Raised,
    RecordStep,
    Returned,
)
from tenure.control import ModelCallRequest, StepFailed, Work
from tenure.domain.entries import ControlStep
from tenure.domain.task import ControlWork

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


async def test_whatever_a_function_raises_ends_its_task() -> None:
    async def function(_work: Work, _given: Any) -> None:
        raise Halt("enough")

    async with run_of(function) as run:
        last = await Loop(run).until_end()
    assert isinstance(last, Raised)
    assert (last.failure.error_class, last.failure.message, last.failure.retryable) == ("Halt", "enough", False)
