"""All watchers of a claim share one stream of its worker. None of them slows, ends or repeats another's text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from types import SimpleNamespace
from typing import Any

from services.gateway.live_text import LiveTextRelay
from services.gateway.pending_text import MAX_PENDING_CHARACTERS
from services.gateway.watch import WatchTaskStream
from tenure.domain.errors import NotFound
from tenure.domain.fencing import holder_proof, proof_digest
from tenure.runtime.request_context import as_tenant, current_tenant
from tenure.runtime.rpc.server import RpcServer
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import coordinator_service_pb2 as coordinator
from tenure.v1 import ledger_pb2, live_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1 import worker_service_pb2 as worker
from tenure.v1.worker_service_pb2_grpc import WorkerServiceServicer
from tests.support.patience import PATIENCE_SECONDS

SECRET = b"s" * 32
MANY = 20


def piece(text: str, *, epoch: int = 7, step: int = 1, offset: int = 0) -> worker.WatchLiveResponse:
    delta = live_pb2.Delta(epoch=epoch, step=step, attempt_number=1, text=text, offset=offset)
    return worker.WatchLiveResponse(delta=delta)


COMPLETE = worker.WatchLiveResponse(answer_complete=True)


class Speaker(WorkerServiceServicer):
    """A worker that says what a test has it say, to every stream that is open. Served over a socket."""

    def __init__(self) -> None:
        self.said: list[asyncio.Queue[worker.WatchLiveResponse]] = []
        self.calls = 0
        self.address = ""
        self._changed = asyncio.Condition()

    async def WatchLive(
        self, _request: worker.WatchLiveRequest, _context: Any
    ) -> AsyncIterator[worker.WatchLiveResponse]:
        saying: asyncio.Queue[worker.WatchLiveResponse] = asyncio.Queue()
        self.calls += 1
        await self._change(lambda: self.said.append(saying))
        try:
            yield worker.WatchLiveResponse(holder_proof=holder_proof(SECRET))
            while True:
                yield await saying.get()
        finally:
            await self._change(lambda: self.said.remove(saying))

    async def _change(self, change: Callable[[], None]) -> None:
        async with self._changed:
            change()
            self._changed.notify_all()

    def say(self, *messages: worker.WatchLiveResponse) -> None:
        for stream in self.said:
            for message in messages:
                stream.put_nowait(message)

    async def until_streams(self, count: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.said) == count)

    async def until_calls(self, count: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.calls == count)


class Coordinator:
    """Knows the worker of each epoch, for one tenant."""

    def __init__(self, **speakers: Speaker) -> None:
        self._speakers = {int(epoch.removeprefix("e")): speaker for epoch, speaker in speakers.items()}
        self.asked: list[tuple[str, int]] = []

    async def GetLiveSource(self, request: coordinator.GetLiveSourceRequest) -> coordinator.GetLiveSourceResponse:
        self.asked.append((current_tenant(), request.epoch))
        if current_tenant() != "default" or request.epoch not in self._speakers:
            raise NotFound("there is no such claim")
        digest = bytes.fromhex(proof_digest(SECRET))
        address = self._speakers[request.epoch].address
        return coordinator.GetLiveSourceResponse(address=address, proof_digest=digest, allows_loopback=True)


@asynccontextmanager
async def relay_of(known: Coordinator, *speakers: Speaker) -> AsyncIterator[LiveTextRelay]:
    async with asyncio.timeout(PATIENCE_SECONDS), AsyncExitStack() as stack:
        for speaker in speakers:
            server = RpcServer("127.0.0.1:0", grace_seconds=0.1)
            server.add("tenure.v1.WorkerService", speaker)
            await stack.enter_async_context(server)
            speaker.address = server.address
        peers: Any = SimpleNamespace(coordinator=known)
        yield await stack.enter_async_context(LiveTextRelay(peers))


class Follower:
    """One watcher, by the text that it has received."""

    def __init__(self, relay: LiveTextRelay, epoch: int = 7) -> None:
        self.text = ""
        self.arrived: asyncio.Queue[str] = asyncio.Queue()
        self._following = asyncio.create_task(
            relay.follow("t", epoch, lambda delta: self.arrived.put_nowait(delta.text))
        )

    async def until(self, text: str) -> None:
        """Waits for exactly this text in all."""
        while len(self.text) < len(text):
            self.text += await self.arrived.get()
        assert self.text == text

    async def comes_to_nothing(self) -> bool:
        """Whether it has joined and got no text by then: a stream passes on at once what it kept."""
        for _ in range(3):
            await asyncio.sleep(0)
        return self.arrived.empty()

    async def leave(self) -> None:
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)

    async def ends(self) -> None:
        await self._following


async def test_watchers_of_a_task_share_one_stream() -> None:
    speaker = Speaker()
    known = Coordinator(e7=speaker)
    async with relay_of(known, speaker) as relay:
        followers = [Follower(relay) for _ in range(MANY)]
        await speaker.until_streams(1)
        speaker.say(piece("ab"), piece("cd", offset=2))
        for follower in followers:
            await follower.until("abcd")
        assert (speaker.calls, known.asked) == (1, [("default", 7)])


async def test_a_late_watcher_gets_the_unfinished_answer_so_far() -> None:
    speaker = Speaker()
    async with relay_of(Coordinator(e7=speaker), speaker) as relay:
        first = Follower(relay)
        await speaker.until_streams(1)
        speaker.say(piece("old", step=1), piece("ab", step=2), piece("cd", step=2, offset=2))
        await first.until("oldabcd")
        late = Follower(relay)
        await late.until("abcd")
        speaker.say(piece("!", step=2, offset=4))
        await first.until("oldabcd!")
        await late.until("abcd!")
        assert speaker.calls == 1


async def test_a_late_watcher_gets_nothing_of_a_complete_answer() -> None:
    speaker = Speaker()
    async with relay_of(Coordinator(e7=speaker), speaker) as relay:
        first = Follower(relay)
        await speaker.until_streams(1)
        speaker.say(piece("done"))
        await first.until("done")
        speaker.say(COMPLETE)
        while (late := Follower(relay)) and not await late.comes_to_nothing():
            await late.leave()
        speaker.say(piece("next", step=2))
        await late.until("next")
        assert speaker.calls == 1


async def test_the_stream_ends_with_its_last_watcher_only() -> None:
    speaker = Speaker()
    async with relay_of(Coordinator(e7=speaker), speaker) as relay:
        first, second = Follower(relay), Follower(relay)
        await speaker.until_streams(1)
        await first.leave()
        speaker.say(piece("on"))
        await second.until("on")
        await second.leave()
        await speaker.until_streams(0)
        again = Follower(relay)
        await speaker.until_streams(1)
        speaker.say(piece("again"))
        await again.until("again")
        assert speaker.calls == 2


async def test_a_closing_stream_does_not_take_the_next_one_along() -> None:
    speaker = Speaker()
    async with relay_of(Coordinator(e7=speaker), speaker) as relay:
        first = Follower(relay)
        await speaker.until_streams(1)
        await first.leave()
        second = Follower(relay)  # while the stream of the first one closes
        await speaker.until_calls(2)
        await speaker.until_streams(1)
        third = Follower(relay)
        await third.comes_to_nothing()
        speaker.say(piece("on"))
        await second.until("on")
        await third.until("on")
        assert speaker.calls == 2


async def test_a_watcher_of_another_tenant_gets_no_shared_text() -> None:
    speaker = Speaker()
    known = Coordinator(e7=speaker)
    async with relay_of(known, speaker) as relay:
        own = Follower(relay)
        await speaker.until_streams(1)
        speaker.say(piece("secret"))
        await own.until("secret")
        with as_tenant("other"):
            other = Follower(relay)
        await other.ends()  # its own question to the coordinator was refused
        speaker.say(piece("more", offset=6))
        await own.until("secretmore")
        assert other.text == ""
        assert other.arrived.empty()
        assert known.asked == [("default", 7), ("other", 7)]


async def test_the_end_of_the_claim_ends_every_watchers_text() -> None:
    known = Coordinator()
    async with relay_of(known) as relay:
        for follower in [Follower(relay) for _ in range(3)]:
            await follower.ends()
        assert known.asked == [("default", 7)]


class Ledger:
    """The entries of a task that runs under epoch 7, and whatever a test adds."""

    def __init__(self) -> None:
        self._watches: list[asyncio.Queue[ledger_pb2.Entry]] = []

    async def GetTask(self, _request: Any) -> Any:
        task = task_pb2.Task(state=task_pb2.TASK_STATE_RUNNING, owner="worker-1", epoch=7, step=2)
        return api.GetTaskResponse(task=task)

    async def WatchEntries(self, _request: Any) -> AsyncIterator[ledger.WatchEntriesResponse]:
        entries: asyncio.Queue[ledger_pb2.Entry] = asyncio.Queue()
        self._watches.append(entries)
        while True:
            yield ledger.WatchEntriesResponse(entries=[await entries.get()])

    def append(self, entry: ledger_pb2.Entry) -> None:
        for entries in self._watches:
            entries.put_nowait(entry)

    @property
    def watchers(self) -> int:
        return len(self._watches)


@asynccontextmanager
async def watches(
    count: int, relay: LiveTextRelay, entries: Ledger
) -> AsyncIterator[list[AsyncIterator[api.WatchTaskResponse]]]:
    peers: Any = SimpleNamespace(checkpoint=entries)
    request = api.WatchTaskRequest(task_id="t", live=True, after_sequence=1)  # behind the entry of the model call
    async with AsyncExitStack() as stack:
        events = []
        for _ in range(count):
            watch = await stack.enter_async_context(WatchTaskStream(peers, relay, request, asyncio.Event()))
            events.append(await stack.enter_async_context(aclosing(watch.events(PATIENCE_SECONDS))))
        while entries.watchers < count:
            await asyncio.sleep(0)
        yield list(events)


def started(epoch: int, sequence: int) -> ledger_pb2.Entry:
    entry = ledger_pb2.Entry(sequence=sequence, epoch=epoch)
    entry.body.transition.to_state = task_pb2.TASK_STATE_RUNNING
    return entry


async def text_until(events: AsyncIterator[api.WatchTaskResponse], end: str) -> str:
    text = ""
    while not text.endswith(end):
        event = await anext(events)
        text += event.delta.text
    return text


async def test_after_a_takeover_all_watchers_share_the_new_stream() -> None:
    former, owner, entries = Speaker(), Speaker(), Ledger()
    known = Coordinator(e7=former, e8=owner)
    async with relay_of(known, former, owner) as relay, watches(MANY, relay, entries) as streams:
        await former.until_streams(1)
        former.say(piece("old."))
        assert {await text_until(events, ".") for events in streams} == {"old."}
        entries.append(started(8, sequence=9))
        for events in streams:
            assert (await anext(events)).entry.epoch == 8
        await former.until_streams(0)
        await owner.until_streams(1)
        owner.say(piece("new.", epoch=8))
        assert {await text_until(events, ".") for events in streams} == {"new."}
        assert (former.calls, owner.calls) == (1, 1)


async def test_a_slow_watcher_loses_text_alone_and_no_entry() -> None:
    """It reads nothing while the other one reads more than its bound."""
    speaker, entries = Speaker(), Ledger()
    chunk, count = "x" * 65_536, 3 * MAX_PENDING_CHARACTERS // 65_536
    async with relay_of(Coordinator(e7=speaker), speaker) as relay, watches(2, relay, entries) as (slow, fast):
        await speaker.until_streams(1)
        for number in range(count):
            speaker.say(piece(chunk, offset=number * len(chunk)))
        speaker.say(piece(".", offset=count * len(chunk)))
        assert await text_until(fast, ".") == chunk * count + "."
        for sequence in range(1, 4):
            entries.append(ledger_pb2.Entry(sequence=sequence, epoch=7))
        kept = ""
        sequences: list[int] = []
        while len(sequences) < 3 or not kept.endswith("."):
            event = await anext(slow)
            kept += event.delta.text
            sequences += [event.entry.sequence] if event.HasField("entry") else []
        assert sequences == [1, 2, 3]
        assert 0 < len(kept) <= MAX_PENDING_CHARACTERS
        assert (speaker.calls, len(speaker.said)) == (1, 1)
