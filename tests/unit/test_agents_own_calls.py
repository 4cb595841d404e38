"""Calls that an agent makes at the same time become one step, and the same step in a later execution."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tenure.agents.own_calls import OwnCalls
from tenure.control import EffectClass, OwnTool, OwnToolContext, RecordedCall
from tenure.domain.tools import Outcome, OutcomeStatus


class Context:
    def __init__(self, call_id: str) -> None:
        self.call_id = call_id


class Steps:
    """A Work of tool calls. `recorded`: the calls of each step, of an earlier execution."""

    def __init__(self, *recorded: list[tuple[str, Any]]) -> None:
        self.recorded = [[RecordedCall(name, json.dumps(given)) for name, given in step] for step in recorded]
        self.steps: list[list[tuple[str, Any]]] = []
        self.failure: BaseException | None = None

    async def recorded_calls(self) -> Sequence[RecordedCall]:
        at = len(self.steps)
        return self.recorded[at] if at < len(self.recorded) else []

    async def call_own_tools(self, calls: Sequence[tuple[OwnTool, Mapping[str, Any]]]) -> list[Outcome]:
        assert len({tool.name: tool for tool, _ in calls}) == len({id(tool) for tool, _ in calls})
        self.steps.append([(tool.name, dict(arguments)) for tool, arguments in calls])
        if self.failure is not None:
            raise self.failure
        made = (tool.run(_context(f"9.{index}"), given) for index, (tool, given) in enumerate(calls))
        contents = await asyncio.gather(*made)
        return [Outcome(OutcomeStatus.SUCCEEDED, content) for content in contents]


def _context(call_id: str) -> Any:
    return Context(call_id)


def tool(name: str, says: str = "", **more: Any) -> OwnTool:
    async def run(context: OwnToolContext, arguments: Mapping[str, Any]) -> str:
        return f"{says or name} {arguments['n']} {context.call_id}"

    return OwnTool(name=name, description="", input_schema={}, effect=EffectClass.PURE, run=run, **more)


class Calls:
    """Makes calls of one execution."""

    def __init__(self, steps: Steps) -> None:
        work: Any = steps
        self.steps, self.own = steps, OwnCalls(work, asyncio.Lock())

    async def say(self, name: str, number: int, after_turns: int = 0, **more: Any) -> str:
        for _ in range(after_turns):
            await asyncio.sleep(0)
        return (await self.own.call(tool(name, **more), {"n": number})).content


async def test_calls_of_one_moment_are_one_step() -> None:
    calls = Calls(Steps())
    said = await asyncio.gather(calls.say("a", 1), calls.say("b", 2, after_turns=3), calls.say("a", 3, says="other"))
    assert list(said) == ["a 1 9.0", "b 2 9.2", "other 3 9.1"]
    assert calls.steps.steps == [[("a", {"n": 1}), ("a", {"n": 3}), ("b", {"n": 2})]]


async def test_a_later_call_is_another_step() -> None:
    calls = Calls(Steps())
    assert await calls.say("a", 1) == "a 1 9.0"
    assert await calls.say("a", 2) == "a 2 9.0"
    assert [len(step) for step in calls.steps.steps] == [1, 1]


async def test_record_decides_the_calls_of_a_step() -> None:
    """In whatever order and however late they arrive."""
    calls = Calls(Steps([("b", {"n": 2}), ("a", {"n": 1})], [("a", {"n": 3})]))
    said = await asyncio.gather(calls.say("a", 3), calls.say("a", 1), calls.say("b", 2, after_turns=500))
    assert calls.steps.steps == [[("b", {"n": 2}), ("a", {"n": 1})], [("a", {"n": 3})]]
    assert list(said) == ["a 3 9.0", "a 1 9.1", "b 2 9.0"]


async def test_a_person_may_have_edited_the_arguments() -> None:
    calls = Calls(Steps([("a", {"n": 7}), ("a", {"n": 2})]))
    await asyncio.gather(calls.say("a", 1), calls.say("a", 2))
    assert calls.steps.steps == [[("a", {"n": 1}), ("a", {"n": 2})]]


async def test_tools_of_one_name_with_two_definitions_are_two_steps() -> None:
    calls = Calls(Steps())
    await asyncio.gather(calls.say("a", 1), calls.say("a", 2, needs_approval=True), calls.say("b", 3))
    assert calls.steps.steps == [[("a", {"n": 1})], [("a", {"n": 2}), ("b", {"n": 3})]]


async def test_a_failure_reaches_each_caller() -> None:
    steps = Steps()
    steps.failure = ValueError("lost")
    calls = Calls(steps)
    said = await asyncio.gather(calls.say("a", 1), calls.say("b", 2), return_exceptions=True)
    assert [str(each) for each in said] == ["lost", "lost"]
    steps.failure = None
    assert await calls.say("a", 3) == "a 3 9.0"


async def test_the_last_caller_that_leaves_stops_the_calls() -> None:
    calls, stopped = Calls(Steps()), asyncio.Event()

    async def run(context: OwnToolContext, arguments: Mapping[str, Any]) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    slow = OwnTool(name="slow", description="", input_schema={}, effect=EffectClass.PURE, run=run)
    callers = [asyncio.create_task(calls.own.call(slow, {"n": number})) for number in range(2)]
    while not calls.steps.steps:
        await asyncio.sleep(0)
    callers[0].cancel()
    await asyncio.sleep(0.01)
    assert not stopped.is_set()
    callers[1].cancel()
    async with asyncio.timeout(10):
        await stopped.wait()
    for caller in callers:
        with pytest.raises(asyncio.CancelledError):
            await caller
