"""One connection of a watch, with an ear for silence."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc.aio

from tenure.runtime.duties import note_progress
from tenure.runtime.etcd import stubs
from tenure.runtime.etcd.endpoints import REQUIRE_LEADER, Endpoint

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

# A stream is opened anew every hour, so that no call is without a deadline.
_STREAM_MAX_AGE_SECONDS = 3_600.0
_CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchPatience:
    """After `idle_seconds` without a message etcd is asked for one; it has `answer_seconds` to send any."""

    idle_seconds: float = 3.0
    answer_seconds: float = 2.0


class StreamLostError(Exception):
    """The stream broke, was canceled, or fell silent: watch again on another connection."""


async def responses(
    endpoint: Endpoint, create: stubs.WatchRequest, patience: WatchPatience
) -> AsyncGenerator[stubs.WatchResponse, None]:
    """Open a watch and yield what etcd sends, the `created` answer first. Raises StreamLostError, never just ends.

    Messages are read as they are asked for: a slow reader holds etcd back instead of filling memory.
    """
    call = endpoint.watch.Watch(timeout=_STREAM_MAX_AGE_SECONDS, metadata=REQUIRE_LEADER)
    reader = _Reader(call)
    try:
        await reader.send(create, within_seconds=patience.answer_seconds)
        response = await reader.next(within_seconds=patience.answer_seconds)
        while True:
            if response is None:
                raise StreamLostError("fell silent")
            note_progress()
            yield response
            response = await reader.next(within_seconds=patience.idle_seconds)
            if response is None:
                progress = stubs.WatchRequest(progress_request=stubs.WatchProgressRequest())
                await reader.send(progress, within_seconds=patience.answer_seconds)
                response = await reader.next(within_seconds=patience.answer_seconds)
    except grpc.aio.AioRpcError as error:
        raise StreamLostError(f"{error.code().name}: {error.details()}") from error
    finally:
        await reader.aclose()


class _Reader:
    """Reads with a time limit. Cancelling a read of grpc.aio cancels the whole call, so the read is kept instead."""

    def __init__(self, call: grpc.aio.StreamStreamCall[stubs.WatchRequest, stubs.WatchResponse]) -> None:
        self._call = call
        self._reading: asyncio.Task[stubs.WatchResponse] | None = None

    async def send(self, request: stubs.WatchRequest, *, within_seconds: float) -> None:
        """Send a request. A write that blocks is a dead stream too."""
        try:
            async with asyncio.timeout(within_seconds):
                await self._call.write(request)
        except TimeoutError as error:
            raise StreamLostError("takes no requests") from error
        except asyncio.InvalidStateError as error:
            raise StreamLostError("ended") from error

    async def next(self, *, within_seconds: float) -> stubs.WatchResponse | None:
        """The next message, or None if there was none in time; the read goes on and a later call gets it."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="etcd-watch-read")
        done, _ = await asyncio.wait({self._reading}, timeout=within_seconds)
        if not done:
            return None
        reading, self._reading = self._reading, None
        return reading.result()

    async def aclose(self) -> None:
        self._call.cancel()
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=_CLOSE_SECONDS)
            if self._reading.done() and not self._reading.cancelled():
                # Looked at, so that asyncio does not report it as lost: the stream is being given up anyway.
                self._reading.exception()

    async def _read(self) -> stubs.WatchResponse:
        response = await self._call.read()
        if not isinstance(response, stubs.WatchResponse):  # grpc.aio.EOF
            raise StreamLostError("ended by etcd")
        return response
