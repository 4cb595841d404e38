"""Serves WatchTask: one stream of committed entries, live text and heartbeats.

Entries are pulled: the next page is fetched after the last one was sent, so a slow reader loses nothing and needs no
memory here. Live text is pushed and may be dropped: the assistant_message entry has the whole text.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing, suppress
from typing import Any, Final, Self

from services.gateway.live_text import LiveTextRelay
from services.gateway.peers import Peers, read_task
from services.gateway.pending_text import PendingText
from tenure.domain.errors import NotFound, TryLater, Unavailable
from tenure.domain.retry import RetryPolicy
from tenure.runtime.observability import metrics
from tenure.runtime.rpc.status import DRAINING, PeerFailed
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import ledger_pb2, live_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api

# The entries of a task, read across restarts of the ledger's replicas.

RECONNECT: Final = RetryPolicy(initial_seconds=0.1, factor=2.0, cap_seconds=2.0)


async def follow_entries(
    peers: Peers, task_id: str, after_sequence: int, *, closing_only: bool = False
) -> AsyncGenerator[ledger.WatchEntriesResponse]:
    """Yields pages without gaps or repeats, up to the page that closes the task; with `closing_only`, only that page.

    Fetches a page only when the caller takes it, so a slow reader needs no memory here. While the ledger is
    unreachable, the caller's stream waits and then goes on. Raises NotFound and OutOfRange.
    """
    failures = 0
    while True:
        try:
            request = ledger.WatchEntriesRequest(
                task_id=task_id, after_sequence=after_sequence, closing_only=closing_only
            )
            async for page in peers.checkpoint.WatchEntries(request):
                failures = 0
                if page.entries:
                    after_sequence = page.entries[-1].sequence
                yield page
                if page.closed:
                    return
            failures += 1  # the stream ended without the closing page: a replica drains
        except TryLater:
            failures += 1
        await asyncio.sleep(RECONNECT.wait_seconds(failures, random.random()))


# The outbox of one watcher: at most one page of entries, and live text that may be dropped.


class Mailbox:
    """Collects pages and text from the readers of a watch for its one sender. `fail` ends it after the last page."""

    def __init__(self) -> None:
        self._page: ledger.WatchEntriesResponse | None = None
        self._text = PendingText()
        self._error: BaseException | None = None
        self._changed, self._page_taken = asyncio.Event(), asyncio.Event()
        self._page_taken.set()

    @property
    def is_behind(self) -> bool:
        """Whether the sender has not taken the last page yet."""
        return not self._page_taken.is_set()

    async def put_page(self, page: ledger.WatchEntriesResponse) -> None:
        """Waits until the last page was taken, so that a slow reader delays only its own stream."""
        await self._page_taken.wait()
        self._page_taken.clear()
        self._page = page
        self._changed.set()

    def add_text(self, delta: live_pb2.Delta) -> None:
        """Adds a piece of live text. Never waits: a watcher that reads slowly loses its oldest text."""
        self._text.add(delta)
        self._changed.set()

    def keep_text(self, delta: live_pb2.Delta) -> None:
        """Keeps a piece that was taken too early. It wakes no one: what it waits for does."""
        self._text.add(delta)

    def discard_text(self, epoch: int, step: int) -> None:
        """Drops pending text up to this step, and of lower epochs: its entry was committed, or never will be."""
        self._text.discard(epoch, step)

    def fail(self, error: BaseException) -> None:
        """Ends the mailbox with an error."""
        self._error = self._error or error
        self._changed.set()

    async def wait(self, timeout_seconds: float) -> bool:
        """Waits for content.

        Returns False when the time is over. Raises the error of `fail` once the mailbox is empty.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        if self._error is not None and self._page is None:
            raise self._error
        return True

    def take_page(self) -> ledger.WatchEntriesResponse | None:
        """Takes the page, so that the next one may follow."""
        page, self._page = self._page, None
        self._page_taken.set()
        if self._error is not None:
            self._changed.set()
        return page

    def take_text(self) -> list[live_pb2.Delta]:
        """Takes all pending text, oldest first."""
        return self._text.take()


RETRY_AFTER_DRAIN_SECONDS: Final = 1.0
_LAG: Final = metrics.histogram("tenure_stream_lag_seconds")


def _observe_lag(page: ledger.WatchEntriesResponse, began_at: float) -> None:
    """Measures how long after its commit the newest entry of a page is here. Older entries are history.

    The clocks of the ledger's database and of this machine may differ: what seems to precede its commit counts as 0.
    """
    if page.entries and (committed_at := page.entries[-1].record_time.ToNanoseconds() / 1e9) > began_at:
        _LAG.observe(max(0.0, time.time() - committed_at))


