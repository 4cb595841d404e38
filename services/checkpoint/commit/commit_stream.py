"""CommitStream: one worker's commits in frames. An answer carries whatever became ready while the last was sent.

The stream is bounded by the commits in flight and the results not yet sent: beyond that it is not read, and flow
control holds the worker back. A refusal is a result under its tag. Every stream reads and writes by itself, so a slow
reader holds up nobody else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

import grpc

from tenure.domain.errors import InvalidRequest, TenureError
from tenure.runtime.rpc_server import draining
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import token_pb2
from tenure.wire.common import refusal_to_wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tenure.runtime.batching import Answer

_log: Final = logging.getLogger(__name__)
MOST_IN_FLIGHT: Final = 1024
FRAME_BYTES: Final = 2 * 1024 * 1024
_BUG: Final = token_pb2.Refusal(code=grpc.StatusCode.INTERNAL.value[0], reason="INTERNAL", message="internal error")


class CommitFrames:
    """One stream. `submit` takes a commit and whom to answer, or raises the refusal."""

    def __init__(
        self, submit: Callable[[pb.CommitRequest, Answer[pb.CommitResponse]], None], stopping: asyncio.Event
    ) -> None:
        self._submit = submit
        self._stopping = stopping
        self._ready: deque[pb.TaggedCommitResult] = deque()
        self._in_flight: set[int] = set()
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._reading_ended = False

    async def answers(self, requests: AsyncIterator[pb.CommitStreamRequest]) -> AsyncIterator[pb.CommitStreamResponse]:
        """Frames of results until the worker has ended its side and everything is answered."""
        reader = asyncio.create_task(self._read(requests), name="commit frames")
        stopper = asyncio.create_task(self._wake_when_stopping(), name="commit frames stop")
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                while self._ready:
                    yield self._frame()
                    self._look_at_room()
                if reader.done() and not self._in_flight:
                    reader.result()  # a bad frame ends the stream, once what came before it is answered
                if not self._in_flight and (self._reading_ended or self._stopping.is_set()):
                    break
            if not self._reading_ended:
                raise draining()
        finally:
            reader.cancel()
            stopper.cancel()
            await asyncio.gather(reader, stopper, return_exceptions=True)

    async def _read(self, requests: AsyncIterator[pb.CommitStreamRequest]) -> None:
        try:
            async for frame in requests:
                for tagged in frame.commits:
                    self._take(tagged)
                await self._has_room.wait()
            self._reading_ended = True
        finally:
            self._changed.set()

    def _take(self, tagged: pb.TaggedCommit) -> None:
        tag = tagged.tag
        if tag in self._in_flight:
            self._refuse(tag, InvalidRequest(violations=[("tag", "is in flight already")]))
            return
        if self._stopping.is_set():
            self._refuse(tag, draining())
            return
        try:
            self._submit(tagged.commit, partial(self._answer, tag))
        except TenureError as error:
            self._refuse(tag, error)
            return
        self._in_flight.add(tag)
        self._look_at_room()

    def _answer(self, tag: int, result: pb.CommitResponse | Exception) -> None:
        self._in_flight.discard(tag)
        if isinstance(result, pb.CommitResponse):
            self._ready.append(pb.TaggedCommitResult(tag=tag, response=result))
        elif isinstance(result, TenureError):
            self._ready.append(pb.TaggedCommitResult(tag=tag, refusal=refusal_to_wire(result)))
        else:
            _log.error("a commit failed unexpectedly", exc_info=result)
            self._ready.append(pb.TaggedCommitResult(tag=tag, refusal=_BUG))
        self._changed.set()

    def _refuse(self, tag: int, error: TenureError) -> None:
        self._ready.append(pb.TaggedCommitResult(tag=tag, refusal=refusal_to_wire(error)))
        self._changed.set()
        self._look_at_room()

    def _look_at_room(self) -> None:
        if len(self._in_flight) + len(self._ready) < MOST_IN_FLIGHT:
            self._has_room.set()
        else:
            self._has_room.clear()

    def _frame(self) -> pb.CommitStreamResponse:
        """What is ready, as much as fits into one message."""
        frame = pb.CommitStreamResponse()
        size = 0
        while self._ready:
            size += self._ready[0].ByteSize()
            if frame.results and size > FRAME_BYTES:
                break
            frame.results.append(self._ready.popleft())
        return frame

    async def _wake_when_stopping(self) -> None:
        await self._stopping.wait()
        self._changed.set()
