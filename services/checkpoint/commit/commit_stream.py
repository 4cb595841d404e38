"""CommitStream: one worker's commits in frames of many. A response carries all results that became ready meanwhile.

The stream bounds the commits in flight plus the results not yet sent. At the bound the service stops reading the
stream, and flow control holds the worker back. A refusal is a result under its tag. Every stream reads and writes on
its own, so a slow reader delays no other stream.
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
from tenure.validators import MAX_FRAME_BYTES
from tenure.wire.common import refusal_to_wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tenure.runtime.batching import Answer

_log: Final = logging.getLogger(__name__)
MOST_IN_FLIGHT: Final = 1024
_BUG: Final = token_pb2.Refusal(code=grpc.StatusCode.INTERNAL.value[0], reason="INTERNAL", message="internal error")


class CommitFrames:
    """One commit stream. `submit` takes a commit and a callback for its result, or raises the refusal."""

    def __init__(
        self, submit: Callable[[pb.CommitRequest, Answer[pb.CommitResponse]], None], stopping: asyncio.Event
    ) -> None:
        self._submit = submit
        self._stopping = stopping
        self._ready: deque[pb.TaggedCommitResult] = deque()
        self._in_flight: set[int] = set()
        self._changed = asyncio.Event()
        self._below_limit = asyncio.Event()
        self._below_limit.set()
        self._reading_ended = False

    async def answers(self, requests: AsyncIterator[pb.CommitStreamRequest]) -> AsyncIterator[pb.CommitStreamResponse]:
        """Yields frames of results until the worker has closed its side and every commit has a result."""
        reader = asyncio.create_task(self._read(requests), name="commit frames")
        stopper = asyncio.create_task(self._wake_when_stopping(), name="commit frames stop")
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                while self._ready:
                    yield self._frame()
                    self._update_limit()
                if reader.done() and not self._in_flight:
                    reader.result()  # raises the reader's error: a broken frame ends the stream after earlier answers
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
                await self._below_limit.wait()
            self._reading_ended = True
        finally:
            self._changed.set()

    def _take(self, tagged: pb.TaggedCommit) -> None:
        tag = tagged.tag
        if tag in self._in_flight:
            self._refuse(
                tag, InvalidRequest(violations=[("tag", "is in flight already: use a new tag for each commit")])
            )
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
        self._update_limit()

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
        self._update_limit()

    def _update_limit(self) -> None:
        if len(self._in_flight) + len(self._ready) < MOST_IN_FLIGHT:
            self._below_limit.set()
        else:
            self._below_limit.clear()

    def _frame(self) -> pb.CommitStreamResponse:
        """Takes ready results, as many as fit into one message."""
        frame = pb.CommitStreamResponse()
        size = 0
        while self._ready:
            size += self._ready[0].ByteSize()
            if frame.results and size > MAX_FRAME_BYTES:
                break
            frame.results.append(self._ready.popleft())
        return frame

    async def _wake_when_stopping(self) -> None:
        await self._stopping.wait()
        self._changed.set()
