"""WatchTask: one stream out of committed entries, live text and heartbeats.

Entries are pulled: the next page is fetched when the last one was taken, so a slow reader loses nothing and costs
nobody memory. Live text is pushed and may be dropped: the assistant_message entry has it all.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing, suppress
from typing import Any, Final, Self

from services.gateway.peers import Peers, read_task
from tenure.domain.errors import NotFound, TenureError, TryLater, Unavailable
from tenure.domain.fencing import describe_epoch
from tenure.domain.retry import RetryPolicy
from tenure.runtime.rpc_client import TenureChannel, open_channel
from tenure.runtime.rpc_status import PeerFailed
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import coordinator_service_pb2 as coordinator
from tenure.v1 import ledger_pb2, live_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1 import worker_service_pb2 as worker
from tenure.v1.worker_service_pb2_grpc import WorkerServiceStub

# A task's entries, for as long as somebody wants them: outlives restarts of the ledger's replicas.

RECONNECT: Final = RetryPolicy(initial_seconds=0.1, factor=2.0, cap_seconds=2.0)


async def follow_entries(
    peers: Peers, task_id: str, after_sequence: int, *, closing_only: bool = False
) -> AsyncGenerator[ledger.WatchEntriesResponse]:
    """Pages without gap or repeat, ending after the one that closes the task; `closing_only`: just that one.

    Takes the next page only when asked, so that a slow reader costs nobody memory. A ledger that is away is waited for:
    the caller's stream goes on where it was. Raises NotFound and OutOfRange as they come.
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
            failures += 1  # ended in order, without the closing page: a replica that drains
        except TryLater:
            failures += 1
        await asyncio.sleep(RECONNECT.wait_seconds(failures, random.random()))


# What waits to be sent to one watcher: at most one page of entries, and live text that may be dropped.

MAX_PENDING_CHARACTERS: Final = 256 * 1024
"""Of live text for one slow reader. Beyond it the oldest goes: it is not a record, and offsets show the gap."""


class Mailbox:
    """Filled by the watch's readers, emptied by its one sender. `fail` ends it, after what is already in it."""

    def __init__(self) -> None:
        self._page: ledger.WatchEntriesResponse | None = None
        self._deltas: OrderedDict[tuple[int, int, int, int], live_pb2.Delta] = OrderedDict()
        self._characters = 0
        self._error: BaseException | None = None
        self._changed, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()

    async def put_page(self, page: ledger.WatchEntriesResponse) -> None:
        """Waits until the last page was taken: so a slow reader slows only its own stream."""
        await self._room.wait()
        self._room.clear()
        self._page = page
        self._changed.set()

    def add_text(self, delta: live_pb2.Delta) -> None:
        """Joins the piece to what waits of the same block."""
        key = (delta.epoch, delta.step, delta.attempt_number, delta.block)
        waiting = self._deltas.get(key)
        if waiting is not None and waiting.offset + len(waiting.text) == delta.offset:
            waiting.text += delta.text
        else:
            self._deltas[key] = delta
        self._characters += len(delta.text)
        while self._characters > MAX_PENDING_CHARACTERS and len(self._deltas) > 1:
            _, dropped = self._deltas.popitem(last=False)
            self._characters -= len(dropped.text)
        self._changed.set()

    def discard_text(self, epoch: int, step: int) -> None:
        """Drops what waits of this step and before, and of lower epochs: its record was committed, or never will be."""
        for key in [key for key in self._deltas if key[0] < epoch or key[1] <= step]:
            self._characters -= len(self._deltas.pop(key).text)

    def fail(self, error: BaseException) -> None:
        """Nothing more will come."""
        self._error = self._error or error
        self._changed.set()

    async def wait(self, timeout_seconds: float) -> bool:
        """Whether there is something to take before the time is over; raises what `fail` was given once it is empty."""
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
        """The page, making room for the next."""
        page, self._page = self._page, None
        self._room.set()
        if self._error is not None:
            self._changed.set()
        return page

    def take_text(self) -> list[live_pb2.Delta]:
        """All text that waits, oldest first."""
        taken = list(self._deltas.values())
        self._deltas.clear()
        self._characters = 0
        return taken


# Live text: from the worker that holds a task to those who watch it, while somebody does.

_log: Final = logging.getLogger(__name__)
CLOSE_SECONDS: Final = 1.0
REDIAL: Final = RetryPolicy(max_attempts=6, initial_seconds=0.1, factor=2.0, cap_seconds=2.0)


class LiveTextRelay:
    """Knows where workers serve their text, and keeps one channel to each that somebody listens to."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._addresses: dict[str, str] = {}
        self._channels: dict[str, TenureChannel] = {}
        self._listeners: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def follow(self, task_id: str, worker_id: str, epoch: int, on_text: Callable[[live_pb2.Delta], None]) -> None:
        """Hands on the text of one claim until its worker ends it. Best effort: without it a watch is still whole."""
        for failures in range(1, REDIAL.max_attempts + 1):
            try:
                address = await self._address_of(worker_id)
                if not address:
                    return
                await self._listen(address, task_id, epoch, on_text)
            except (TenureError, PeerFailed) as error:
                facts = {"task": task_id, "epoch": describe_epoch(epoch), "worker": worker_id, "why": str(error)}
                _log.info("no live text", extra=facts)
                self._addresses.pop(worker_id, None)
            await asyncio.sleep(REDIAL.wait_seconds(failures, random.random()))

    async def _listen(self, address: str, task_id: str, epoch: int, on_text: Callable[[live_pb2.Delta], None]) -> None:
        channel = self._acquire(address)
        try:
            request = worker.WatchLiveRequest(task_id=task_id, epoch=epoch)
            async for piece in WorkerServiceStub(channel).WatchLive(request):
                on_text(piece.delta)
        finally:
            await self._give_back(address)

    async def _address_of(self, worker_id: str) -> str:
        if worker_id not in self._addresses:
            listed = await self._peers.coordinator.ListWorkers(coordinator.CoordinatorServiceListWorkersRequest())
            self._addresses = {one.worker_id: one.live_address for one in listed.workers}
        return self._addresses.get(worker_id, "")

    def _acquire(self, address: str) -> TenureChannel:
        if address not in self._channels:
            self._channels[address] = open_channel(address)
        self._listeners[address] = self._listeners.get(address, 0) + 1
        return self._channels[address]

    async def _give_back(self, address: str) -> None:
        self._listeners[address] -= 1
        if not self._listeners[address]:
            del self._listeners[address]
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._channels.pop(address).close()
            except TimeoutError:
                _log.warning("a channel to a worker did not close in time", extra={"address": address})


RETRY_AFTER_DRAIN_SECONDS: Final = 1.0


class WatchTaskStream:
    """One watcher. Inside `async with`, `events` ends after the closing entry, and raises Unavailable when we drain."""

    def __init__(
        self, peers: Peers, live: LiveTextRelay, request: api.WatchTaskRequest, stopping: asyncio.Event
    ) -> None:
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
                request = ledger.CheckpointServiceGetTaskRequest(task_id=self._request.task_id)
                beat.heartbeat.budget.CopyFrom((await self._peers.checkpoint.GetTask(request)).task.budget)
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
