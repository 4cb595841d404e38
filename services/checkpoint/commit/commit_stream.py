"""CommitStream: one worker's commits in frames of many. A response carries all results that became ready meanwhile.

The stream bounds the commits in flight plus the results not yet sent. A refusal is a result under its tag.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final

import grpc

from tenure.domain.errors import InvalidRequest, TenureError
from tenure.runtime.rpc.frame_server import MAX_IN_FLIGHT, FrameServer
from tenure.runtime.rpc.server import draining
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import token_pb2
from tenure.validators.common import MAX_FRAME_BYTES
from tenure.wire.common import refusal_to_wire

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable

    from tenure.runtime.store.batching import Answer

_log: Final = logging.getLogger(__name__)
_BUG: Final = token_pb2.Refusal(code=grpc.StatusCode.INTERNAL.value[0], reason="INTERNAL", message="internal error")


class CommitFrames(FrameServer[pb.CommitStreamRequest, pb.TaggedCommitResult]):
    """One commit stream. `submit` takes a commit and a callback for its result, and returns the commit's size in bytes,
    or raises the refusal.
    """

    def __init__(
        self, submit: Callable[[pb.CommitRequest, Answer[pb.CommitResponse]], int], stopping: asyncio.Event
    ) -> None:
        super().__init__(stopping, most_items=MAX_IN_FLIGHT, most_bytes=MAX_FRAME_BYTES)
        self._submit = submit
        self._size_bytes: dict[int, int] = {}
        """Of each commit without a result, by tag."""

    @property
    def in_flight(self) -> int:
        return len(self._size_bytes)

    @property
    def held_back(self) -> bool:
        return len(self._size_bytes) + self.unsent >= MAX_IN_FLIGHT

    @property
    def may_stop(self) -> bool:
        """A worker hears the result of every commit that was taken."""
        return not self._size_bytes

    async def answers(self, requests: AsyncIterator[pb.CommitStreamRequest]) -> AsyncIterator[pb.CommitStreamResponse]:
        """Yields frames of results until the worker has closed its side and every commit has a result."""
        async with aclosing(self.batches(requests)) as batches:
            async for results in batches:
                yield pb.CommitStreamResponse(results=results)

    def start(self, frame: pb.CommitStreamRequest) -> None:
        for tagged in frame.commits:
            self._take(tagged)

    def _take(self, tagged: pb.TaggedCommit) -> None:
        tag = tagged.tag
        if tag in self._size_bytes:
            self._refuse(
                tag, InvalidRequest(violations=[("tag", "is in flight already: use a new tag for each commit")])
            )
            return
        if self.stopping.is_set():
            self._refuse(tag, draining())
            return
        try:
            self._size_bytes[tag] = self._begin(tagged)
        except TenureError as error:
            self.rules.refused(tagged.commit, error)
            self._refuse(tag, error)
            return
        self.note_room()

    def _begin(self, tagged: pb.TaggedCommit) -> int:
        """Submits a commit within the worker's limits and returns its size. Raises the refusal."""
        in_flight = self.rules.in_flight
        in_flight.begin()
        try:
            size_bytes = self._submit(tagged.commit, partial(self._answer, tagged.tag))
        except BaseException:
            in_flight.end()
            raise
        in_flight.grow(size_bytes)
        return size_bytes

    def _answer(self, tag: int, result: pb.CommitResponse | Exception) -> None:
        self.rules.in_flight.end(self._size_bytes.pop(tag))
        if isinstance(result, pb.CommitResponse):
            self.put(pb.TaggedCommitResult(tag=tag, response=result))
        elif isinstance(result, TenureError):
            self._refuse(tag, result)
        else:
            _log.error("a commit failed unexpectedly", exc_info=result)
            self.put(pb.TaggedCommitResult(tag=tag, refusal=_BUG))

    def _refuse(self, tag: int, error: TenureError) -> None:
        self.put(pb.TaggedCommitResult(tag=tag, refusal=refusal_to_wire(error)))
