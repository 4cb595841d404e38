"""Streams of frames at both services: a worker that sends and does not read is held back, and costs no memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from services.checkpoint.commit import commit_stream as ledger_frames
from services.tools.calls import execute_stream as tool_frames
from services.tools.calls.runs import EventReader
from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.runtime.rpc.frame_server import MAX_IN_FLIGHT
from tenure.runtime.store.batching import Answer
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import tool_service_pb2 as tools

ITEMS_A_FRAME = 100


class Ended:
    """A call that has its outcome already."""

    def leave(self) -> None:
        """There are no more events."""


async def quiet() -> None:
    """Let everything happen that can."""
    for _ in range(3000):
        await asyncio.sleep(0)


async def test_a_worker_that_reads_no_commit_answers_is_not_read() -> None:
    sent = 0

    async def endless() -> AsyncIterator[ledger.CommitStreamRequest]:
        nonlocal sent
        while True:
            commits = [ledger.TaggedCommit(tag=sent + place) for place in range(ITEMS_A_FRAME)]
            sent += len(commits)
            yield ledger.CommitStreamRequest(commits=commits)

    def submit(_request: ledger.CommitRequest, answer: Answer[ledger.CommitResponse]) -> int:
        asyncio.get_running_loop().call_soon(answer, ledger.CommitResponse())
        return 0

    frames = ledger_frames.CommitFrames(submit, asyncio.Event())
    async with aclosing(frames.answers(endless())) as answers:  # type: ignore[type-var]  # an async generator
        first = await anext(answers)
        await quiet()
        assert sent <= MAX_IN_FLIGHT + len(first.results) + ITEMS_A_FRAME
        before = sent
        for _ in range(5):
            await anext(answers)
        await quiet()
        assert sent > before


async def test_a_worker_that_reads_no_outcomes_is_not_read() -> None:
    sent = 0

    async def endless() -> AsyncIterator[tools.ExecuteStreamRequest]:
        nonlocal sent
        while True:
            calls = [tools.TaggedExecute(tag=sent + place) for place in range(ITEMS_A_FRAME)]
            sent += len(calls)
            yield tools.ExecuteStreamRequest(calls=calls)
            await asyncio.sleep(0)

    def follow(_request: tools.ExecuteRequest, reader: EventReader) -> Ended:
        reader.put(Outcome(OutcomeStatus.SUCCEEDED, "done"))
        return Ended()

    frames = tool_frames.ExecuteFrames(follow, asyncio.Event())
    async with aclosing(frames.serve(endless())) as answers:
        await anext(answers)
        await quiet()
        assert sent <= 2 * MAX_IN_FLIGHT + 2 * ITEMS_A_FRAME
        before = sent
        for _ in range(30):
            await anext(answers)
        await quiet()
        assert sent > before
