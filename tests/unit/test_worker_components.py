"""The worker's small parts: interruptions, the trust gate, live text, what is held, what is said."""

from __future__ import annotations

import asyncio
import math
import sys
import time
import uuid
from typing import Any

import pytest

from services.worker import held_claims
from services.worker.held_claims import ClaimProgress, HeldTask, HeldTasks
from services.worker.interrupts import Interrupted, Interruption, Interrupts, TrustGate, trust_clock
from services.worker.live_text import MAX_CHARACTERS_PER_DELTA, LiveText
from services.worker.main import WorkerSettings
from services.worker.session_stream import PendingUpdates
from tenure.domain.budget import TokenUsage
from tenure.domain.errors import InvalidRequest
from tenure.domain.fairness import Slots
from tenure.domain.fencing import Claims
from tenure.domain.timeouts import MAX_PHASE_SECONDS
from tenure.runtime import failpoints
from tenure.runtime.settings import ConfigurationError, load
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.v1 import model_service_pb2 as models_pb
from tenure.v1 import token_pb2
from tenure.validators import validate
from tenure.wire.common import duration
from tenure.wire.task import usage_to_domain
from tests.support.patience import PATIENCE_SECONDS


def holding(task_id: str = "t1", epoch: int = 1) -> Any:
    claims = Claims(f"tasks/{task_id}", "default", epoch, str(uuid.uuid4()), "w1")
    return HeldTask(claims, token_pb2.FencingToken(), "messages")


async def test_interruption_ends_a_wait_with_its_reason() -> None:
    interrupts = Interrupts()
    waiting = asyncio.create_task(interrupts.sleep(60))
    await asyncio.sleep(0)
    interrupts.request(Interruption.DRAIN)
    with pytest.raises(Interrupted) as interrupted:
        await waiting
    assert interrupted.value.kind is Interruption.DRAIN


async def test_an_end_outranks_a_drain() -> None:
    interrupts = Interrupts()
    interrupts.request(Interruption.END)
    interrupts.request(Interruption.DRAIN)
    with pytest.raises(Interrupted) as interrupted:
        interrupts.check()
    assert interrupted.value.kind is Interruption.END


async def test_interrupted_work_ends_before_the_report() -> None:
    interrupts, ended = Interrupts(), []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    waiting = asyncio.create_task(interrupts.guard(work()))
    await asyncio.sleep(0.01)
    interrupts.request(Interruption.END)
    with pytest.raises(Interrupted):
        await waiting
    assert ended


async def test_a_notice_waits_for_work_that_looks() -> None:
    """It interrupts no other work, and an interruption comes through beside it."""
    interrupts, looks = Interrupts(), []

    async def look() -> None:
        looks.append(True)

    interrupts.note_message()
    await interrupts.sleep(0)
    assert not looks
    waiting = asyncio.create_task(interrupts.guard(asyncio.sleep(60), on_notice=look))
    await asyncio.sleep(0.01)
    assert len(looks) == 1
    for _ in range(3):
        interrupts.note_message()
    await asyncio.sleep(0.01)
    assert len(looks) == 2
    interrupts.note_message()
    interrupts.request(Interruption.DRAIN)
    with pytest.raises(Interrupted):
        await waiting


async def test_a_look_may_end_the_work_that_has_just_ended() -> None:
    """The notice came before the answer: the answer is not used."""
    interrupts = Interrupts()

    async def look() -> None:
        raise LookupError

    async def answer() -> int:
        interrupts.note_message()
        return 7

    with pytest.raises(LookupError):
        await interrupts.guard(answer(), on_notice=look)


async def test_work_that_ended_in_time_gives_its_result_and_its_error() -> None:
    interrupts = Interrupts()

    async def fail() -> Any:
        raise LookupError

    async def succeed() -> int:
        return 7

    assert await interrupts.guard(succeed()) == 7
    with pytest.raises(LookupError):
        await interrupts.guard(fail())


async def test_nothing_is_begun_once_interrupted() -> None:
    interrupts, began = Interrupts(), []
    interrupts.request(Interruption.DRAIN)

    async def work() -> None:
        began.append(True)

    with pytest.raises(Interrupted):
        await interrupts.guard(work())
    assert not began


