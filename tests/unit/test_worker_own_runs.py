"""Runs of own tools in one process: each call once at a time, whatever the claims that come and go meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import grpc
import pytest

from services.tools.own_tools import read_own_outcome
from services.worker import own_calls, tool_step
from services.worker.held_claims import HeldTask
from services.worker.interrupts import Interrupted, Interruption
from services.worker.own_calls import CallOfOwnTool, OwnRuns
from services.worker.transitions import after_interruption
from tenure.control import EffectClass, OwnTool, OwnToolContext
from tenure.control.own_tools import ForModel
from tenure.domain.compaction import Window
from tenure.domain.entries import ToolIntent, ToolOutcome
from tenure.domain.errors import InvalidRequest, Unavailable, WrongState
from tenure.domain.fencing import Claims
from tenure.domain.fold import ResumePoint
from tenure.domain.long_output import shortened_output
from tenure.domain.task import TaskPolicy
from tenure.domain.texts import KeptContent, kept_as
from tenure.domain.timeouts import MAX_PHASE_SECONDS
from tenure.domain.tools import USUAL_OUTPUT_BYTES, Outcome, OutcomeStatus
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import token_pb2
from tenure.v1 import tool_service_pb2 as pb
from tenure.validators import validate
from tenure.wire.common import OUTCOME_STATUSES, duration
from tenure.wire.tool import tool_to_wire
from tests.support.patience import PATIENCE_SECONDS


class Open:
    async def wait_open(self) -> None:
        """The trust window is open."""


class Slow:
    """A tool that cleans up until `cleaned` is set."""

    def __init__(self) -> None:
        self.began, self.now, self.most = 0, 0, 0
        self.cleaned, self.changed = asyncio.Event(), asyncio.Event()
        self.tool = OwnTool(
            name="slow", description="", input_schema={"type": "object"}, effect=EffectClass.KEYED, run=self.run
        )

    async def run(self, _context: OwnToolContext, _arguments: Mapping[str, Any]) -> str:
        self.began, self.now = self.began + 1, self.now + 1
        self.most = max(self.most, self.now)
        self.changed.set()
        try:
            await asyncio.Event().wait()
        finally:
            await self.cleaned.wait()
            self.now -= 1
        return ""

    def call(self, epoch: int) -> CallOfOwnTool:
        held = HeldTask(Claims("tasks/t1", "default", epoch, f"c{epoch}", "w1"), token_pb2.FencingToken(), "control")
        return CallOfOwnTool(self.tool, ToolIntent("1.0", "", "slow", "{}"), held)

    async def has_begun(self, times: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.began < times:
                self.changed.clear()
                await self.changed.wait()


def order(runs: OwnRuns, call: CallOfOwnTool, attempt: int) -> None:
    runs.order(call, pb.RunHere(call_attempt=attempt, idempotency_key="t1/1.0", timeout=duration(60)), lambda _: None)


async def settled() -> None:
    """Every coroutine has done what it can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_run_that_cleans_up_is_never_joined_by_a_second() -> None:
    """Its claim is stopped twice: by an interruption, and by the end of the loop. Then the worker gets the next."""
    runs, slow = OwnRuns(cast("Any", Open())), Slow()
    order(runs, slow.call(1), 1)
    await slow.has_begun(1)
    for _ in range(2):
        runs.stop_claim(slow.call(1).held_task)
        await settled()
    order(runs, slow.call(2), 2)
    await settled()
    assert (slow.began, slow.most) == (1, 1)
    slow.cleaned.set()
    await slow.has_begun(2)
    assert slow.most == 1
    await runs.stopped(slow.call(2).held_task)


def unsafe_call(run: AsyncMock) -> CallOfOwnTool:
    tool = OwnTool(name="pay", description="Pays.", input_schema={}, effect=EffectClass.UNSAFE, run=run)
    return replace(Slow().call(1), tool=tool, intent=ToolIntent("1.0", "", "pay", "{}"))


async def statuses_of(runs: OwnRuns, call: CallOfOwnTool, *orders: pb.RunHere) -> list[OutcomeStatus]:
    """The status of the answer to each order, each of which comes after the answer to the one before."""
    statuses = []
    for one in orders:
        answered: asyncio.Future[pb.OwnOutcome] = asyncio.get_running_loop().create_future()
        runs.order(call, one, answered.set_result)
        async with asyncio.timeout(PATIENCE_SECONDS):
            statuses.append(OUTCOME_STATUSES.to_domain((await answered).status))
    return statuses


