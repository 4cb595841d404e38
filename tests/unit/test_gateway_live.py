"""Live text comes from the holder of the claim only, and is found again when its worker serves it only in a moment."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from services.gateway.live_text import (
    CHARACTERS_PER_SECOND,
    MAX_CHARACTERS_PER_DELTA,
    LiveTextRelay,
    dialled_address,
    is_sound,
)
from tenure.domain.errors import NotFound, PermissionDenied, Unavailable
from tenure.domain.fencing import holder_proof, proof_digest
from tenure.runtime.http.name_lookups import NameLookups
from tenure.runtime.rpc.server import RpcServer
from tenure.v1 import coordinator_service_pb2 as coordinator
from tenure.v1 import live_pb2
from tenure.v1 import worker_service_pb2 as worker
from tenure.v1.worker_service_pb2_grpc import WorkerServiceServicer
from tests.support.patience import PATIENCE_SECONDS

SECRET = b"s" * 32
DIGEST = bytes.fromhex(proof_digest(SECRET))


def piece(text: str = "words", *, epoch: int = 7, step: int = 1, **fields: int) -> worker.WatchLiveResponse:
    return worker.WatchLiveResponse(delta=live_pb2.Delta(epoch=epoch, step=step, text=text, **fields))


class Speaker(WorkerServiceServicer):
    """A worker's messages, after some refusals: a watch may come before the worker knows of its claim."""

    def __init__(self, *messages: worker.WatchLiveResponse, refusals: int = 0) -> None:
        self._messages, self._refusals = messages, refusals
        self.calls = 0

    async def WatchLive(
        self, _request: worker.WatchLiveRequest, _context: Any
    ) -> AsyncIterator[worker.WatchLiveResponse]:
        self.calls += 1
        if self._refusals:
            self._refusals -= 1
            raise NotFound("not here yet")
        for message in self._messages:
            yield message
        await asyncio.Event().wait()


PROVEN = worker.WatchLiveResponse(holder_proof=holder_proof(SECRET))


class Coordinator:
    """Tells where the claim's worker is: each of the answers once, then the last of them again and again."""

    def __init__(self, *answers: str | Exception, digest: bytes = DIGEST) -> None:
        self._answers, self._digest = list(answers), digest
        self.request_count = 0

    async def GetLiveSource(self, request: coordinator.GetLiveSourceRequest) -> coordinator.GetLiveSourceResponse:
        assert (request.task_id, request.epoch) == ("t", 7)
        self.request_count += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return coordinator.GetLiveSourceResponse(address=answer, proof_digest=self._digest, allows_loopback=True)


async def serve(stack: AsyncExitStack, speaker: WorkerServiceServicer) -> str:
    server = RpcServer("127.0.0.1:0", grace_seconds=0.1)
    server.add("tenure.v1.WorkerService", speaker)
    await stack.enter_async_context(server)
    return server.address


async def texts(known: Coordinator, count: int) -> list[str]:
    """The first pieces of live text that a watcher gets."""
    heard: asyncio.Queue[str] = asyncio.Queue()
    peers: Any = SimpleNamespace(coordinator=known)
    async with asyncio.timeout(PATIENCE_SECONDS), LiveTextRelay(peers) as live:
        following = asyncio.create_task(live.follow("t", 7, lambda delta: heard.put_nowait(delta.text)))
        try:
            return [await heard.get() for _ in range(count)]
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following


async def all_texts(known: Coordinator) -> list[str]:
    """All live text until the relay gives up."""
    heard: list[str] = []
    peers: Any = SimpleNamespace(coordinator=known)
    async with asyncio.timeout(PATIENCE_SECONDS), LiveTextRelay(peers) as live:
        await live.follow("t", 7, lambda delta: heard.append(delta.text))
    return heard


async def test_a_worker_gone_from_its_address_is_looked_up_again() -> None:
    async with AsyncExitStack() as stack:
        bound = stack.enter_context(socket.socket())
        bound.bind(("127.0.0.1", 0))  # it does not listen, so it refuses, and no other process gets the port
        known = Coordinator(f"127.0.0.1:{bound.getsockname()[1]}", await serve(stack, Speaker(PROVEN, piece())))
        assert await texts(known, 1) == ["words"]
        assert known.request_count == 2


async def test_worker_without_the_task_is_retried() -> None:
    async with AsyncExitStack() as stack:
        assert await texts(Coordinator(await serve(stack, Speaker(PROVEN, piece(), refusals=2))), 1) == ["words"]


