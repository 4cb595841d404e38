"""Carrying out a tool: begun in time or never, bounded, stopped, put into words."""

from __future__ import annotations

import asyncio
import sys
import uuid
from dataclasses import replace
from typing import Any

import pytest

from services.tools.calls import effects
from services.tools.calls.effects import NeverBegan, ToolEffect
from services.tools.calls.records import CallKey, CallRequest
from services.tools.calls.runs import Output, RunningCalls, Started, StopReason, Superseded
from services.tools.sending import AnswerLostError, CallDelivery, SendAttempt
from services.tools.tool import (
    RunnerStopped,
    Tool,
    ToolAnswer,
    ToolFailure,
    ToolInDoubt,
    ToolWork,
    define,
    past_return,
)
from tenure.domain.fencing import Claims
from tenure.domain.tools import EffectClass, Outcome, OutcomeStatus, cut
from tests.support.call_events import events_of
from tests.support.fake_may_begin import Begins
from tests.support.fix_time import PassSeconds
from tests.support.patience import CALL_SECONDS


def call_request() -> CallRequest:
    task_id = uuid.uuid4()
    claims = Claims(f"tasks/{task_id}", "default", 10, "claim", "worker")
    return CallRequest(CallKey(task_id, "1.0"), claims, "tool", EffectClass.UNSAFE, b"{}")


def a_tool(
    run: Any, timeout_seconds: float = 5.0, limit_bytes: int = 1000, effect_class: EffectClass = EffectClass.UNSAFE
) -> Tool:
    definition = define("tool", effect_class, "d", {}, timeout_seconds=timeout_seconds, output_limit_bytes=limit_bytes)
    return Tool(definition, run)


async def outcome_of(run_tool: Any, *, may_begin: Any = None, run: Any = None, **options: Any) -> Outcome:
    return await carried_out(a_tool(run_tool, **options), may_begin=may_begin, run=run)


async def carried_out(tool: Tool, *, may_begin: Any = None, run: Any = None, arguments: Any = None) -> Outcome:
    run = run or RunningCalls().add(call_request(), 1)
    return await ToolEffect(run, ToolWork(tool, arguments or {}), may_begin or Begins()).carry_out(lambda _effect: None)


async def never_end(_context: Any, _arguments: Any) -> ToolAnswer:
    await asyncio.Event().wait()
    raise AssertionError


async def test_an_effect_that_may_not_begin_never_does() -> None:
    begun = []

    async def tool(_context: Any, _arguments: Any) -> Any:
        begun.append(True)
        return ToolAnswer("done")

    with pytest.raises(NeverBegan):
        await outcome_of(tool, may_begin=Begins(may=False))
    stopped = RunningCalls().add(call_request(), 1)
    stopped.request_stop(StopReason.CLOSED)
    with pytest.raises(NeverBegan):
        await outcome_of(tool, run=stopped)
    assert not begun


