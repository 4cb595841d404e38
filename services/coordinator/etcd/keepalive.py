"""Renews many leases over one stream.

It never renews on its own: each call of `renew` sends one request and returns its answer, so that a lease lives exactly
as long as a caller has a reason to renew it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator

import grpc.aio

from services.coordinator.etcd import stubs
from services.coordinator.etcd.calls import EtcdUnavailable, EtcdUnclear, LeaseExpired, backoff_seconds
from services.coordinator.etcd.endpoints import REQUIRE_LEADER, Endpoint, Endpoints

log = logging.getLogger(__name__)

_TRIES = 3
# The stream is replaced every hour, so that each call has a deadline.
_STREAM_MAX_AGE_SECONDS = 3_600.0
_CLOSE_SECONDS = 1.0


class KeepAlive:
    """The keep-alive stream of this process. Opens at the first renewal, and again after a break."""

    def __init__(self, endpoints: Endpoints, *, max_pending: int) -> None:
        self._endpoints = endpoints
        self._max_pending = max_pending
        self._stream: _Stream | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    async def renew(self, lease: int, *, timeout_seconds: float) -> int:
        """Renews a lease by its TTL. Returns the TTL in seconds, which etcd counts from some time after the call.

        A repeated renewal is harmless, so it is retried on another member when the stream breaks. Raises LeaseExpired,
        EtcdUnavailable when too many renewals are pending, and EtcdUnclear when no answer came in time.
        """
        asked_at = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(timeout_seconds):
                ttl_seconds = await self._ask(lease)
        except TimeoutError as error:
            if self._stream is not None and self._stream.last_answer_at < asked_at:
                # The member has sent nothing since: it does not answer, and no further renewal shall wait for it.
                self._stream.break_off("no answer in time")
            raise EtcdUnclear(f"the renewal of lease {lease:x} was not answered in {timeout_seconds} s") from error
        if ttl_seconds <= 0:
            raise LeaseExpired(f"lease {lease:x} is gone")
        return ttl_seconds

    async def aclose(self) -> None:
        """Ends the stream; pending renewals end as unclear."""
        self._closed = True
        if self._stream is not None:
            self._stream.break_off("the client is closing")
        if self._ending:
            await asyncio.wait(self._ending, timeout=_CLOSE_SECONDS)

    async def _ask(self, lease: int) -> int:
        for failures in range(1, _TRIES):
            try:
                return await self._open_stream().ask(lease)
            except _StreamBrokenError:
                await asyncio.sleep(backoff_seconds(failures))
        try:
            return await self._open_stream().ask(lease)
        except _StreamBrokenError as error:
            raise EtcdUnclear(f"the renewal of lease {lease:x} was not answered: {error}") from error

    def _open_stream(self) -> _Stream:
        if self._closed:
            raise EtcdUnavailable("the client is closed")
        if self._stream is None or self._stream.broken:
            self._stream = _Stream(self._endpoints, max_pending=self._max_pending)
            self._ending.add(self._stream.receiving)
            self._stream.receiving.add_done_callback(self._ending.discard)
        return self._stream


class _StreamBrokenError(Exception):
    """The stream ended before the answer came."""


class _Stream:
    """One connection of the stream. etcd answers its requests one by one, in order."""

    def __init__(self, endpoints: Endpoints, *, max_pending: int) -> None:
        self._endpoints = endpoints
        self._endpoint: Endpoint = endpoints.current
        self._max_pending = max_pending
        self._pending = 0
        # Answers name only their lease. A renewal whose caller went away keeps its place until it is answered.
        self._waiting: dict[int, deque[asyncio.Future[int]]] = {}
        self._outbox: asyncio.Queue[int | None] = asyncio.Queue()
        self.last_answer_at = 0.0
        self.broken = False
        self._call = self._endpoint.lease.LeaseKeepAlive(
            self._requests(), timeout=_STREAM_MAX_AGE_SECONDS, metadata=REQUIRE_LEADER
        )
        self.receiving = asyncio.create_task(self._receive(), name="etcd-keepalive")

    async def ask(self, lease: int) -> int:
        """Sends one keep-alive and returns the TTL of its answer. The caller sets the deadline by cancelling."""
        if self._pending >= self._max_pending:
            raise EtcdUnavailable(f"{self._pending} renewals are pending already; try again later")
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(lease, deque()).append(answer)
        self._pending += 1
        self._outbox.put_nowait(lease)
        return await answer

    def break_off(self, reason: str) -> None:
        """Ends this connection now; pending renewals fail."""
        self._end(reason)
        self._call.cancel()

    async def _requests(self) -> AsyncIterator[stubs.LeaseKeepAliveRequest]:
        while (lease := await self._outbox.get()) is not None:
            yield stubs.LeaseKeepAliveRequest(ID=lease)

    async def _receive(self) -> None:
        reason = "etcd ended the stream"
        try:
            async for response in self._call:
                self._on_message(response)
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
        finally:
            self._end(reason)

    def _on_message(self, response: stubs.LeaseKeepAliveResponse) -> None:
        self.last_answer_at = asyncio.get_running_loop().time()
        queue = self._waiting.get(response.ID)
        if not queue:
            log.warning("etcd answered a keep-alive of lease %x without a request", response.ID)
            return
        answer = queue.popleft()
        self._pending -= 1
        if not queue:
            del self._waiting[response.ID]
        if not answer.done():
            answer.set_result(response.TTL)

    def _end(self, reason: str) -> None:
        if self.broken:
            return
        self.broken = True
        self._endpoints.rotate(self._endpoint)
        self._outbox.put_nowait(None)
        for answer in [answer for queue in self._waiting.values() for answer in queue]:
            if not answer.done():
                answer.set_exception(_StreamBrokenError(reason))
        self._waiting.clear()
