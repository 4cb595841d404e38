"""Relays live text from the worker that holds a task to watchers of the task.

A worker is not trusted here: it chooses its address, and another process may answer there. So the coordinator names the
address of the claim's own session, the rules of `tenure/domain/outbound.py` apply to each IP address, the answering
process proves that it holds the claim, and what it sends is bounded.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Self

from services.gateway.peers import Peers
from services.gateway.pending_text import PendingText
from tenure.domain.access import Role
from tenure.domain.errors import NotFound, PermissionDenied, TenureError, Unavailable
from tenure.domain.fencing import describe_epoch, is_proof
from tenure.domain.outbound import IPAddress, LiveAddress, refusal_of
from tenure.domain.retry import RetryPolicy
from tenure.runtime.http.name_lookups import NameLookups, Unresolved
from tenure.runtime.request_context import current_tenant, set_tenant
from tenure.runtime.rpc.client import TenureChannel, open_channel
from tenure.runtime.rpc.status import PeerFailed
from tenure.runtime.security.process_security import NO_SECURITY, Security
from tenure.v1 import coordinator_service_pb2 as coordinator
from tenure.v1 import live_pb2
from tenure.v1 import worker_service_pb2 as worker
from tenure.v1.worker_service_pb2_grpc import WorkerServiceStub

_log: Final = logging.getLogger(__name__)
CLOSE_SECONDS: Final = 1.0
REDIAL: Final = RetryPolicy(max_attempts=6, initial_seconds=0.1, factor=2.0, cap_seconds=2.0)
RESOLVE_SECONDS: Final = 2.0
MAX_CHARACTERS_PER_DELTA: Final = 65_536
MAX_MESSAGE_BYTES: Final = 5 * MAX_CHARACTERS_PER_DELTA
"""More than any piece of so many characters: a larger message ends the stream."""
CHARACTERS_PER_SECOND: Final = 1024 * 1024
"""The pace of one stream. A worker that sends faster is held back by flow control."""
MESSAGE_SECONDS: Final = 0.005
"""The least time for a message. Our workers send one piece of a block in 50 ms."""

OnText = Callable[[live_pb2.Delta], None]


class _SharedStream:
    """The live text of one claim and those who follow it. Who comes later first gets the unfinished answer so far.

    `failures`: the tries that have ended since the newest follower came. `end`: makes room for another stream.
    """

    running: asyncio.Task[None]

    def __init__(self, end: Callable[[], object]) -> None:
        self.failures = 0
        self.end = end
        self._followers: dict[object, OnText] = {}
        self._unfinished = PendingText()
        self._call = (0, 0)

    @contextmanager
    def followed_by(self, on_text: OnText) -> Iterator[None]:
        """Passes all text to `on_text` inside the block. The last block to end ends the stream."""
        follower = object()
        self._followers[follower] = on_text
        self.failures = 0
        for delta in self._unfinished:
            on_text(delta)
        try:
            yield
        finally:
            del self._followers[follower]
            if not self._followers:
                self.end()
                self.running.cancel()

    def on_text(self, delta: live_pb2.Delta) -> None:
        """Passes a piece on, and keeps it for later followers while its answer is unfinished."""
        call = (delta.step, delta.attempt_number)
        if call != self._call:
            self._unfinished.clear()
            self._call = call
        self._unfinished.add(delta)
        for on_text in self._followers.values():
            on_text(delta)

    def forget_text(self) -> None:
        """Forgets the answer so far: who comes from now on finds it in the ledger, or the worker sends it again."""
        self._unfinished.clear()


class LiveTextRelay:
    """Keeps one stream for each claim that has watchers, and one channel to each address of their workers."""

    def __init__(self, peers: Peers, security: Security = NO_SECURITY) -> None:
        self._peers, self._security = peers, security
        self._streams: dict[tuple[str, str, int], _SharedStream] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._channels: dict[str, TenureChannel] = {}
        self._listeners: dict[str, int] = {}
        self._names = NameLookups()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for channel in self._channels.values():
            await channel.close()
        await self._names.close()

    async def follow(self, task_id: str, epoch: int, on_text: OnText) -> None:
        """Relays the text of one claim until its worker ends it. Best effort: a watch is complete without live text.

        All watchers of a claim share one stream, which ends with its last watcher. `on_text` must not wait. The stream
        works for the tenant of its watchers: a watcher of another tenant would get a stream of its own, and no text.
        """
        stream = self._stream(current_tenant(), task_id, epoch)
        with stream.followed_by(on_text):
            await asyncio.shield(stream.running)

    def _stream(self, tenant: str, task_id: str, epoch: int) -> _SharedStream:
        """Returns the stream of the claim, and starts it for the first watcher."""
        key = (tenant, task_id, epoch)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _SharedStream(lambda: self._forget(key, stream))
            # A context of its own: the stream outlives the request of its first watcher.
            stream.running = asyncio.create_task(
                self._relay(stream, tenant, task_id, epoch), context=contextvars.Context()
            )
            self._running.add(stream.running)
            stream.running.add_done_callback(self._running.discard)
        return stream

    def _forget(self, key: tuple[str, str, int], stream: _SharedStream | None) -> None:
        """Lets the next watcher of the claim begin another stream. An ended stream must not remove that one."""
        if self._streams.get(key) is stream:
            del self._streams[key]

    async def _relay(self, stream: _SharedStream, tenant: str, task_id: str, epoch: int) -> None:
        set_tenant(tenant)
        request = coordinator.GetLiveSourceRequest(task_id=task_id, epoch=epoch)
        try:
            while stream.failures < REDIAL.max_attempts:
                most = REDIAL.max_attempts - 1  # while the coordinator or etcd is away: the worker is known again later
                try:
                    source = await self._source(request)
                    if source is None:
                        return
                    most = REDIAL.max_attempts
                    await self._listen(source, task_id, epoch, stream)
                except (TenureError, PeerFailed) as error:
                    fields = {"task": task_id, "epoch": describe_epoch(epoch), "why": str(error)}
                    _log.info("the live text of a task is not available", extra=fields)
                stream.failures = min(stream.failures + 1, most)
                await asyncio.sleep(REDIAL.wait_seconds(stream.failures, random.random()))
        finally:
            stream.end()

    async def _source(self, request: coordinator.GetLiveSourceRequest) -> coordinator.GetLiveSourceResponse | None:
        """Returns the source of a claim's text. None: the claim is over, or its worker serves no text."""
        try:
            source = await self._peers.coordinator.GetLiveSource(request)
        except NotFound:
            return None
        return source if source.address else None

    async def _listen(
        self, source: coordinator.GetLiveSourceResponse, task_id: str, epoch: int, stream: _SharedStream
    ) -> None:
        address = await dialled_address(source.address, self._names, allows_loopback=source.allows_loopback)
        async with self._channel(address) as channel:
            messages = WorkerServiceStub(channel).WatchLive(worker.WatchLiveRequest(task_id=task_id, epoch=epoch))
            await _check_proof(messages, source.proof_digest)
            stream.forget_text()
            async for message in messages:
                if message.answer_complete:
                    stream.forget_text()
                elif is_sound(message.delta, epoch):
                    stream.on_text(message.delta)
                await asyncio.sleep(max(MESSAGE_SECONDS, len(message.delta.text) / CHARACTERS_PER_SECOND))

    @asynccontextmanager
    async def _channel(self, address: str) -> AsyncIterator[TenureChannel]:
        if address not in self._channels:
            tls = self._security.peer(Role.WORKER)
            self._channels[address] = open_channel(address, tls=tls, max_message_bytes=MAX_MESSAGE_BYTES)
        self._listeners[address] = self._listeners.get(address, 0) + 1
        try:
            yield self._channels[address]
        finally:
            await self._release(address)

    async def _release(self, address: str) -> None:
        self._listeners[address] -= 1
        if not self._listeners[address]:
            del self._listeners[address]
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._channels.pop(address).close()
            except TimeoutError:
                _log.warning("closing a channel to a worker timed out", extra={"address": address})


