"""ExecuteStream: one worker's tool calls in frames of many. Each call has several events, the last one its outcome.

Every call is a task of its own, so a slow tool holds up no other call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Final

from services.tools.calls.answers import tagged_event
from services.tools.calls.runs import Event
from tenure.domain.errors import LimitReached, TenureError
from tenure.runtime.frame_server import MAX_IN_FLIGHT, FrameServer
from tenure.v1 import token_pb2
from tenure.v1 import tool_service_pb2 as pb
from tenure.validators import MAX_FRAME_BYTES, MAX_FRAME_ITEMS
from tenure.wire.common import refusal_to_wire

_log: Final = logging.getLogger(__name__)
_MAX_UNSENT_OUTPUT_BYTES: Final = 1024 * 1024
"""Output is for people to watch. Above this limit it is dropped; the outcome carries what the model reads."""
_INTERNAL: Final = 13
_LIMIT: Final = f"a stream carries at most {MAX_IN_FLIGHT} calls at once, each with its own tag"

ExecuteCall = Callable[[pb.ExecuteRequest], AsyncGenerator[Event, None]]


class ExecuteFrames(FrameServer[pb.ExecuteStreamRequest, pb.TaggedExecuteEvent]):
    """One stream. When the stream ends, calls that still run go on; only their events are lost."""

    def __init__(self, execute: ExecuteCall, stopping: asyncio.Event) -> None:
        super().__init__(stopping, most_items=MAX_FRAME_ITEMS, most_bytes=MAX_FRAME_BYTES)
        self._execute = execute
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._unsent_output_bytes = 0

    @property
    def in_flight(self) -> int:
        return len(self._calls)

    @property
    def held_back(self) -> bool:
        return self.unsent >= MAX_IN_FLIGHT

    async def serve(
        self, frames: AsyncIterator[pb.ExecuteStreamRequest]
    ) -> AsyncGenerator[pb.ExecuteStreamResponse, None]:
        """Yields frames of events until the worker has closed its side and every call has its outcome."""
        try:
            async with aclosing(self.batches(frames)) as batches:
                async for events in batches:
                    yield pb.ExecuteStreamResponse(events=events)
        finally:
            calls = list(self._calls.values())
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    def start(self, frame: pb.ExecuteStreamRequest) -> None:
        for call in frame.calls:
            self._start(call.tag, call.call)

    def put(self, result: pb.TaggedExecuteEvent) -> None:
        """Sends an event with the next frame; drops output above a limit."""
        if result.HasField("output"):
            if self._unsent_output_bytes > _MAX_UNSENT_OUTPUT_BYTES:
                return
            self._unsent_output_bytes += result.ByteSize()
        super().put(result)

    def on_sent(self, batch: list[pb.TaggedExecuteEvent]) -> None:
        self._unsent_output_bytes -= sum(event.ByteSize() for event in batch if event.HasField("output"))

    def _start(self, tag: int, call: pb.ExecuteRequest) -> None:
        if tag in self._calls or len(self._calls) >= MAX_IN_FLIGHT:
            reason = "TAG_IN_USE" if tag in self._calls else "TOO_MANY_CALLS"
            self._refuse(tag, LimitReached(_LIMIT, reason=reason))
            return
        in_flight, size_bytes = self.rules.in_flight, len(call.arguments_json)
        try:
            in_flight.begin()
        except LimitReached as error:
            self._refuse(tag, error)
            return
        in_flight.grow(size_bytes)
        task = self._calls[tag] = asyncio.create_task(self._answer(tag, call))
        task.add_done_callback(lambda _: self._finish(tag, size_bytes))

    async def _answer(self, tag: int, call: pb.ExecuteRequest) -> None:
        try:
            async with aclosing(self._execute(call)) as events:
                async for event in events:
                    self.put(tagged_event(tag, event))
        except TenureError as error:
            self.rules.refused(call, error)
            self._refuse(tag, error)
        except Exception:  # noqa: BLE001  as in an RPC: log it, hide its text, and let the other calls go on
            _log.exception("unexpected error in a call of a stream", extra={"call": call.call_id})
            self.put(
                pb.TaggedExecuteEvent(
                    tag=tag, refusal=token_pb2.Refusal(code=_INTERNAL, reason="INTERNAL", message="internal error")
                )
            )

    def _refuse(self, tag: int, error: TenureError) -> None:
        self.put(pb.TaggedExecuteEvent(tag=tag, refusal=refusal_to_wire(error)))

    def _finish(self, tag: int, size_bytes: int) -> None:
        self.rules.in_flight.end(size_bytes)
        self._calls.pop(tag, None)
        self.wake()
