"""ExecuteStream: one worker's tool calls in frames of many. Each call has several events, the last one its outcome.

A call gives its events to the stream by callbacks, so a slow tool holds up no other call. The start of a call is not
urgent: mostly it travels in one frame with the outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from contextvars import copy_context
from typing import Final, Protocol

from services.tools.calls.answers import tagged_event
from services.tools.calls.runs import Event, EventReader, Started
from tenure.domain.errors import LimitReached, TenureError
from tenure.domain.tools import Outcome
from tenure.runtime.rpc.frame_server import MAX_IN_FLIGHT, FrameServer
from tenure.v1 import token_pb2
from tenure.v1 import tool_service_pb2 as pb
from tenure.validators.common import MAX_FRAME_BYTES, MAX_FRAME_ITEMS
from tenure.wire.common import refusal_to_wire

_log: Final = logging.getLogger(__name__)
_MAX_UNSENT_OUTPUT_BYTES: Final = 1024 * 1024
"""Output is for people to watch. Above this limit it is dropped; the outcome carries what the model reads."""
_INTERNAL: Final = 13
_BUG: Final = token_pb2.Refusal(code=_INTERNAL, reason="INTERNAL", message="internal error")
_LIMIT: Final = f"a stream carries at most {MAX_IN_FLIGHT} calls at once, each with its own tag"


class Leaver(Protocol):
    """A request whose events a caller reads."""

    def leave(self) -> None:
        """Reads no more events. The call goes on."""


FollowCall = Callable[[pb.ExecuteRequest, EventReader], Leaver]
"""Begins a call and gives its events to the reader. Raises the refusal of an invalid request."""


class _Call:
    """A call of the stream without an outcome: the reader of its events."""

    def __init__(self, frames: ExecuteFrames, tag: int, request: pb.ExecuteRequest) -> None:
        self._frames, self.tag, self.request = frames, tag, request
        self.size_bytes = len(request.arguments_json)
        self.follower: Leaver | None = None

    def put(self, event: Event) -> None:
        self._frames.take(self, event)

    def fail(self, error: Exception) -> None:
        self._frames.refuse(self, error)


class ExecuteFrames(FrameServer[pb.ExecuteStreamRequest, pb.TaggedExecuteEvent]):
    """One stream. When the stream ends, calls that still run go on; only their events are lost."""

    def __init__(self, follow: FollowCall, stopping: asyncio.Event) -> None:
        super().__init__(stopping, most_items=MAX_FRAME_ITEMS, most_bytes=MAX_FRAME_BYTES)
        self._follow = follow
        self._calls: dict[int, _Call] = {}
        self._unsent_output_bytes = 0
        self._context = copy_context()

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
            for call in list(self._calls.values()):
                if call.follower is not None:
                    call.follower.leave()
                self._finish(call)

    def start(self, frame: pb.ExecuteStreamRequest) -> None:
        for call in frame.calls:
            self._start(call.tag, call.call)
        for tagged in frame.outcomes:
            self._take_own_outcome(tagged)

    def _take_own_outcome(self, tagged: pb.TaggedOwnOutcome) -> None:
        """Has the call accepted again, with its outcome: only the first write of a call compares it with the fence."""
        call = self._calls.get(tagged.tag)
        if call is None:
            return  # its last event is on its way
        call.request.own_outcome.CopyFrom(tagged.outcome)
        added_bytes = len(tagged.outcome.content)
        call.size_bytes += added_bytes
        self.rules.in_flight.grow(added_bytes)
        if call.follower is not None:
            call.follower.leave()
        self._begin(call)

    def put(self, result: pb.TaggedExecuteEvent) -> None:
        """Sends an event with the next frame; drops output above a limit."""
        if result.HasField("output"):
            if self._unsent_output_bytes > _MAX_UNSENT_OUTPUT_BYTES:
                return
            self._unsent_output_bytes += result.ByteSize()
        super().put(result)

    def on_sent(self, batch: list[pb.TaggedExecuteEvent]) -> None:
        self._unsent_output_bytes -= sum(event.ByteSize() for event in batch if event.HasField("output"))

    def take(self, call: _Call, event: Event) -> None:
        """Sends an event of a call."""
        if self._calls.get(call.tag) is not call:
            return
        try:
            message = tagged_event(call.tag, event)
        except Exception as error:  # noqa: BLE001  an event that is not a message must not end the run that reports it
            self.refuse(call, error)
            return
        if isinstance(event, Outcome):
            self._finish(call)
        self.put_unhurried(message) if isinstance(event, Started) else self.put(message)

    def refuse(self, call: _Call, error: Exception) -> None:
        """Sends the error that ended a call. Its audit needs the context of the stream's caller."""
        if self._calls.get(call.tag) is not call:
            return
        self._finish(call)
        if isinstance(error, TenureError):
            self._context.run(self.rules.refused, call.request, error)
            self._refuse(call.tag, error)
            return
        # As in an RPC: log it, hide its text, and let the other calls go on.
        _log.error("unexpected error in a call of a stream", extra={"call": call.request.call_id}, exc_info=error)
        self.put(pb.TaggedExecuteEvent(tag=call.tag, refusal=_BUG))

    def _start(self, tag: int, request: pb.ExecuteRequest) -> None:
        if tag in self._calls or len(self._calls) >= MAX_IN_FLIGHT:
            reason = "TAG_IN_USE" if tag in self._calls else "TOO_MANY_CALLS"
            self._refuse(tag, LimitReached(_LIMIT, reason=reason))
            return
        try:
            self.rules.in_flight.begin()
        except LimitReached as error:
            self._refuse(tag, error)
            return
        call = self._calls[tag] = _Call(self, tag, request)
        self.rules.in_flight.grow(call.size_bytes)
        self._begin(call)

    def _begin(self, call: _Call) -> None:
        try:
            call.follower = self._follow(call.request, call)
        except Exception as error:  # noqa: BLE001  an error of one call must not end the stream
            self.refuse(call, error)

    def _refuse(self, tag: int, error: TenureError) -> None:
        self.put(pb.TaggedExecuteEvent(tag=tag, refusal=refusal_to_wire(error)))

    def _finish(self, call: _Call) -> None:
        del self._calls[call.tag]
        call.follower = None  # it refers to the call: the two would be left to the garbage collector
        self.rules.in_flight.end(call.size_bytes)
        self.wake()
