"""ExecuteStream: many calls on one stream, each event sent as soon as it is there.

Every call is a task of its own, so a slow tool holds up nobody. Events wait in an outbox while the last frame is being
written, and whatever waits goes into the next one: no timer, and fewer messages the more there is to say.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Final

from services.tools.calls.answers import tagged_event
from services.tools.calls.runs import Event
from tenure.domain.errors import LimitReached, TenureError
from tenure.runtime.rpc_server import draining
from tenure.v1 import token_pb2, tool_service_pb2
from tenure.validators import MAX_FRAME_BYTES, MAX_FRAME_ITEMS
from tenure.wire.common import refusal_to_wire

_log: Final = logging.getLogger(__name__)
MOST_IN_FLIGHT: Final = 1024
_MOST_UNSENT_OUTPUT_BYTES: Final = 1024 * 1024
_INTERNAL: Final = 13

ExecuteCall = Callable[[tool_service_pb2.ExecuteRequest], AsyncGenerator[Event, None]]


class _Outbox:
    """Events on their way. While many wait no further calls are read, so a worker that does not read is held back; and
    output, which is for show, is dropped beyond a bound.
    """

    def __init__(self) -> None:
        self._events: deque[tool_service_pb2.TaggedExecuteEvent] = deque()
        self._output_bytes = 0
        self.changed = asyncio.Event()
        self.has_room = asyncio.Event()
        self.has_room.set()

    def put(self, event: tool_service_pb2.TaggedExecuteEvent) -> None:
        if event.HasField("output"):
            if self._output_bytes > _MOST_UNSENT_OUTPUT_BYTES:
                return
            self._output_bytes += event.ByteSize()
        self._events.append(event)
        self.changed.set()
        if len(self._events) >= MOST_IN_FLIGHT:
            self.has_room.clear()

    def take(self) -> list[tool_service_pb2.TaggedExecuteEvent]:
        """What fits into one frame."""
        taken: list[tool_service_pb2.TaggedExecuteEvent] = []
        size = 0
        while self._events and len(taken) < MAX_FRAME_ITEMS:
            its_size = self._events[0].ByteSize()
            if taken and size + its_size > MAX_FRAME_BYTES:
                break
            event = self._events.popleft()
            if event.HasField("output"):
                self._output_bytes -= its_size
            taken.append(event)
            size += its_size
        if not self._events:
            self.changed.clear()
        if len(self._events) < MOST_IN_FLIGHT:
            self.has_room.set()
        return taken


class ExecuteFrames:
    """One stream. The caller's end of its half ends the stream once everything in flight is answered."""

    def __init__(self, execute: ExecuteCall, stopping: asyncio.Event) -> None:
        self._execute, self._stopping = execute, stopping
        self._outbox = _Outbox()
        self._in_flight: dict[int, asyncio.Task[None]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def serve(
        self, frames: AsyncIterator[tool_service_pb2.ExecuteStreamRequest]
    ) -> AsyncGenerator[tool_service_pb2.ExecuteStreamResponse, None]:
        """The answers. What still runs when the stream ends runs on; only its events are lost."""
        self._reading = asyncio.create_task(self._read(frames))
        self._reading.add_done_callback(self._wake)
        stop = asyncio.create_task(self._stopping.wait())
        stop.add_done_callback(self._wake)
        try:
            while True:
                await self._outbox.changed.wait()
                if events := self._outbox.take():
                    yield tool_service_pb2.ExecuteStreamResponse(events=events)
                elif self._reading.done() and not self._in_flight:
                    self._reading.result()  # what broke the caller's half is how the stream ends
                    return
                elif self._stopping.is_set():
                    raise draining()
                else:
                    self._outbox.changed.clear()
        finally:
            tasks = [self._reading, stop, *self._in_flight.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, frames: AsyncIterator[tool_service_pb2.ExecuteStreamRequest]) -> None:
        async for frame in frames:
            for call in frame.calls:
                self._start(call.tag, call.call)
            await self._outbox.has_room.wait()

    def _start(self, tag: int, call: tool_service_pb2.ExecuteRequest) -> None:
        if tag in self._in_flight or len(self._in_flight) >= MOST_IN_FLIGHT:
            reason = "TAG_IN_USE" if tag in self._in_flight else "TOO_MANY_CALLS"
            self._refuse(tag, LimitReached(f"{MOST_IN_FLIGHT} calls at once, each with its own tag", reason=reason))
            return
        task = self._in_flight[tag] = asyncio.create_task(self._answer(tag, call))
        task.add_done_callback(lambda _: self._finish(tag))

    async def _answer(self, tag: int, call: tool_service_pb2.ExecuteRequest) -> None:
        try:
            async with aclosing(self._execute(call)) as events:
                async for event in events:
                    self._outbox.put(tagged_event(tag, event))
        except TenureError as error:
            self._refuse(tag, error)
        except Exception:  # noqa: BLE001  as an RPC would: told inside, hidden outside, and no harm to neighbours
            _log.exception("unexpected error in a call of a stream", extra={"call": call.call_id})
            refusal = token_pb2.Refusal(code=_INTERNAL, reason="INTERNAL", message="internal error")
            self._outbox.put(tool_service_pb2.TaggedExecuteEvent(tag=tag, refusal=refusal))

    def _refuse(self, tag: int, error: TenureError) -> None:
        self._outbox.put(tool_service_pb2.TaggedExecuteEvent(tag=tag, refusal=refusal_to_wire(error)))

    def _finish(self, tag: int) -> None:
        self._in_flight.pop(tag, None)
        self._wake()

    def _wake(self, _: object = None) -> None:
        self._outbox.changed.set()