async def test_repeated_order_begins_no_unsafe_run() -> None:
    """Its first delivery was lost, and a stop may have come since. A run that goes on, or has ended, is joined."""
    run = AsyncMock(return_value="paid")
    runs, call = OwnRuns(cast("Any", Open())), unsafe_call(run)
    again, new = [
        pb.RunHere(call_attempt=attempt, idempotency_key="t1/1.0", timeout=duration(60), again=attempt == 1)
        for attempt in (1, 2)
    ]
    joined = pb.RunHere(call_attempt=2, idempotency_key="t1/1.0", timeout=duration(60), again=True)
    statuses = await statuses_of(runs, call, again, new, joined)
    assert statuses == [OutcomeStatus.NOT_RUN, OutcomeStatus.SUCCEEDED, OutcomeStatus.SUCCEEDED]
    assert run.await_count == 1


async def test_late_unsafe_run_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trust window was closed for too long: the next attempt runs, if no stop covers it."""
    run = AsyncMock(return_value="paid")
    runs, call = OwnRuns(cast("Any", Open())), unsafe_call(run)
    late, new = [pb.RunHere(call_attempt=attempt, idempotency_key="t1/1.0", timeout=duration(60)) for attempt in (1, 2)]
    monkeypatch.setattr(own_calls, "BEGINS_WITHIN_SECONDS", -1.0)
    assert await statuses_of(runs, call, late) == [OutcomeStatus.NOT_RUN]
    monkeypatch.setattr(own_calls, "BEGINS_WITHIN_SECONDS", PATIENCE_SECONDS)
    assert await statuses_of(runs, call, late, new) == [OutcomeStatus.NOT_RUN, OutcomeStatus.SUCCEEDED]
    assert run.await_count == 1


async def test_a_third_claim_waits_for_the_run_of_the_first() -> None:
    """The second one came and went while the first run cleaned up."""
    runs, slow = OwnRuns(cast("Any", Open())), Slow()
    order(runs, slow.call(1), 1)
    await slow.has_begun(1)
    runs.stop_claim(slow.call(1).held_task)
    order(runs, slow.call(2), 2)
    await settled()
    runs.stop_claim(slow.call(2).held_task)
    await settled()
    order(runs, slow.call(3), 3)
    await settled()
    assert (slow.began, slow.most) == (1, 1)
    slow.cleaned.set()
    await slow.has_begun(2)
    assert slow.most == 1
    await runs.stopped(slow.call(3).held_task)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Unavailable("the tool service is away"), OutcomeStatus.SUCCEEDED),
        (PeerFailed(grpc.StatusCode.UNIMPLEMENTED, "an older one"), OutcomeStatus.FAILED),
        (InvalidRequest(violations=[("part", "no")]), OutcomeStatus.FAILED),
    ],
)
async def test_large_result_always_has_an_outcome(
    monkeypatch: pytest.MonkeyPatch, error: Exception, status: OutcomeStatus
) -> None:
    """Without one, the call would stay started, and a later order would find a run that never answers."""
    monkeypatch.setattr(own_calls, "KEEP_AGAIN_SECONDS", 0.0)
    failures = [error]

    async def keep(content: bytes) -> KeptContent:
        if failures:
            raise failures.pop()
        return kept_as(content)

    async def run(_context: OwnToolContext, _arguments: Mapping[str, Any]) -> str:
        return "x" * 1_000_000

    tool = OwnTool(name="slow", description="", input_schema={"type": "object"}, effect=EffectClass.KEYED, run=run)
    runs, call = OwnRuns(cast("Any", Open())), replace(Slow().call(1), tool=tool, keep=keep)
    answered: asyncio.Future[pb.OwnOutcome] = asyncio.get_running_loop().create_future()
    wanted = pb.RunHere(call_attempt=1, idempotency_key="t1/1.0", timeout=duration(60))
    runs.order(call, wanted, answered.set_result)
    outcome = await asyncio.wait_for(answered, PATIENCE_SECONDS)
    assert OUTCOME_STATUSES.to_domain(outcome.status) is status
    assert bool(outcome.output_path) is (status is OutcomeStatus.SUCCEEDED)


@pytest.mark.parametrize("is_kept", [True, False])
async def test_long_text_for_a_model_is_shortened(is_kept: bool) -> None:
    """The effect has happened: a workspace without room does not make the call fail."""
    whole = "".join(f"{number:07d}\n" for number in range(20_000))

    async def keep(content: bytes) -> KeptContent:
        if not is_kept:
            raise WrongState("the workspace is full", reason="WORKSPACE_LIMIT")
        return kept_as(content)

    async def run(_context: OwnToolContext, _arguments: Mapping[str, Any]) -> str:
        return ForModel(whole)

    tool = OwnTool(name="slow", description="", input_schema={"type": "object"}, effect=EffectClass.KEYED, run=run)
    runs, call = OwnRuns(cast("Any", Open())), replace(Slow().call(1), tool=tool, keep=keep)
    answered: asyncio.Future[pb.OwnOutcome] = asyncio.get_running_loop().create_future()
    wanted = pb.RunHere(call_attempt=1, idempotency_key="t1/1.0", timeout=duration(60))
    runs.order(call, wanted, answered.set_result)
    outcome = await asyncio.wait_for(answered, PATIENCE_SECONDS)
    path = kept_as(whole.encode()).path if is_kept else ""
    assert (OUTCOME_STATUSES.to_domain(outcome.status), outcome.detail) == (OutcomeStatus.SUCCEEDED, "SHORTENED")
    assert outcome.content == shortened_output(whole.encode(), USUAL_OUTPUT_BYTES, path)
    assert (outcome.output_path, len(outcome.content) <= USUAL_OUTPUT_BYTES) == (path, True)
    assert read_own_outcome(outcome, tool.definition).truncated


def test_no_run_ends_as_a_call_that_was_refused() -> None:
    """Such a status proves that nothing happened. NOT_RUN is not an end: the next attempt is ordered."""
    definition = OwnTool(
        name="pay", description="Pays.", input_schema={}, effect=EffectClass.UNSAFE, run=AsyncMock()
    ).definition
    for status in OutcomeStatus:
        message = pb.OwnOutcome(call_attempt=1, status=OUTCOME_STATUSES.to_wire(status))
        is_refusal = status in {
            OutcomeStatus.INVALID_ARGUMENTS, OutcomeStatus.NOT_ALLOWED, OutcomeStatus.CANCELLED,
        }  # fmt: skip
        assert read_own_outcome(message, definition).status is (OutcomeStatus.FAILED if is_refusal else status)


class Unusual(BaseException):
    """As some libraries raise it past `except Exception`."""


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise KeyError("code")


@pytest.mark.parametrize("error", [Unusual("odd"), UnreadableError(), SystemExit(3)])
async def test_any_exception_has_an_outcome(error: BaseException) -> None:
    """Without one, each owner of the task ran it again, and gave the task up after a minute."""

    async def run(_context: OwnToolContext, _arguments: Mapping[str, Any]) -> str:
        raise error

    tool = OwnTool(name="slow", description="", input_schema={"type": "object"}, effect=EffectClass.KEYED, run=run)
    runs, call = OwnRuns(cast("Any", Open())), replace(Slow().call(1), tool=tool)
    answered: asyncio.Future[pb.OwnOutcome] = asyncio.get_running_loop().create_future()
    wanted = pb.RunHere(call_attempt=1, idempotency_key="t1/1.0", timeout=duration(60))
    runs.order(call, wanted, answered.set_result)
    outcome = await asyncio.wait_for(answered, PATIENCE_SECONDS)
    assert OUTCOME_STATUSES.to_domain(outcome.status) is OutcomeStatus.FAILED
    assert type(error).__name__ in outcome.content


async def test_a_run_as_long_as_the_longest_timeout_can_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool service refused its outcome: the effect had happened, and the model read that the call was wrong."""
    clock = [0.5]
    monkeypatch.setattr(own_calls, "monotonic", lambda: clock[0])

    async def run(_context: OwnToolContext, _arguments: Mapping[str, Any]) -> str:
        clock[0] += MAX_PHASE_SECONDS + 1.0
        return "done"

    tool = OwnTool(name="slow", description="", input_schema={"type": "object"}, effect=EffectClass.KEYED, run=run)
    runs, call = OwnRuns(cast("Any", Open())), replace(Slow().call(1), tool=tool)
    answered: asyncio.Future[pb.OwnOutcome] = asyncio.get_running_loop().create_future()
    wanted = pb.RunHere(call_attempt=1, idempotency_key="t1/1.0", timeout=duration(MAX_PHASE_SECONDS))
    runs.order(call, wanted, answered.set_result)
    outcome = await asyncio.wait_for(answered, PATIENCE_SECONDS)
    request = pb.ExecuteRequest(own_tool=tool_to_wire(tool.definition), own_outcome=outcome)
    with pytest.raises(InvalidRequest) as refused:  # it has no token
        validate(request)
    assert not [each.field for each in refused.value.violations if each.field.startswith("own_outcome")]