async def dialled_address(text: str, names: NameLookups, *, allows_loopback: bool) -> str:
    """Returns the ip:port to connect to. A name is resolved here, once: what is checked is what is dialled.

    Raises PermissionDenied (ADDRESS_REFUSED), and Unavailable for a name without an address.
    """
    try:
        address = LiveAddress.parse(text)
    except ValueError as error:
        raise PermissionDenied(f"the worker's address {text!r} {error}", reason="ADDRESS_REFUSED") from error
    ips = [address.ip] if address.ip is not None else await _resolved(address.host, names)
    refusals = [refusal_of(ip, allows_loopback=allows_loopback) for ip in ips]
    for ip, refusal in zip(ips, refusals, strict=True):
        if refusal is None:
            return str(address.at(ip))
    raise PermissionDenied(f"gateways do not connect to {address}: {refusals[0]}", reason="ADDRESS_REFUSED")


async def _resolved(host: str, names: NameLookups) -> list[IPAddress]:
    try:
        return await names.ip_addresses(host, RESOLVE_SECONDS)
    except Unresolved as error:
        raise Unavailable(f"the address of the worker is unknown: {error}") from error


async def _check_proof(messages: Any, digest: bytes) -> None:
    """Reads the first message. Raises PermissionDenied (NOT_THE_HOLDER) unless it has the proof."""
    first = await anext(aiter(messages), worker.WatchLiveResponse())
    if not is_proof(first.holder_proof, digest):
        raise PermissionDenied(
            "another process than the holder of the claim answers at the worker's address", reason="NOT_THE_HOLDER"
        )


def is_sound(delta: live_pb2.Delta, epoch: int) -> bool:
    """Whether the piece is of this claim, and of a size that a worker sends."""
    numbers = (delta.attempt_number, delta.block, delta.offset)
    is_sized = 0 < len(delta.text) <= MAX_CHARACTERS_PER_DELTA
    return delta.epoch == epoch and delta.step > 0 and min(numbers) >= 0 and is_sized
