"""ExecuteFrames: what goes into one frame. No sockets and no clock: the test decides when a frame has been written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from services.tools.calls.execute_stream import ExecuteFrames
from services.tools.calls.runs import EventReader, Output, Started
from tenure.domain.errors import StaleEpoch
from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.v1 import tool_service_pb2
from tenure.validators.common import MAX_FRAME_BYTES, MAX_FRAME_ITEMS
from tests.support.patience import PATIENCE_SECONDS


class Calls:
    """Calls which all end when the test says so."""

    def __init__(self, *output: str, content: str = "done") -> None:
        self.output, self.content = output, content
        self.may_end = asyncio.Event()
        self.ended = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.one_ended = asyncio.Condition()

    def follow(self, _: tool_service_pb2.ExecuteRequest, reader: EventReader) -> Calls:
        reader.put(Started(1, joined=False))
        self.tasks.append(asyncio.create_task(self._run(reader)))
        return self

    def leave(self) -> None:
        """The calls of these tests end before their stream."""

    async def _run(self, reader: EventReader) -> None:
        await self.may_end.wait()
        for text in self.output:
            reader.put(Output(text))
        reader.put(Outcome(OutcomeStatus.SUCCEEDED, self.content))
        async with self.one_ended:
            self.ended += 1
            self.one_ended.notify_all()

    async def end(self, count: int) -> None:
        self.may_end.set()
        async with asyncio.timeout(PATIENCE_SECONDS), self.one_ended:
            await self.one_ended.wait_for(lambda: self.ended == count)


async def one_frame(count: int) -> AsyncIterator[tool_service_pb2.ExecuteStreamRequest]:
    yield tool_service_pb2.ExecuteStreamRequest(
        calls=[tool_service_pb2.TaggedExecute(tag=tag) for tag in range(count)],
    )


async def sent(frames: ExecuteFrames, calls: Calls, count: int) -> list[tool_service_pb2.ExecuteStreamResponse]:
    """All frames, where every call ends while the first frame is being written."""
    responses: list[tool_service_pb2.ExecuteStreamResponse] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for frame in frames.serve(one_frame(count)):
            if not responses:
                await calls.end(count)
            responses.append(frame)
    return responses


async def test_ready_events_share_a_frame() -> None:
    calls = Calls()
    began, ended = await sent(ExecuteFrames(calls.follow, asyncio.Event()), calls, 100)
    assert {event.tag for event in began.events if event.HasField("started")} == set(range(100))
    assert {event.tag for event in ended.events if event.HasField("outcome")} == set(range(100))


async def test_a_frame_holds_no_more_events_than_its_reader_accepts() -> None:
    calls = Calls("a", "b")
    frames = await sent(ExecuteFrames(calls.follow, asyncio.Event()), calls, MAX_FRAME_ITEMS)
    assert [len(frame.events) for frame in frames] == [MAX_FRAME_ITEMS] * 4


async def test_a_frame_holds_no_more_bytes_than_its_reader_accepts() -> None:
    half = "x" * (MAX_FRAME_BYTES // 2)
    calls = Calls(content=half)
    frames = await sent(ExecuteFrames(calls.follow, asyncio.Event()), calls, 2)
    assert [sum(len(event.outcome.content) for event in frame.events) for frame in frames] == [0, len(half), len(half)]
    assert all(frame.ByteSize() <= MAX_FRAME_BYTES + 1024 for frame in frames)


async def test_a_start_travels_with_the_outcome_that_follows_it_soon() -> None:
    calls = Calls()
    calls.may_end.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        [frame] = [one async for one in ExecuteFrames(calls.follow, asyncio.Event()).serve(one_frame(1))]
    assert [event.WhichOneof("event") for event in frame.events] == ["started", "outcome"]


async def test_a_refusal_reaches_only_its_call() -> None:
    """Also a bug of one call: its text stays hidden, and the other calls go on."""
    answered = Calls()
    answered.may_end.set()
    errors = iter([StaleEpoch(presented=1, current=2), KeyError("secret")])

    def follow(request: tool_service_pb2.ExecuteRequest, reader: EventReader) -> Calls:
        if (error := next(errors, None)) is not None:
            raise error
        return answered.follow(request, reader)

    async with asyncio.timeout(PATIENCE_SECONDS):
        frames = [one async for one in ExecuteFrames(follow, asyncio.Event()).serve(one_frame(3))]
    by_tag = {event.tag: event for frame in frames for event in frame.events}
    assert (by_tag[0].refusal.reason, by_tag[1].refusal.reason) == ("STALE_EPOCH", "INTERNAL")
    assert "secret" not in by_tag[1].refusal.message
    assert by_tag[2].HasField("outcome")


async def test_invalid_event_ends_only_its_call() -> None:
    calls = Calls("\ud800")  # no message has a lone surrogate
    calls.may_end.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        frames = [one async for one in ExecuteFrames(calls.follow, asyncio.Event()).serve(one_frame(1))]
    events = [event for frame in frames for event in frame.events]
    assert [event.WhichOneof("event") for event in events] == ["started", "refusal"]
    assert events[-1].refusal.reason == "INTERNAL"
