"""CallFollower: what a reader gets of a call that is accepted, superseded, accepted again, or runs elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from services.tools.calls import following
from services.tools.calls.following import (
    ENDED,
    Accepted,
    CallFollower,
    EnqueueAccept,
    EventQueue,
    OtherCallRuns,
    RunningElsewhere,
    RunningHere,
)
from services.tools.calls.records import CallKey
from services.tools.calls.runs import (
    Event,
    Output,
    RunningCall,
    RunningCalls,
    Settling,
    Started,
    StopReason,
    Superseded,
)
from tenure.domain.errors import LimitReached, Unavailable
from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.runtime.store.batching import Answer
from tests.support.patience import PATIENCE_SECONDS
from tests.unit.test_tools_effects import call_request

DONE = Outcome(OutcomeStatus.SUCCEEDED, "done")
HERE, THERE = CallKey(UUID(int=1), "1.0"), CallKey(UUID(int=2), "3.0")


class Reader:
    """What a reader got, in order."""

    def __init__(self) -> None:
        self.got: list[Event | Exception] = []

    def put(self, event: Event) -> None:
        self.got.append(event)

    def fail(self, error: Exception) -> None:
        self.got.append(error)


class Accepts:
    """The accepts that a follower has asked for; the test answers them."""

    def __init__(self) -> None:
        self.answers: list[Answer[Accepted]] = []
        self.patient: list[bool] = []
        self.waited_for: list[tuple[CallKey, int]] = []
        self.elsewhere: list[asyncio.Future[None]] = []

    def enqueue(self, answer: Answer[Accepted], is_patient: bool) -> None:
        self.answers.append(answer)
        self.patient.append(is_patient)

    async def wait(self, key: CallKey, call_attempt: int, _on_settling: Any) -> None:
        self.waited_for.append((key, call_attempt))
        self.elsewhere.append(asyncio.get_running_loop().create_future())
        await self.elsewhere[-1]


def followed(enqueue: EnqueueAccept | None = None) -> tuple[CallFollower, Reader, Accepts]:
    reader, accepts = Reader(), Accepts()
    follower = CallFollower(HERE, reader, enqueue or accepts.enqueue, accepts.wait)
    follower.begin()
    return follower, reader, accepts


def a_run(attempt: int = 1) -> RunningCall:
    return RunningCalls().add(call_request(), attempt)


async def test_an_outcome_of_the_record_is_the_only_event() -> None:
    _, reader, accepts = followed()
    accepts.answers[0](DONE)
    assert reader.got == [DONE]


async def test_a_superseded_call_is_accepted_again_and_starts_once() -> None:
    _, reader, accepts = followed()
    first, second = a_run(), a_run(2)
    accepts.answers[0](RunningHere(first, joined=False))
    first.mark_started()
    first.mark_started()
    first.settle(Superseded())
    accepts.answers[1](RunningHere(second, joined=False))
    second.mark_started()
    second.settle(DONE)
    second.settle(Unavailable("late"))
    assert reader.got == [Started(1, joined=False), DONE]


async def test_a_run_stopped_before_its_start_is_accepted_again() -> None:
    _, reader, accepts = followed()
    run = a_run()
    accepts.answers[0](RunningHere(run, joined=False))
    run.request_stop(StopReason.CLOSED)
    assert (len(accepts.answers), reader.got) == (2, [])


async def test_a_call_that_is_superseded_without_end_is_unavailable() -> None:
    _, reader, accepts = followed()
    for answer in accepts.answers:  # grows with each new accept
        run = a_run()
        answer(RunningHere(run, joined=False))
        run.settle(Superseded())
    assert len(accepts.answers) == 20
    assert [type(event) for event in reader.got] == [Unavailable]


@pytest.mark.parametrize("joined", [False, True])
async def test_a_reader_that_comes_late_gets_start_and_outcome(joined: bool) -> None:
    _, reader, accepts = followed()
    run = a_run()
    run.mark_started()
    run.settle(DONE)
    accepts.answers[0](RunningHere(run, joined=joined))
    assert reader.got == [Started(1, joined=joined), DONE]


async def test_a_reader_that_left_gets_nothing_and_the_run_goes_on() -> None:
    follower, reader, accepts = followed()
    other, run = Reader(), a_run()
    accepts.answers[0](RunningHere(run, joined=False))
    run.follow(other, joined=True)
    run.emit("text")
    follower.leave()
    run.mark_started()
    run.settle(DONE)
    assert (reader.got, other.got) == ([], [Started(1, joined=True), Output("text"), DONE])
    late, reader, accepts = followed()
    late.leave()
    accepts.answers[0](DONE)
    assert reader.got == []


async def test_a_call_that_runs_elsewhere_is_accepted_again_at_its_end() -> None:
    _, reader, accepts = followed()
    accepts.answers[0](RunningElsewhere(3))
    await until(lambda: bool(accepts.elsewhere))
    accepts.elsewhere[0].set_result(None)
    await until(lambda: len(accepts.answers) == 2)
    accepts.answers[1](DONE)
    assert reader.got == [Started(3, joined=True), DONE]


async def test_errors_reach_the_reader() -> None:
    def full(_answer: Any, _is_patient: bool) -> None:
        raise LimitReached("full")

    _, reader, _ = followed(full)
    assert [type(event) for event in reader.got] == [LimitReached]
    _, reader, accepts = followed()
    accepts.answers[0](Unavailable("no database"))
    assert [type(event) for event in reader.got] == [Unavailable]
    _, reader, accepts = followed()
    accepts.answers[0](RunningElsewhere(3))
    await until(lambda: bool(accepts.elsewhere))
    accepts.elsewhere[0].set_exception(LimitReached("too many wait"))
    await until(lambda: len(reader.got) == 2)
    assert isinstance(reader.got[1], LimitReached)


async def test_unread_output_is_dropped() -> None:
    queue = EventQueue()
    queue.put(Started(1, joined=False))
    for _ in range(1000):
        queue.put(Output("x" * 1000))
    queue.put(DONE)
    events = [event async for event in queue.events()]
    assert (events[0], events[-1]) == (Started(1, joined=False), DONE)
    assert 0 < len(events) - 2 <= 65
    queue.fail(LimitReached("no"))
    with pytest.raises(LimitReached):
        await anext(queue.events())


async def test_a_call_waits_for_the_effect_of_another_one() -> None:
    _, reader, accepts = followed()
    accepts.answers[0](OtherCallRuns(THERE, PATIENCE_SECONDS))
    await until(lambda: bool(accepts.elsewhere))
    accepts.elsewhere[0].set_result(None)
    await until(lambda: len(accepts.answers) == 2)
    accepts.answers[1](DONE)
    assert (accepts.waited_for, accepts.patient, reader.got) == ([(THERE, ENDED)], [True, True], [DONE])


async def test_a_call_that_waited_too_long_for_an_effect_says_so() -> None:
    _, reader, accepts = followed()
    accepts.answers[0](OtherCallRuns(THERE, 0.01))
    await until(lambda: len(accepts.answers) == 2)
    accepts.answers[1](DONE)
    assert (accepts.patient, reader.got) == ([True, False], [DONE])


async def test_call_that_waits_for_an_effect_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its worker gives up the stream that it shares with other calls: the wait comes before the run."""
    monkeypatch.setattr(following, "ANNOUNCE_SECONDS", 0.001)
    _, reader, accepts = followed()
    accepts.answers[0](OtherCallRuns(THERE, PATIENCE_SECONDS))
    await until(lambda: len(reader.got) >= 2)
    assert set(reader.got) == {Settling(ENDED)}
    accepts.elsewhere[0].set_result(None)
    await until(lambda: len(accepts.answers) == 2)
    assert (accepts.patient, len(accepts.waited_for)) == ([True, True], 1)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():
            await asyncio.sleep(0)
