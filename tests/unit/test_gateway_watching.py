"""When a watcher hears that its task is still watched: counted from the last event it was sent."""

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
        entry = ledger_pb2.Entry(sequence=1, epoch=7, step=ANSWERED_STEP)
        entry.body.assistant_message.content_json = "[]"
        yield ledger.WatchEntriesResponse(entries=[entry])
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
