"""When a watcher hears that its task is still watched, and that live text comes behind the entry of its call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

from services.gateway.watch import WatchTaskStream
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import ledger_pb2, live_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.support.patience import PATIENCE_SECONDS

ANSWERED_STEP = 5


class QuietLedger:
    """A running task that has answered a step, and then writes nothing more."""

    async def GetTask(self, _request: Any) -> Any:
        task = task_pb2.Task(state=task_pb2.TASK_STATE_RUNNING, owner="worker-1", epoch=7)
        return api.GetTaskResponse(task=task)

    async def WatchEntries(self, _request: Any) -> AsyncIterator[ledger.WatchEntriesResponse]:
        answer = ledger_pb2.Entry(sequence=1, epoch=7, step=ANSWERED_STEP)
        answer.body.assistant_message.content_json = "[]"
        attempt = ledger_pb2.Entry(sequence=2, epoch=7, step=ANSWERED_STEP + 1)
        attempt.body.model_attempt.attempt_number = 1
        yield ledger.WatchEntriesResponse(entries=[answer, attempt])
        await asyncio.Event().wait()


class Chatter:
    """A worker that keeps sending live text of one step, often enough to wake the watch all the time."""

    def __init__(self, step: int) -> None:
        self._step = step

    async def follow(self, _task: str, epoch: int, hear: Callable[[live_pb2.Delta], None]) -> None:
        while True:
            hear(live_pb2.Delta(epoch=epoch, step=self._step, attempt_number=1, text="x"))
            await asyncio.sleep(0.01)


async def first_events(step: int, count: int, heartbeat_seconds: float) -> list[str | None]:
    peers: Any = SimpleNamespace(checkpoint=QuietLedger())
    live: Any = Chatter(step)
    request = api.WatchTaskRequest(task_id="t", live=True)
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        WatchTaskStream(peers, live, request, asyncio.Event()) as watch,
        aclosing(watch.events(heartbeat_seconds)) as events,
    ):
        return [(await anext(events)).WhichOneof("event") for _ in range(count)]


async def test_text_that_is_not_sent_on_delays_no_heartbeat() -> None:
    kinds = await first_events(ANSWERED_STEP, 3, heartbeat_seconds=0.2)
    assert kinds[kinds.index("entry") + 1 :][-1] == "heartbeat"


async def test_sent_text_replaces_heartbeats() -> None:
    kinds = await first_events(ANSWERED_STEP + 1, 40, heartbeat_seconds=5.0)
    assert set(kinds) == {"entry", "delta"}


class SlowLedger(QuietLedger):
    """A ledger whose pages come one by one when the test lets them, and long after the text of the call in flight."""

    def __init__(self, *pages: list[ledger_pb2.Entry]) -> None:
        self.pages, self.may_send = pages, asyncio.Event()

    async def GetTask(self, _request: Any) -> Any:
        entries = [entry for page in self.pages[:-1] for entry in page]
        newest = entries[-1]
        task = task_pb2.Task(state=task_pb2.TASK_STATE_RUNNING, epoch=7, sequence=newest.sequence, step=newest.step)
        return api.GetTaskResponse(task=task)

    async def WatchEntries(self, request: Any) -> AsyncIterator[ledger.WatchEntriesResponse]:
        for page in self.pages:
            if entries := [one for one in page if one.sequence > request.after_sequence]:
                await self.may_send.wait()
                self.may_send.clear()
                yield ledger.WatchEntriesResponse(entries=entries)
        await asyncio.Event().wait()


class OneText:
    """Sends a piece of each of these calls when the watch begins."""

    def __init__(self, *steps: int) -> None:
        self.steps, self.sent = steps, asyncio.Event()

    async def follow(self, _task: str, epoch: int, hear: Callable[[live_pb2.Delta], None]) -> None:
        for step in self.steps:
            hear(live_pb2.Delta(epoch=epoch, step=step, attempt_number=1, text="x"))
        self.sent.set()
        await asyncio.Event().wait()


def attempt(sequence: int, step: int) -> ledger_pb2.Entry:
    entry = ledger_pb2.Entry(sequence=sequence, epoch=7, step=step)
    entry.body.model_attempt.attempt_number = 1
    return entry


def answer(sequence: int, step: int) -> ledger_pb2.Entry:
    entry = ledger_pb2.Entry(sequence=sequence, epoch=7, step=step)
    entry.body.assistant_message.attempt_number = 1
    return entry


async def test_live_text_comes_behind_the_entry_of_its_call() -> None:
    """A watch in the middle of an answer got its text before the history, and the command discarded it."""
    slow = SlowLedger([attempt(1, 1), answer(2, 1)], [attempt(3, 2)], [answer(4, 2), attempt(5, 3)])
    order = ["entry 1", "entry 2", "entry 3", "text 2", "entry 4", "entry 5", "text 3"]
    assert await in_order(slow, after_sequence=0, count=len(order)) == order
    resumed = SlowLedger([attempt(1, 1), answer(2, 1)], [attempt(3, 2)], [answer(4, 2), attempt(5, 3)])
    order = ["text 2", "entry 4", "entry 5", "text 3"]
    assert await in_order(resumed, after_sequence=3, count=len(order)) == order, "the entry of step 2 was read before"


async def test_text_of_a_parallel_step_needs_no_newer_entry() -> None:
    """An older step is tried again after the newer one has begun."""
    slow = SlowLedger([attempt(1, 2), attempt(2, 3), attempt(3, 2)], [])
    assert await in_order(slow, after_sequence=0, count=5) == ["entry 1", "entry 2", "entry 3", "text 2", "text 3"]


async def in_order(slow: SlowLedger, after_sequence: int, count: int) -> list[str]:
    """The first events of a watch for which all live text is here before the first entry."""
    peers: Any = SimpleNamespace(checkpoint=slow)
    texts = OneText(2, 3)
    live: Any = texts
    request = api.WatchTaskRequest(task_id="t", live=True, after_sequence=after_sequence)
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        WatchTaskStream(peers, live, request, asyncio.Event()) as watch,
        aclosing(watch.events(PATIENCE_SECONDS)) as events,
    ):
        await texts.sent.wait()
        slow.may_send.set()
        seen: list[str] = []
        while len(seen) < count:
            event = await anext(events)
            is_entry = event.HasField("entry")
            seen.append(f"entry {event.entry.sequence}" if is_entry else f"text {event.delta.step}")
            slow.may_send.set()
        return seen
