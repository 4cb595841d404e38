"""WatchTask: one stream out of committed entries, live text and heartbeats.

Entries are pulled: the next page is fetched when the last one was taken, so a slow reader loses nothing and costs
nobody memory. Live text is pushed and may be dropped: the assistant_message entry has it all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing, suppress
from typing import Any, Final, Self

from services.gateway.entries import follow_entries
from services.gateway.live import LiveText
from services.gateway.mailbox import Mailbox
from services.gateway.peers import Peers, read_task
from tenure.domain.errors import NotFound, TryLater, Unavailable
from tenure.runtime.status import PeerFailed
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import ledger_pb2, live_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api

RETRY_AFTER_DRAIN_SECONDS: Final = 1.0


class Watch:
    """One watcher. Inside `async with`, `events` ends after the closing entry, and raises Unavailable when we drain."""

    def __init__(self, peers: Peers, live: LiveText, request: api.WatchTaskRequest, stopping: asyncio.Event) -> None:
        self._peers, self._live, self._request, self._stopping = peers, live, request, stopping
        self._sequence, self._answered = request.after_sequence, (0, 0)
        self._mailbox = Mailbox()
        self._waits_for_others = False
        self._readers: list[asyncio.Task[None]] = []
        self._owner: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        # A stream that begins has a task and a ledger behind it.
        task = await read_task(self._peers, self._request.task_id)
        self._waits_for_others = task.state == task_pb2.TASK_STATE_WAITING_EXTERNAL
        if self._request.live and task.state == task_pb2.TASK_STATE_RUNNING:
            self._follow(task.owner, task.epoch)
        self._start(self._read_entries())
        self._start(self._await_drain())
        return self

    async def __aexit__(self, *_: object) -> None:
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def events(self, heartbeat_seconds: float) -> AsyncGenerator[api.WatchTaskResponse, None]:
        """Everything as it happens; a heartbeat when nothing was sent for that long, whatever woke us meanwhile."""
        beat_at = time.monotonic() + heartbeat_seconds
        while True:
            woken = await self._mailbox.wait(beat_at - time.monotonic())
            page = self._mailbox.take_page() if woken else None
            for event in self._news(page):
                yield event
                beat_at = time.monotonic() + heartbeat_seconds
            if page and page.closed:
                return
            if time.monotonic() >= beat_at:
                yield await self._heartbeat()
                beat_at = time.monotonic() + heartbeat_seconds

    def _news(self, page: ledger.WatchEntriesResponse | None) -> Iterator[api.WatchTaskResponse]:
        """The page's entries, then the live text that they left worth sending."""
        for entry in page.entries if page else ():
            self._take_note(entry)
            yield api.WatchTaskResponse(entry=entry)
        if page is None or not page.closed:
            yield from (
                api.WatchTaskResponse(delta=delta) for delta in self._mailbox.take_text() if self._is_news(delta)
            )

    def _take_note(self, entry: ledger_pb2.Entry) -> None:
        """A committed answer makes its live text old; a new owner makes that of the one before void."""
        self._sequence = entry.sequence
        body = entry.body
        if body.HasField("assistant_message"):
            self._answered = (entry.epoch, entry.step)
            self._mailbox.discard_text(*self._answered)
        to_state = body.transition.to_state
        if to_state:
            self._waits_for_others = to_state == task_pb2.TASK_STATE_WAITING_EXTERNAL
        if to_state == task_pb2.TASK_STATE_RUNNING and self._request.live:
            self._mailbox.discard_text(entry.epoch, self._answered[1])
            self._follow(entry.actor, entry.epoch)

    def _is_news(self, delta: live_pb2.Delta) -> bool:
        epoch, step = self._answered
        return delta.epoch >= epoch and delta.step > step

    async def _heartbeat(self) -> api.WatchTaskResponse:
        """While sub-agents spend the budget of a task that waits, its entries say nothing of it: this does."""
        beat = api.WatchTaskResponse(heartbeat=api.Heartbeat(sequence=self._sequence))
        beat.heartbeat.time.FromNanoseconds(time.time_ns())
        if self._waits_for_others:
            with suppress(TryLater, PeerFailed, NotFound):  # the next one tells; how the stream ends, its readers say
                asked = ledger.CheckpointServiceGetTaskRequest(task_id=self._request.task_id)
                beat.heartbeat.budget.CopyFrom((await self._peers.checkpoint.GetTask(asked)).task.budget)
        return beat

    def _follow(self, worker_id: str, epoch: int) -> None:
        """Listens to the task's owner from now on, and to nobody before it."""
        if self._owner is not None:
            self._owner.cancel()
        text = self._live.follow(self._request.task_id, worker_id, epoch, self._mailbox.add_text)
        self._owner = self._start(text)

    def _start(self, reader: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(reader)
        self._readers = [running for running in self._readers if not running.done()]
        self._readers.append(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, reader: asyncio.Task[None]) -> None:
        error = None if reader.cancelled() else reader.exception()
        if error is not None:
            self._mailbox.fail(error)

    async def _read_entries(self) -> None:
        after = self._request.after_sequence
        async with aclosing(follow_entries(self._peers, self._request.task_id, after)) as pages:
            async for page in pages:
                await self._mailbox.put_page(page)

    async def _await_drain(self) -> None:
        await self._stopping.wait()
        raise Unavailable(
            "the gateway restarts; watch again after the last sequence seen",
            retry_after_seconds=RETRY_AFTER_DRAIN_SECONDS,
        )