class Service:
    """A tool service that sends one event, stays silent, and then refuses; the next request gets the outcome."""

    def __init__(self, silent_seconds: float) -> None:
        self._silent_seconds, self.requests = silent_seconds, 0

    async def execute(self, _token: Any, _intent: Any, on_event: Any, *_: Any, **__: Any) -> Outcome:
        self.requests += 1
        on_event()
        if self.requests > 1:
            return Outcome(OutcomeStatus.SUCCEEDED, "done")
        await asyncio.sleep(self._silent_seconds)
        raise Unavailable("the runner of this call stopped", reason="RUNNER_STOPPED")


def tool_step_with(service: Service, slow: Slow, effect: EffectClass) -> tuple[tool_step.ToolStep, HeldTask]:
    held = slow.call(1).held_task
    parts = cast("Any", SimpleNamespace(trust=Open(), tools=service, own_runs=OwnRuns(cast("Any", Open()))))
    window = Window(72 * 1024, 8 * 1024)
    ledger = cast("Any", SimpleNamespace(point=ResumePoint(), call_trace=lambda _call_id: ""))
    step = tool_step.ToolStep(parts, held, ledger, TaskPolicy(), window)
    step.use_own_tools([replace(slow.tool, effect=effect)])
    return step, held


async def test_a_long_own_call_outlives_a_restart_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service owes no event while the worker runs the call. To give up would stop the tool in the middle."""
    monkeypatch.setattr(tool_step, "PATIENCE_SECONDS", 0.3)
    service = Service(silent_seconds=0.5)
    step, _ = tool_step_with(service, Slow(), EffectClass.UNSAFE)
    await step.run(1, [ToolIntent("1.0", "", "slow", "{}")])
    assert service.requests == 2


@pytest.mark.parametrize("kind", [Interruption.LATE, Interruption.END])
async def test_all_but_a_drain_ends_the_wait_for_an_unsafe_own_call(kind: Interruption) -> None:
    service = Service(silent_seconds=600)
    step, held = tool_step_with(service, Slow(), EffectClass.UNSAFE)
    running = asyncio.create_task(step.run(1, [ToolIntent("1.0", "", "slow", "{}")]))
    await settled()
    held.interrupts.request(Interruption.DRAIN)
    await settled()
    assert not running.done()
    held.interrupts.withdraw(Interruption.DRAIN)
    held.interrupts.request(kind, "now")
    with pytest.raises(Interrupted):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await running


class StoppingService:
    """A tool service under a stop: it refuses what has not begun, and lets an UNSAFE call finish."""

    def __init__(self) -> None:
        self.may_finish = asyncio.Event()

    async def execute(self, _token: Any, intent: ToolIntent, *_: Any, **__: Any) -> Outcome:
        if intent.call_id != "1.0":
            raise Unavailable("an operator stopped it", reason="STOPPED")
        await self.may_finish.wait()
        return Outcome(OutcomeStatus.SUCCEEDED, "done")


async def test_stopped_task_leaves_after_its_unsafe_own_calls() -> None:
    service = StoppingService()
    step, _ = tool_step_with(cast("Any", service), Slow(), EffectClass.UNSAFE)
    intents = [
        ToolIntent("1.0", "", "slow", "{}"),
        ToolIntent("1.1", "", "slow", "{}"),
        ToolIntent("1.2", "", "t", "{}"),
    ]
    running = asyncio.create_task(step.run(1, intents))
    await settled()
    assert not running.done()
    service.may_finish.set()
    with pytest.raises(Interrupted) as left:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await running
    assert (left.value.kind, left.value.message) == (Interruption.STOP, "an operator stopped it")
    assert [body.call_id for _, body in step.uncommitted if isinstance(body, ToolOutcome)] == ["1.0"]
    left_as = after_interruption(ResumePoint(), TaskPolicy(), left.value)
    assert (left_as.to_state, left_as.reason, left_as.retry_delay_seconds) == ("RETRY_SCHEDULED", "STOPPED", 5.0)
