"""Runs of own tools in one process: once at a time, in the trust window, and under the claim that ordered them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import pytest

from services.worker.held_claims import HeldTask
from services.worker.interrupts import TrustGate, trust_clock
from services.worker.own_calls import CallOfOwnTool, OwnRuns
from tenure.control import EffectClass, OwnTool, OwnToolContext
from tenure.domain.entries import ToolIntent
from tenure.domain.fencing import Claims
from tenure.v1 import token_pb2, tool_pb2
from tenure.v1 import tool_service_pb2 as pb
from tenure.wire.common import duration

LANGUAGE: ContextVar[str] = ContextVar("LANGUAGE", default="")


class Press:
    """An own tool that prints when it is let, and counts."""

    def __init__(self) -> None:
        self.may_print = asyncio.Event()
        self.began = self.at_once = self.most_at_once = 0
        self.ignores_cancellation = False
        self.languages: list[str] = []

    async def run(self, context: OwnToolContext, _arguments: Mapping[str, Any]) -> str:
        self.began += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.languages.append(LANGUAGE.get())
        try:
            while not self.may_print.is_set():
                try:
                    await self.may_print.wait()
                except asyncio.CancelledError:
                    if not self.ignores_cancellation:
                        raise
        finally:
            self.at_once -= 1
        return f"printed by run {context.call_attempt}"


class Desk:
    """A worker with one call, and what it sent."""

    def __init__(self) -> None:
        self.trust, self.press = TrustGate(), Press()
        self.runs = OwnRuns(self.trust)
        self.sent: list[pb.OwnOutcome] = []
        self.arrived = asyncio.Event()

    def open_trust(self) -> None:
        self.trust.begin(trust_clock(), 60.0)

    def call(self, epoch: int = 1) -> CallOfOwnTool:
        tool = OwnTool(name="print", description="", input_schema={}, effect=EffectClass.KEYED, run=self.press.run)
        claims = Claims("tasks/t", "default", epoch, f"claim-{epoch}", "worker")
        held_task = HeldTask(claims, token_pb2.FencingToken(), "control.f")
        return CallOfOwnTool(tool, ToolIntent("1.0", "", "print", "{}"), held_task)

    def order(self, call: CallOfOwnTool, attempt: int, timeout: float = 60.0) -> None:
        order = pb.RunHere(call_attempt=attempt, idempotency_key="t/1.0", timeout=duration(timeout))
        self.runs.order(call, order, self._take)

    def _take(self, outcome: pb.OwnOutcome) -> None:
        self.sent.append(outcome)
        self.arrived.set()

    async def outcome(self) -> pb.OwnOutcome:
        async with asyncio.timeout(10):
            await self.arrived.wait()
        self.arrived.clear()
        return self.sent[-1]


@pytest.fixture
async def desk() -> Desk:
    return Desk()


async def begun(desk: Desk, count: int) -> None:
    async with asyncio.timeout(10):
        while desk.press.began < count:
            await asyncio.sleep(0)


async def turns(count: int = 20) -> None:
    """Lets all that can happen happen."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_second_order_joins_the_run(desk: Desk) -> None:
    desk.open_trust()
    call = desk.call()
    desk.order(call, 1)
    await begun(desk, 1)
    desk.order(desk.call(), 2)
    desk.press.may_print.set()
    outcome = await desk.outcome()
    assert (outcome.call_attempt, outcome.content, desk.press.began) == (2, "printed by run 1", 1)
    desk.order(desk.call(), 3)
    assert [one.call_attempt for one in desk.sent] == [2, 3]
    assert desk.runs.outcome_of(call) == desk.sent[-1]
    assert desk.press.began == 1


async def test_nothing_begins_outside_of_the_trust_window(desk: Desk) -> None:
    desk.order(desk.call(), 1)
    await turns()
    assert desk.press.began == 0
    desk.open_trust()
    await begun(desk, 1)


async def test_a_lost_claim_begins_nothing_in_a_new_session(desk: Desk) -> None:
    """The new session opens the window, and loses the claim, before the task's work is cancelled."""
    call = desk.call()
    desk.order(call, 1)
    await turns()
    desk.open_trust()
    call.held_task.drop()
    await turns()
    assert (desk.press.began, desk.sent) == (0, [])


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_newer_claim_waits_for_the_former_run(desk: Desk, stubborn: bool) -> None:
    desk.open_trust()
    desk.press.ignores_cancellation = stubborn
    former = desk.call(epoch=1)
    desk.order(former, 1)
    await begun(desk, 1)
    desk.runs.stop_claim(former.held_task)
    desk.order(desk.call(epoch=2), 2)
    if stubborn:
        await turns()
        assert desk.press.began == 1
        desk.press.may_print.set()
    await begun(desk, 2)
    desk.press.may_print.set()
    assert (await desk.outcome()).content == "printed by run 2"
    assert desk.press.most_at_once == 1


async def test_a_run_has_the_context_of_its_work(desk: Desk) -> None:
    desk.open_trust()
    token = LANGUAGE.set("eo")
    call = desk.call()
    LANGUAGE.reset(token)
    desk.press.may_print.set()
    desk.order(call, 1)
    await desk.outcome()
    assert desk.press.languages == ["eo"]


async def test_a_tool_that_ignores_its_timeout_is_reported(desk: Desk) -> None:
    desk.open_trust()
    desk.press.ignores_cancellation = True
    desk.order(desk.call(), 1, timeout=0.05)
    outcome = await desk.outcome()
    assert outcome.status == tool_pb2.OUTCOME_STATUS_TIMED_OUT
    assert "has not stopped yet" in outcome.content
    desk.press.may_print.set()


class Halt(BaseException):
    """Not an Exception, as what pytest.fail raises."""


async def test_any_exception_of_a_tool_is_its_outcome(desk: Desk) -> None:
    async def run(_context: OwnToolContext, _arguments: Mapping[str, Any]) -> str:
        raise Halt("enough")

    desk.open_trust()
    call = desk.call()
    desk.order(replace(call, tool=replace(call.tool, run=run)), 1)
    outcome = await desk.outcome()
    assert (outcome.status, outcome.content) == (tool_pb2.OUTCOME_STATUS_FAILED, "print failed: Halt: enough")


async def test_an_ended_call_is_stopped_and_forgotten(desk: Desk) -> None:
    desk.open_trust()
    call = desk.call()
    desk.order(call, 1)
    await begun(desk, 1)
    desk.runs.end(call)
    await turns()
    assert (desk.press.at_once, desk.sent, desk.runs.outcome_of(call)) == (0, [], None)
    assert not desk.runs.is_running(call)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "has spaces"},
        {"timeout_seconds": 0},
        {"output_limit_bytes": 10},
        {"output_limit_bytes": 1024 * 1024},
        {"input_schema": {"description": "x" * 70_000}},
    ],
)
async def test_an_invalid_definition_is_refused_at_once(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"name": "print", "description": "", "input_schema": {}, "effect": EffectClass.PURE}
    with pytest.raises(ValueError, match=next(iter(wrong))):
        OwnTool(**{**right, "run": Press().run, **wrong})
