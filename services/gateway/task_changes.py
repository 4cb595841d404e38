"""Serves WatchTasks: the change feed of a tenant, with heartbeats, until the watcher leaves.

Changes are pulled: the next ones are fetched after the last ones were sent, so a slow reader loses nothing and needs no
memory here. While the ledger is unreachable, the stream waits and sends heartbeats.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, Self

from services.gateway.peers import PATIENCE, Peers, out_of_reach
from tenure.domain.errors import TryLater, Unavailable
from tenure.domain.retry import RetryPolicy
from tenure.runtime.rpc.status import DRAINING
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import task_service_pb2 as api

RECONNECT: Final = RetryPolicy(initial_seconds=0.1, factor=2.0, cap_seconds=2.0)
RETRY_AFTER_DRAIN_SECONDS: Final = 1.0


async def follow_changes(
    peers: Peers, request: api.WatchTasksRequest
) -> AsyncGenerator[ledger.WatchChangesResponse, None]:
    """Yields changes without end, across restarts of the ledger's replicas.

    Raises InvalidRequest and OutOfRange, and Unavailable when the ledger does not answer the first request.
    """
    ledger_request = ledger.WatchChangesRequest(filter=request.filter, after_cursor=request.after_cursor)
    failures, begun = 0, False
    while True:
        try:
            async for response in peers.checkpoint.WatchChanges(ledger_request):
                failures, begun = 0, True
                ledger_request.after_cursor = response.cursor
                yield response
            failures += 1  # the stream ended in order: a replica drains
        except TryLater as error:
            failures += 1
            if not begun and PATIENCE.exhausted(failures):
                raise out_of_reach(error) from error
        await asyncio.sleep(RECONNECT.wait_seconds(failures, random.random()))


class WatchTasksStream:
    """Serves one watcher in `async with`.

    `events` has no end of its own. Raises Unavailable when this gateway drains.
    """

    def __init__(self, peers: Peers, request: api.WatchTasksRequest, stopping: asyncio.Event) -> None:
        self._peers, self._request, self._stopping = peers, request, stopping
        self._cursor = request.after_cursor
        self._responses: asyncio.Queue[ledger.WatchChangesResponse] = asyncio.Queue(maxsize=1)

    async def __aenter__(self) -> Self:
        self._reader = asyncio.create_task(self._read())
        self._drain = asyncio.create_task(self._stopping.wait())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reader.cancel()
        self._drain.cancel()
        await asyncio.gather(self._reader, self._drain, return_exceptions=True)

    async def events(self, heartbeat_seconds: float) -> AsyncGenerator[api.WatchTasksResponse, None]:
        """Yields a heartbeat once the ledger has answered, then changes, and a heartbeat after each long silence."""
        beat_at = time.monotonic() + heartbeat_seconds
        begun = False
        while True:
            response = await self._next(beat_at - time.monotonic() if begun else None)
            for item in response.items if response else ():
                self._cursor = item.cursor
                yield api.WatchTasksResponse(change=item.change, cursor=item.cursor)
                beat_at = time.monotonic() + heartbeat_seconds
            self._cursor = response.cursor if response else self._cursor
            if (begun and time.monotonic() >= beat_at) or (response and not begun):
                begun = True
                yield self._heartbeat()
                beat_at = time.monotonic() + heartbeat_seconds

    async def _next(self, timeout_seconds: float | None) -> ledger.WatchChangesResponse | None:
        """Returns the ledger's next answer, or None when the time is over first.

        Raises the error that ended the reader.
        """
        taking = asyncio.create_task(self._responses.get())
        try:
            await asyncio.wait(
                {taking, self._reader, self._drain},
                timeout=None if timeout_seconds is None else max(0.0, timeout_seconds),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if taking.done():
                return taking.result()
        finally:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
        if self._reader.done():
            self._reader.result()
        if self._drain.done():
            raise Unavailable(
                "the gateway restarts; watch again after the last cursor",
                reason=DRAINING,
                retry_after_seconds=RETRY_AFTER_DRAIN_SECONDS,
            )
        return None

    async def _read(self) -> None:
        async with aclosing(follow_changes(self._peers, self._request)) as responses:
            async for response in responses:
                await self._responses.put(response)

    def _heartbeat(self) -> api.WatchTasksResponse:
        beat = api.WatchTasksResponse(heartbeat=api.WatchTasksHeartbeat(), cursor=self._cursor)
        beat.heartbeat.time.FromNanoseconds(time.time_ns())
        return beat