class WatchTaskStream:
    """Serves one watcher in `async with`.

    `events` ends after the closing entry. Raises Unavailable when this gateway drains.
    """

    def __init__(
        self, peers: Peers, live: LiveTextRelay, request: api.WatchTaskRequest, stopping: asyncio.Event
    ) -> None:
        self._peers, self._live, self._request, self._stopping = peers, live, request, stopping
        self._sequence, self._answered = request.after_sequence, (0, 0)
        # The end of the ledger when the watch began, and the newest model call whose entry was sent, or sent before.
        self._history_until, self._newest_call = 0, (0, 0)
        self._mailbox = Mailbox()
        self._waits_for_sub_agents = False
        self._readers: list[asyncio.Task[None]] = []
        self._owner: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        # Before the stream begins, the task was found in the ledger.
        task = await read_task(self._peers, self._request.task_id)
        self._waits_for_sub_agents = task.state == task_pb2.TASK_STATE_WAITING_EXTERNAL
        self._history_until = task.sequence
        if self._request.after_sequence:
            self._newest_call = (task.step, sys.maxsize)  # its entry may be one that this watch does not read again
        if self._request.live and task.state == task_pb2.TASK_STATE_RUNNING:
            self._follow(task.epoch)
        self._start(self._read_entries())
        self._start(self._await_drain())
        return self

    async def __aexit__(self, *_: object) -> None:
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def events(self, heartbeat_seconds: float) -> AsyncGenerator[api.WatchTaskResponse, None]:
        """Yields all events as they happen, and a heartbeat when nothing was sent for `heartbeat_seconds`."""
        beat_at = time.monotonic() + heartbeat_seconds
        while True:
            woken = await self._mailbox.wait(beat_at - time.monotonic())
            page = self._mailbox.take_page() if woken else None
            for event in self._events_of(page):
                yield event
                beat_at = time.monotonic() + heartbeat_seconds
            if page and page.closed:
                return
            if time.monotonic() >= beat_at:
                yield await self._heartbeat()
                beat_at = time.monotonic() + heartbeat_seconds

    def _events_of(self, page: ledger.WatchEntriesResponse | None) -> Iterator[api.WatchTaskResponse]:
        """Yields the entries of the page, then the live text that they did not replace, behind the entry of its call.

        Text comes on another way than entries, and may be here first.
        """
        for entry in page.entries if page else ():
            self._observe(entry)
            yield api.WatchTaskResponse(entry=entry)
        if page is None or not page.closed:
            for delta in self._mailbox.take_text():
                if not self._is_unanswered(delta):
                    continue
                if self._has_its_entry(delta):
                    yield api.WatchTaskResponse(delta=delta)
                else:
                    self._mailbox.keep_text(delta)

    def _observe(self, entry: ledger_pb2.Entry) -> None:
        """Updates the watch's state: a committed answer replaces its live text, a new owner voids the last owner's
        text.
        """
        self._sequence = entry.sequence
        body = entry.body
        if body.HasField("model_attempt"):
            self._note_call(entry.step, body.model_attempt.attempt_number)
        if body.HasField("assistant_message"):
            self._note_call(entry.step, body.assistant_message.attempt_number)
            self._answered = (entry.epoch, entry.step)
            self._mailbox.discard_text(*self._answered)
        to_state = body.transition.to_state
        if to_state:
            self._waits_for_sub_agents = to_state == task_pb2.TASK_STATE_WAITING_EXTERNAL
        if to_state == task_pb2.TASK_STATE_RUNNING and self._request.live:
            self._mailbox.discard_text(entry.epoch, self._answered[1])
            self._follow(entry.epoch)

    def _is_unanswered(self, delta: live_pb2.Delta) -> bool:
        epoch, step = self._answered
        return delta.epoch >= epoch and delta.step > step

    def _has_its_entry(self, delta: live_pb2.Delta) -> bool:
        """Whether the watcher has the history, and the entry with which the call of the text began."""
        has_history = self._sequence >= self._history_until
        return has_history and (delta.step, delta.attempt_number) <= self._newest_call

    def _note_call(self, step: int, attempt_number: int) -> None:
        """Calls of parallel steps may be repeated in any order."""
        self._newest_call = max(self._newest_call, (step, attempt_number))

    async def _heartbeat(self) -> api.WatchTaskResponse:
        """Returns a heartbeat. While a task waits for its sub-agents, it carries the budget that they spend."""
        beat = api.WatchTaskResponse(heartbeat=api.Heartbeat(sequence=self._sequence))
        beat.heartbeat.time.FromNanoseconds(time.time_ns())
        if self._waits_for_sub_agents:
            # the next heartbeat brings it; the readers report how the stream ends
            with suppress(TryLater, PeerFailed, NotFound):
                request = api.GetTaskRequest(task_id=self._request.task_id)
                beat.heartbeat.budget.CopyFrom((await self._peers.checkpoint.GetTask(request)).task.budget)
        return beat

    def _follow(self, epoch: int) -> None:
        """Relays the live text of the task's present owner, and of no earlier one."""
        if self._owner is not None:
            self._owner.cancel()
        text = self._live.follow(self._request.task_id, epoch, self._mailbox.add_text)
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
        began_at, is_behind = time.time(), False
        async with aclosing(follow_entries(self._peers, self._request.task_id, after)) as pages:
            async for page in pages:
                if not is_behind:  # a reader that is slow measures itself, and not this gateway
                    _observe_lag(page, began_at)
                is_behind = self._mailbox.is_behind
                await self._mailbox.put_page(page)

    async def _await_drain(self) -> None:
        await self._stopping.wait()
        raise Unavailable(
            "the gateway restarts; watch again after the last sequence seen",
            reason=DRAINING,
            retry_after_seconds=RETRY_AFTER_DRAIN_SECONDS,
        )
