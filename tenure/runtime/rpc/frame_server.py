"""The server side of a stream of frames: requests and results travel in frames of many, each under a tag.

A result waits while the last frame is being written, and the next frame takes all that wait: fewer messages the more
results there are. Only an unhurried result waits for a timer. While too much is unsent, the server stops reading, and
flow control holds the client back. Every stream reads and writes on its own, so a slow reader delays no other stream.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, Generic, Protocol, TypeVar

from tenure.runtime.rpc.server import draining
from tenure.runtime.rpc.stream_rules import current_stream_rules

MAX_IN_FLIGHT: Final = 1024
"""The most requests without a result, and the most unsent results, of one stream."""

UNHURRIED_SECONDS: Final = 0.02
"""How long an unhurried result may wait for another result to travel with."""


class Sized(Protocol):
    """A message of the protos."""

    def ByteSize(self) -> int: ...  # noqa: N802  its name in protobuf


FrameT = TypeVar("FrameT")
ResultT = TypeVar("ResultT", bound=Sized)


class FrameServer(ABC, Generic[FrameT, ResultT]):
    """One stream. A subclass starts the requests of a frame, and calls `put` with each result.

    most_items, most_bytes: the limits of one frame. stopping: set when the service drains. Create it in the handler of
    the stream's call: `rules` are those of this call.
    """

    def __init__(self, stopping: asyncio.Event, *, most_items: int, most_bytes: int) -> None:
        self.stopping = stopping
        self.rules = current_stream_rules()
        self._most_items, self._most_bytes = most_items, most_bytes
        self._unsent: deque[ResultT] = deque()
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._wake_later: asyncio.TimerHandle | None = None

    @abstractmethod
    def start(self, frame: FrameT) -> None:
        """Starts the requests of a frame."""

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """The count of requests without a final result. A stream that was closed by its client ends when it is 0."""

    @property
    @abstractmethod
    def held_back(self) -> bool:
        """Whether the server stops reading until more results are sent."""

    @property
    def may_stop(self) -> bool:
        """Whether a draining service may end the stream now."""
        return True

    @property
    def unsent(self) -> int:
        """The count of results that wait to be sent."""
        return len(self._unsent)

    def put(self, result: ResultT) -> None:
        """Sends a result with the next frame."""
        self._unsent.append(result)
        self.wake()

    def put_unhurried(self, result: ResultT) -> None:
        """Sends a result with the next frame. A frame that has only such results waits UNHURRIED_SECONDS for others."""
        self._unsent.append(result)
        if self._wake_later is None:
            self._wake_later = asyncio.get_running_loop().call_later(UNHURRIED_SECONDS, self._wake_late)
        self.note_room()

    def _wake_late(self) -> None:
        self._wake_later = None
        self.wake()

    def wake(self, _: object = None) -> None:
        """Looks again whether the stream may be read, or has ended."""
        self._changed.set()
        self.note_room()

    def note_room(self) -> None:
        """Looks again whether the stream may be read. Call it when a request was taken."""
        if self.held_back:
            self._has_room.clear()
        else:
            self._has_room.set()

    async def batches(self, frames: AsyncIterator[FrameT]) -> AsyncGenerator[list[ResultT], None]:
        """Yields the results of each frame, until the client has closed its side and every request has its result.

        Raises the error that broke the client's side after the results that came before it, and Unavailable when the
        service drains.
        """
        reading = asyncio.create_task(self._read(frames))
        stopping = asyncio.create_task(self.stopping.wait())
        for task in (reading, stopping):
            task.add_done_callback(self.wake)
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                while batch := self._next_batch():
                    yield batch
                if reading.done() and not self.in_flight:
                    reading.result()
                    return
                if self.stopping.is_set() and self.may_stop:
                    raise draining()
        finally:
            if self._wake_later is not None:
                self._wake_later.cancel()
            for task in (reading, stopping):
                task.cancel()
            await asyncio.gather(reading, stopping, return_exceptions=True)

    async def _read(self, frames: AsyncIterator[FrameT]) -> None:
        async for frame in frames:
            self.start(frame)
            await self._has_room.wait()

    def _next_batch(self) -> list[ResultT]:
        """Takes unsent results, as many as fit into one frame."""
        batch: list[ResultT] = []
        size = 0
        while self._unsent and len(batch) < self._most_items:
            size += self._unsent[0].ByteSize()
            if batch and size > self._most_bytes:
                break
            batch.append(self._unsent.popleft())
        self.on_sent(batch)
        if not self.held_back:
            self._has_room.set()
        return batch

    def on_sent(self, batch: list[ResultT]) -> None:
        """Takes note of results that leave."""