async def test_the_gate_is_closed_before_and_after_its_window() -> None:
    gate = TrustGate()
    seen = [gate.is_open]
    gate.begin(trust_clock(), 5.0)
    seen.append(gate.is_open)
    gate.begin(trust_clock() - 10, 5.0)
    assert [*seen, gate.is_open] == [False, True, False]


async def test_a_renewal_opens_the_gate_for_those_who_wait() -> None:
    gate = TrustGate()
    gate.begin(trust_clock() - 10, 5.0)
    waiting = asyncio.create_task(gate.wait_open())
    await asyncio.sleep(0)
    gate.renew(trust_clock() - 9)
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.renew(trust_clock())
    async with asyncio.timeout(PATIENCE_SECONDS):
        await waiting


@pytest.mark.skipif(sys.platform != "linux", reason="no clock of this system goes on during a suspend")
async def test_the_gate_is_closed_after_a_suspend(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLOCK_MONOTONIC stands still meanwhile, and the lease ends."""
    seconds = {time.CLOCK_BOOTTIME: 100.0}
    monkeypatch.setattr(time, "clock_gettime", seconds.__getitem__)
    gate = TrustGate()
    gate.begin(trust_clock(), 60.0)
    assert gate.is_open
    seconds[time.CLOCK_BOOTTIME] += 3600
    assert not gate.is_open


async def test_the_switch_makes_a_zombie() -> None:
    failpoints.arm("worker.ignore_trust_window")
    try:
        assert TrustGate().is_open
    finally:
        failpoints.disarm()


async def test_a_late_reader_gets_the_unfinished_text() -> None:
    live = LiveText()
    live.begin(3, 1)
    for word in ("one ", "two ", "three"):
        live.append(0, word)
    reader = live.cursor()
    assert [tuple(piece) for piece in live.since(reader)] == [(3, 1, 0, 0, "one two three")]
    live.append(0, "!")
    assert [(piece.offset, piece.text) for piece in live.since(reader)] == [(13, "!")]
    assert list(live.since(reader)) == []


async def test_a_finished_answer_is_not_shown_to_those_who_come_now() -> None:
    live = LiveText()
    live.begin(1, 1)
    live.append(0, "whole")
    early = live.cursor()
    live.finish()
    assert list(live.since(live.cursor())) == []
    assert [piece.text for piece in live.since(early)] == ["whole"]


def test_a_reader_learns_once_that_an_answer_is_complete() -> None:
    live = LiveText()
    assert not live.take_completion(live.cursor())
    live.begin(1, 1)
    reader = live.cursor()
    live.append(0, "whole")
    live.finish()
    assert not live.take_completion(reader)  # it has no text yet
    list(live.since(reader))
    assert live.take_completion(reader)
    assert not live.take_completion(reader)
    assert not live.take_completion(live.cursor())


async def test_a_reader_learns_of_an_answers_end_before_a_newer_call() -> None:
    live = LiveText()
    live.begin(1, 1)
    live.append(0, "whole")
    reader = live.cursor()
    list(live.since(reader))
    live.finish()
    live.begin(2, 1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await live.wait_changed(reader)
    assert live.take_completion(reader)
    assert list(live.since(reader)) == []
    assert not live.take_completion(reader)


async def test_a_new_attempt_begins_anew_for_every_reader() -> None:
    live = LiveText()
    live.begin(1, 1)
    live.append(0, "first")
    reader = live.cursor()
    list(live.since(reader))
    live.begin(1, 2)
    live.append(0, "again")
    assert [(piece.attempt_number, piece.offset, piece.text) for piece in live.since(reader)] == [(2, 0, "again")]


async def test_live_pieces_are_bounded() -> None:
    live = LiveText()
    live.begin(1, 1)
    live.append(0, "x" * (MAX_CHARACTERS_PER_DELTA + 1))
    assert [len(piece.text) for piece in live.since(live.cursor())] == [MAX_CHARACTERS_PER_DELTA, 1]


async def test_every_reader_wakes_for_text_and_for_the_end() -> None:
    live = LiveText()
    live.begin(1, 1)
    waiting = [asyncio.create_task(live.wait_changed(live.cursor())) for _ in range(3)]
    await asyncio.sleep(0)
    live.append(0, "x")
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*waiting)
    reader = live.cursor()
    list(live.since(reader))
    ending = asyncio.create_task(live.wait_changed(reader))
    await asyncio.sleep(0)
    live.close()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await ending


async def test_newer_claim_replaces_the_older() -> None:
    held_tasks, old, new = HeldTasks(), holding(epoch=1), holding(epoch=2)
    held_tasks.add(old)
    held_tasks.add(new)
    assert old.lost
    held_tasks.remove(old)
    assert held_tasks.get("t1") is new


async def test_lost_claims_are_not_named_as_held() -> None:
    held_tasks, one, other = HeldTasks(), holding("t1"), holding("t2")
    held_tasks.add(one)
    held_tasks.add(other)
    held_tasks.drop_claims({one.claims.claim_id})
    assert [held.task_id for held in held_tasks.to_wire(trusted=True)] == ["t2"]


def test_announced_backoff_is_the_rest() -> None:
    progress = ClaimProgress()
    assert not progress.to_wire().HasField("backoff")
    progress.announce_backoff(30)
    assert 29 < progress.to_wire().backoff.seconds + 1 <= 30


@pytest.mark.parametrize("seconds", [math.inf, 1e300])
def test_a_wait_without_an_end_can_be_reported(seconds: float) -> None:
    """A step may have such a timeout. No renewal could be built then, and the worker lost all its tasks."""
    progress = ClaimProgress()
    progress.announce_backoff(seconds)
    assert progress.to_wire().backoff.seconds > 3600


def test_idle_time_counts_while_a_claim_stays_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(held_claims, "monotonic", lambda: now[0])
    held_tasks, held_task = HeldTasks(), holding("t1")
    held_tasks.add(held_task)
    progress = held_task.progress

    def idle_after(seconds: float, *, trusted: bool = True) -> int:
        now[0] += seconds
        (reported,) = held_tasks.to_wire(trusted=trusted)
        return reported.progress.idle.seconds

    progress.sequence = 2
    assert [idle_after(10), idle_after(10), idle_after(10)] == [0, 10, 20]
    assert idle_after(300, trusted=False) == 20  # cut off: the task may not go on
    assert idle_after(10) == 30
    progress.announce_backoff(60)
    assert [idle_after(50), idle_after(50)] == [0, 40]
    progress.on_tool_progress()
    assert idle_after(10) == 0


async def test_unwritten_report_is_repeated() -> None:
    updates = PendingUpdates(lambda: Slots.open_to_all(3))
    updates.releases.append(pb.Release(task_id="t1", reason="CLOSED"))
    message = updates.next()
    assert message is not None
    assert updates.next() == message
    updates.mark_sent(message)
    assert updates.next() is None


async def test_continued_calls_are_reported_once() -> None:
    held_tasks, speaking, silent = HeldTasks(), holding("t1"), holding("t2")
    held_tasks.add(speaking)
    held_tasks.add(silent)
    used = [TokenUsage(100, 1)]
    speaking.progress.begin_call(3, 2, lambda: used[-1])
    assert not held_tasks.calls_went_on.is_set()
    used.append(TokenUsage(100, 20, 5, 6))
    speaking.progress.on_model_call_progress()
    assert held_tasks.calls_went_on.is_set()
    (calls,) = held_tasks.take_calls()
    assert (calls.task_id, calls.progress.call.step, calls.progress.call.attempt_number) == ("t1", 3, 2)
    assert usage_to_domain(calls.progress.call.usage) == used[-1]
    assert calls.progress.output_tokens == 20
    assert held_tasks.take_calls() == []
    assert speaking.progress.to_wire().HasField("call")
    assert not silent.progress.to_wire().HasField("call")


def test_runners_accept_the_longest_timeout_of_a_call() -> None:
    """With a longer one, a model runner refused each call, and with some of them the worker could build no renewal."""
    name = "TENURE_WORKER_MODEL_TIMEOUT_SECONDS"
    settings = {"TENURE_WORKER_MODELS_ADDRESS": "127.0.0.1:8474", name: f"{MAX_PHASE_SECONDS:g}"}
    longest = load(WorkerSettings, settings, prefix="TENURE_WORKER_").model_timeout_seconds
    with pytest.raises(InvalidRequest) as refused:  # it has no token and no prompt
        validate(models_pb.GenerateRequest(timeout=duration(longest)))
    assert "timeout" not in {each.field for each in refused.value.violations}
    with pytest.raises(ConfigurationError, match=name):
        load(WorkerSettings, {**settings, name: "1e300"}, prefix="TENURE_WORKER_")
