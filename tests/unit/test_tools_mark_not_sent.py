"""Calls that act elsewhere and were stopped, or failed here, before anybody was asked for their effect."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest

from edges.mcp_client.calling import McpToolCaller
from edges.mcp_client.delivery_errors import AnswerLost, CallNotSent
from services.tools.calls.effects import NeverBegan
from services.tools.calls.runs import RunningCalls, Started, StopReason
from services.tools.sending import AnswerLostError, AskedToWaitError, CallDelivery, NotSentError, SendAttempt
from services.tools.tool import CallContext, RunTool, Tool, ToolAnswer, ToolInDoubt
from tenure.domain.tools import EffectClass, OutcomeStatus
from tests.support.call_events import events_of
from tests.support.patience import CALL_SECONDS
from tests.unit.test_tools_effects import a_tool, call_request, carried_out

KEYED, UNSAFE = EffectClass.KEYED, EffectClass.UNSAFE


def elsewhere(run_tool: RunTool, effect_class: EffectClass = UNSAFE, timeout_seconds: float = CALL_SECONDS) -> Tool:
    tool = a_tool(run_tool, timeout_seconds=timeout_seconds, effect_class=effect_class)
    return replace(tool, acts_elsewhere=True)


async def never_end(waits: asyncio.Event) -> None:
    waits.set()
    await asyncio.Event().wait()


async def unsent(context: CallContext, _arguments: object) -> ToolAnswer:
    try:
        await asyncio.Event().wait()
    finally:
        context.mark_not_sent()
    raise AssertionError


@pytest.mark.parametrize("reason", list(StopReason))
@pytest.mark.parametrize("effect_class", [KEYED, UNSAFE])
async def test_a_call_that_is_stopped_before_it_was_sent_never_began(effect_class: Any, reason: Any) -> None:
    run = RunningCalls().add(call_request(), 1)
    carrying = asyncio.create_task(carried_out(elsewhere(unsent, effect_class), run=run))
    events = events_of(run, joined=False)
    assert await anext(events) == Started(1, joined=False)
    run.request_stop(reason)
    with pytest.raises(NeverBegan):
        await carrying
    await events.aclose()


async def test_an_unsent_call_that_timed_out_is_not_in_doubt() -> None:
    outcome = await carried_out(elsewhere(unsent, timeout_seconds=0.05))
    assert outcome.status is OutcomeStatus.TIMED_OUT
    assert outcome.content.endswith("It was not sent yet: nothing was done.")


async def test_an_unreachable_server_did_nothing() -> None:
    link = AsyncMock(side_effect=CallNotSent("it is away"))
    with ThreadPoolExecutor(1) as threads:
        calling = McpToolCaller(Mock(link=link), "pay", elsewhere(unsent).definition, cast("Any", None), threads)
        away = await carried_out(elsewhere(calling.run))
        bad_text = await carried_out(elsewhere(calling.run), arguments={"half": "\ud800"})
    assert away.content == "The server cannot be reached: it is away. Nothing was done."
    assert [(one.detail, one.no_effect) for one in (away, bad_text)] == [("UNREACHABLE", True), ("BAD_TEXT", True)]


async def test_an_unsent_call_that_crashed_is_not_in_doubt() -> None:
    async def crashes(context: CallContext, _arguments: object) -> ToolAnswer:
        context.mark_not_sent()
        raise KeyError("ours")

    assert (await carried_out(elsewhere(crashes))).detail == "KeyError"


@pytest.mark.parametrize(
    ("before", "goes_out", "vouched"),
    [
        ([], False, True),
        ([NotSentError("no way")], False, True),
        ([], True, False),
        ([AnswerLostError("gone")], False, False),
        ([AskedToWaitError(ToolAnswer("busy", OutcomeStatus.FAILED), 0.0)], False, False),
    ],
)
async def test_a_stopped_delivery_vouches_for_unsent_calls(before: Any, goes_out: bool, vouched: bool) -> None:
    waits, said, left = asyncio.Event(), [], list(before)

    async def send(sending: SendAttempt) -> ToolAnswer:
        if left:
            raise left.pop(0)
        if goes_out:
            sending.go_out()
        await never_end(waits)
        raise AssertionError

    context = CallContext("default", "t", "1.0", "t/1.0", 7, lambda _text: None, timeout_seconds=CALL_SECONDS)
    context = replace(context, mark_not_sent=lambda: said.append(True))
    calling = asyncio.create_task(CallDelivery("The shop", KEYED, context, CALL_SECONDS).carry_out(send))
    await waits.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert bool(said) is vouched


class Server:
    """An MCP server that loses so many calls, and is waited for ever after."""

    def __init__(self, losses: int) -> None:
        self.losses, self.waits = losses, asyncio.Event()

    async def link(self, _context: CallContext) -> Any:
        if not self.losses:
            await never_end(self.waits)
        self.losses -= 1
        return self

    async def call(self, _tool: str, _arguments: object, _context: CallContext) -> Any:
        raise AnswerLost("the connection ended")


@pytest.mark.parametrize(("losses", "effect_class"), [(0, UNSAFE), (1, KEYED)])
async def test_a_call_waiting_for_its_server_was_not_sent(losses: int, effect_class: Any) -> None:
    server = Server(losses)
    definition = elsewhere(unsent, effect_class).definition
    with ThreadPoolExecutor(1) as threads:
        calling = McpToolCaller(server, "pay", definition, cast("Any", None), threads)
        run = RunningCalls().add(call_request(), 1)
        carrying = asyncio.create_task(carried_out(elsewhere(calling.run, effect_class), run=run))
        await server.waits.wait()
        run.request_stop(StopReason.CLOSED)
        if losses:
            assert (await carrying).status is OutcomeStatus.CANCELLED
        else:
            with pytest.raises(NeverBegan):
                await carrying


async def test_stopped_sent_call_is_in_doubt() -> None:
    waits = asyncio.Event()

    async def sent(_context: CallContext, _arguments: object) -> ToolAnswer:
        await never_end(waits)
        raise AssertionError

    run = RunningCalls().add(call_request(), 1)
    carrying = asyncio.create_task(carried_out(elsewhere(sent), run=run))
    await waits.wait()
    run.request_stop(StopReason.CLOSED)
    with pytest.raises(ToolInDoubt):
        await carrying


@pytest.mark.parametrize(
    "links",
    [
        [AnswerLost("the connection ended"), None],
        [AnswerLost("the connection ended"), CallNotSent("it is away"), CallNotSent("it is away")],
    ],
    ids=["no session", "no connection"],
)
async def test_a_lost_call_whose_server_stays_away_may_have_happened(links: list[Exception | None]) -> None:
    """Each link is a session whose call fails; None: there is none any more."""

    async def link(_context: CallContext) -> Any:
        failure = links.pop(0)
        if failure is None:
            raise CallNotSent("it is away")
        return Mock(call=AsyncMock(side_effect=failure))

    definition = elsewhere(unsent, KEYED).definition
    with ThreadPoolExecutor(1) as threads:
        calling = McpToolCaller(Mock(link=link), "pay", definition, cast("Any", None), threads)
        with pytest.raises(ToolInDoubt, match="it is away") as doubt:
            await carried_out(elsewhere(calling.run, KEYED))
    assert doubt.value.detail == "CONNECTION_LOST"
    assert "Nothing was done" not in doubt.value.message
    assert links == []