@pytest.mark.parametrize("acts_elsewhere", [False, True])
@pytest.mark.parametrize("reason", list(StopReason))
async def test_an_effect_stopped_before_its_first_step_never_began(
    reason: Any, acts_elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Python 3.11, where no task begins at once."""
    monkeypatch.setattr(effects, "begin_now", asyncio.create_task)
    run, tool = RunningCalls().add(call_request(), 1), replace(a_tool(never_end), acts_elsewhere=acts_elsewhere)
    with pytest.raises(NeverBegan):  # `hold` is called before the event loop runs the effect
        await ToolEffect(run, ToolWork(tool, {}), Begins()).carry_out(lambda _effect: run.request_stop(reason))
    assert not run.started


@pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio has eager tasks from Python 3.12 on")
async def test_a_tool_that_answers_at_once_takes_no_turn_of_the_loop() -> None:
    run, turns, held = RunningCalls().add(call_request(), 1), list[str](), list[Any]()
    asyncio.get_running_loop().call_soon(turns.append, "a turn")

    async def done(_context: Any, _arguments: Any) -> ToolAnswer:
        return ToolAnswer("done")

    outcome = await ToolEffect(run, ToolWork(a_tool(done), {}), Begins()).carry_out(held.append)
    assert (outcome.content, turns, held) == ("done", [], [])


@pytest.mark.parametrize("reason", [StopReason.CLOSED, StopReason.FENCED])
async def test_a_stop_in_the_first_step_of_an_effect_cancels_it(reason: StopReason) -> None:
    run = RunningCalls().add(call_request(), 1)

    async def stop_and_wait(_context: Any, _arguments: Any) -> ToolAnswer:
        run.request_stop(reason)
        return await never_end(None, None)

    outcome = await carried_out(a_tool(stop_and_wait), run=run)
    assert (outcome.status, run.ending) == (OutcomeStatus.CANCELLED, None)


async def test_the_time_of_an_effect_counts_from_before_its_start(pass_seconds: PassSeconds) -> None:
    async def take_long_and_wait(_context: Any, _arguments: Any) -> ToolAnswer:
        pass_seconds(100)
        return await never_end(None, None)

    outcome = await outcome_of(take_long_and_wait, timeout_seconds=60.0)
    assert outcome.status is OutcomeStatus.TIMED_OUT


async def test_a_tool_that_takes_too_long_is_stopped() -> None:
    outcome = await outcome_of(never_end, timeout_seconds=0.05)
    assert outcome.status is OutcomeStatus.TIMED_OUT
    assert outcome.content.startswith("It took longer than 0.05 s and was stopped.")


async def test_exception_of_a_tool_is_an_outcome() -> None:
    async def fails(_context: Any, _arguments: Any) -> Any:
        raise ToolFailure("no such file", "MISSING")

    async def crashes(_context: Any, _arguments: Any) -> Any:
        raise KeyError("secret")

    failed, crashed = await outcome_of(fails), await outcome_of(crashes)
    assert (failed.status, failed.content, failed.detail) == (OutcomeStatus.FAILED, "no such file", "MISSING")
    assert (crashed.status, crashed.detail) == (OutcomeStatus.FAILED, "KeyError")
    assert "secret" not in crashed.content


@pytest.mark.parametrize(
    ("reason", "expected"), [(StopReason.CLOSED, True), (StopReason.LAPSED, False), (StopReason.DRAINED, False)]
)
async def test_only_a_trusted_runner_reports_a_stopped_effect(reason: Any, expected: bool) -> None:
    run = RunningCalls().add(call_request(), 1)
    carrying = asyncio.create_task(outcome_of(never_end, run=run))
    events = events_of(run, joined=False)
    assert await anext(events) == Started(1, joined=False)
    run.request_stop(reason)
    if expected:
        assert (await carrying).status is OutcomeStatus.CANCELLED
    else:
        with pytest.raises(RunnerStopped):
            await carrying
    await events.aclose()


async def test_an_effect_past_its_commit_point_reports_itself() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def write() -> str:
        begun.set()
        await go.wait()
        return "written"

    async def tool(_context: Any, _arguments: Any) -> Any:
        return ToolAnswer(await past_return(write()))

    run = RunningCalls().add(call_request(), 1)
    carrying = asyncio.create_task(outcome_of(tool, run=run))
    await begun.wait()
    run.request_stop(StopReason.CLOSED)
    assert run.effect is not None
    run.effect.cancel()
    await asyncio.sleep(0)
    go.set()
    outcome = await carrying
    assert (outcome.status, outcome.content) == (OutcomeStatus.SUCCEEDED, "written")


async def test_a_fenced_runners_tool_sends_nothing_elsewhere() -> None:
    begins, sent = Begins(), []

    async def tool(context: Any, _arguments: Any) -> Any:
        begins.may = False  # it slept while it connected
        context.check_may_begin(False)
        sent.append(True)
        return ToolAnswer("done")

    with pytest.raises(NeverBegan):
        await outcome_of(tool, may_begin=begins)
    assert sent == []


async def test_sent_call_of_a_dead_runner_is_left_to_its_successor() -> None:
    begins, sendings = Begins(), []

    async def send(sending: SendAttempt) -> ToolAnswer:
        sending.go_out()
        sendings.append(sending)
        begins.may = False
        raise AnswerLostError("gone")

    async def tool(context: Any, _arguments: Any) -> Any:
        return await CallDelivery("The shop", EffectClass.KEYED, context, CALL_SECONDS).carry_out(send)

    with pytest.raises(RunnerStopped):
        await outcome_of(tool, may_begin=begins, effect_class=EffectClass.KEYED)
    assert len(sendings) == 1


async def test_output_is_streamed_and_dropped_without_readers() -> None:
    async def tool(context: Any, _arguments: Any) -> Any:
        context.emit("piece ")
        await asyncio.sleep(0)
        for _ in range(1000):
            context.emit("x" * 1000)
        return ToolAnswer("all")

    run = RunningCalls().add(call_request(), 1)
    carrying = asyncio.create_task(outcome_of(tool, run=run))
    events = events_of(run, joined=True)
    assert await anext(events) == Started(1, joined=True)
    outcome = await carrying
    run.settle(outcome)
    results = [event async for event in events]
    assert results[-1] == outcome
    assert 0 < sum(len(event.text) for event in results[:-1] if isinstance(event, Output)) <= 64 * 1024


async def test_output_with_surrogates_is_passed_on_as_valid_text() -> None:
    run = RunningCalls().add(call_request(), 1)
    events = events_of(run, joined=True)
    assert await anext(events) == Started(1, joined=True)
    run.emit("a\ud800b")
    assert await anext(events) == Output("a?b")
    await events.aclose()


async def test_waiters_for_a_stopped_call_are_answered_at_once() -> None:
    run = RunningCalls().add(call_request(), 1)
    run.request_stop(StopReason.CLOSED)
    with pytest.raises(Superseded):
        [event async for event in events_of(run, joined=False)]


def test_superseded_run_does_not_remove_its_successor() -> None:
    async def check() -> None:
        runs, call = RunningCalls(), call_request()
        first, second = runs.add(call, 1), runs.add(call, 2)
        runs.remove(first)
        assert runs.find(call.key) is second
        assert runs.identity(uuid.uuid4(), call.key).running_attempt == 2
        runs.remove(second)
        assert runs.identity(uuid.uuid4(), call.key).running_attempt is None

    asyncio.run(check())


@pytest.mark.parametrize("text", ["", "short", "ü" * 50, "a\0b", "\ud800"])
def test_short_output_is_kept_as_valid_text(text: Any) -> None:
    kept, was_cut = cut(text, 100)
    assert not was_cut
    assert kept == text.replace("\ud800", "?")


@pytest.mark.parametrize("limit", [0, 10, 64, 100, 101, 102])
def test_cut_output_is_valid_text_within_the_limit(limit: int) -> None:
    kept, was_cut = cut("ü" * 1000, limit)
    assert was_cut
    assert len(kept.encode()) <= max(limit, 60)
    assert kept.endswith(f"longer than {limit} bytes]")


async def lost(_context: Any, _arguments: Any) -> ToolAnswer:
    raise ToolInDoubt("The connection broke.")


@pytest.mark.parametrize("effect_class", [EffectClass.UNSAFE, EffectClass.KEYED])
async def test_tool_that_does_not_know_leaves_a_doubt(effect_class: Any) -> None:
    with pytest.raises(ToolInDoubt):
        await outcome_of(lost, effect_class=effect_class)


@pytest.mark.parametrize(
    ("effect_class", "known"),
    [
        (EffectClass.PURE, ""),
        (EffectClass.IDEMPOTENT, " It is not known whether it had its effect. A repeat of the same call does no harm."),
    ],
)
async def test_call_that_may_be_repeated_without_harm_has_failed(effect_class: Any, known: str) -> None:
    outcome = await outcome_of(lost, effect_class=effect_class)
    assert (outcome.status, outcome.detail) == (OutcomeStatus.FAILED, "MAY_HAVE_HAPPENED")
    assert outcome.content == f"The connection broke.{known}"


def elsewhere(run_tool: Any, effect_class: EffectClass = EffectClass.UNSAFE) -> Tool:
    return replace(a_tool(run_tool, timeout_seconds=0.05, effect_class=effect_class), acts_elsewhere=True)


async def crashes(_context: Any, _arguments: Any) -> ToolAnswer:
    raise KeyError("ours")


@pytest.mark.parametrize(
    ("run_tool", "words"), [(never_end, "longer than 0.05 s and was asked to stop"), (crashes, "crash")]
)
async def test_no_timeout_or_error_decides_a_call_elsewhere(run_tool: Any, words: str) -> None:
    for effect_class in (EffectClass.UNSAFE, EffectClass.KEYED):
        with pytest.raises(ToolInDoubt, match=words):
            await carried_out(elsewhere(run_tool, effect_class))
    assert (await carried_out(elsewhere(run_tool, EffectClass.IDEMPOTENT))).is_error


@pytest.mark.parametrize(
    ("reason", "doubt"), [(StopReason.CLOSED, True), (StopReason.FENCED, True), (StopReason.LAPSED, False)]
)
async def test_an_unsafe_call_that_is_stopped_here_may_go_on_elsewhere(reason: Any, doubt: bool) -> None:
    run = RunningCalls().add(call_request(), 1)
    tool = replace(a_tool(never_end), acts_elsewhere=True)
    carrying = asyncio.create_task(carried_out(tool, run=run))
    events = events_of(run, joined=False)
    assert await anext(events) == Started(1, joined=False)
    run.request_stop(reason)
    with pytest.raises(ToolInDoubt if doubt else RunnerStopped):
        await carrying
    await events.aclose()


async def test_unstoppable_tool_is_not_reported_as_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.tools.calls.effects.STOPPING_SECONDS", 0.05)
    released = asyncio.Event()

    async def stubborn(_context: Any, _arguments: Any) -> Any:
        await past_return(released.wait())
        return ToolAnswer("late")

    for effect_class in (EffectClass.UNSAFE, EffectClass.KEYED):
        with pytest.raises(ToolInDoubt):
            await outcome_of(stubborn, timeout_seconds=0.05, effect_class=effect_class)
    outcome = await outcome_of(stubborn, timeout_seconds=0.05, effect_class=EffectClass.IDEMPOTENT)
    assert outcome.status is OutcomeStatus.TIMED_OUT
    assert "and was stopped" not in outcome.content
    assert outcome.content.endswith("It is not known whether it had its effect.")
    released.set()