async def test_unavailable_coordinator_is_retried() -> None:
    async with AsyncExitStack() as stack:
        away = Unavailable("restarts")
        assert await texts(Coordinator(away, away, await serve(stack, Speaker(PROVEN, piece()))), 1) == ["words"]


@pytest.mark.parametrize("answer", ["", NotFound("the claim is over")])
async def test_claim_without_live_text_is_not_dialled(answer: str | Exception) -> None:
    known = Coordinator(answer)
    assert await all_texts(known) == []
    assert known.request_count == 1


@pytest.mark.parametrize(
    "first", [piece("forged"), worker.WatchLiveResponse(holder_proof=holder_proof(b"o" * 32)), None]
)
async def test_text_without_the_holders_proof_is_not_relayed(first: worker.WatchLiveResponse | None) -> None:
    """The gateway asks again, because the holder may be on its way; it relays nothing in the meantime."""
    messages = [] if first is None else [first]
    forger = Ending(*messages, piece("forged"))
    async with AsyncExitStack() as stack:
        assert await all_texts(Coordinator(await serve(stack, forger))) == []
        assert forger.calls > 1


class Ending(Speaker):
    """Ends its stream after its messages."""

    async def WatchLive(
        self, _request: worker.WatchLiveRequest, _context: Any
    ) -> AsyncIterator[worker.WatchLiveResponse]:
        self.calls += 1
        for message in self._messages:
            yield message


async def test_pieces_of_other_claims_and_sizes_are_dropped() -> None:
    unsound = [
        piece("other epoch", epoch=8),
        piece("no step", step=0),
        piece("negative", block=-1),
        piece("negative", offset=-1),
        piece("negative", attempt_number=-1),
        piece("x" * (MAX_CHARACTERS_PER_DELTA + 1)),
    ]
    assert not any(is_sound(each.delta, 7) for each in unsound)
    async with AsyncExitStack() as stack:
        speaker = Speaker(PROVEN, *unsound, PROVEN, piece("\U0001f600" * MAX_CHARACTERS_PER_DELTA), piece("after"))
        heard = await texts(Coordinator(await serve(stack, speaker)), 2)
        assert [len(text) for text in heard] == [MAX_CHARACTERS_PER_DELTA, len("after")]


async def test_a_message_beyond_the_limit_ends_the_stream() -> None:
    async with AsyncExitStack() as stack:
        speaker = Ending(PROVEN, piece("x" * (1024 * 1024)), piece("after"))
        assert await all_texts(Coordinator(await serve(stack, speaker))) == []
        assert speaker.calls > 1


class Endless(WorkerServiceServicer):
    """Sends the largest pieces without end."""

    async def WatchLive(
        self, _request: worker.WatchLiveRequest, _context: Any
    ) -> AsyncIterator[worker.WatchLiveResponse]:
        yield PROVEN
        while True:
            yield piece("x" * MAX_CHARACTERS_PER_DELTA)


async def test_endless_text_is_held_back_to_a_pace() -> None:
    count = 24
    async with AsyncExitStack() as stack:
        known = Coordinator(await serve(stack, Endless()))
        began = time.monotonic()
        await texts(known, count)
        assert time.monotonic() - began >= (count - 1) * MAX_CHARACTERS_PER_DELTA / CHARACTERS_PER_SECOND


@pytest.fixture
async def names() -> AsyncGenerator[NameLookups]:
    async with NameLookups() as made:
        yield made


@pytest.mark.parametrize("address", ["localhost:{}", "127.0.0.1:{}"])
async def test_a_loopback_address_of_a_remote_worker_is_not_dialled(address: str, names: NameLookups) -> None:
    connected: list[Any] = []
    listener = await asyncio.start_server(lambda *_: connected.append(_), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with listener:
        with pytest.raises(PermissionDenied) as refused:
            await dialled_address(address.format(port), names, allows_loopback=False)
        assert refused.value.reason == "ADDRESS_REFUSED"
        assert await dialled_address(address.format(port), names, allows_loopback=True) in {
            f"127.0.0.1:{port}",
            f"[::1]:{port}",
        }
    assert connected == []


@pytest.mark.parametrize("address", ["169.254.169.254:80", "0.0.0.0:80", "unix:/run/docker.sock", "unix:1"])
async def test_a_special_address_is_not_dialled(address: str, names: NameLookups) -> None:
    with pytest.raises(PermissionDenied):
        await dialled_address(address, names, allows_loopback=True)


async def test_unresolved_name_is_retried(names: NameLookups) -> None:
    with pytest.raises(Unavailable):
        await dialled_address("no-such-host.invalid:80", names, allows_loopback=True)
