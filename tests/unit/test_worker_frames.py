"""Frames of the worker: whatever waits, each frame is one that the service takes."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker import ledger_client, tools_client
from services.worker.frame_client import FrameClient, FrameShape, Tagged
from tenure.domain.errors import Unavailable
from tenure.runtime.rpc.client import CALL_CANCELLED
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import tool_service_pb2 as tools
from tenure.validators import validate
from tenure.validators.common import MAX_FRAME_BYTES, MAX_FRAME_ITEMS
from tests.support.patience import PATIENCE_SECONDS

NO_CHANNEL: Any = None
sizes = st.lists(st.sampled_from([100, 127, 128, 16_384, MAX_FRAME_BYTES // 128, 900_000]), max_size=200)


def frames_of(build: Callable[[list[Tagged]], Any], messages: Sequence[Any], first_tag: int) -> list[Any]:
    client = FrameClient(FrameShape("test", NO_CHANNEL, lambda: None, build, lambda _: ()), first_tag)
    for message in messages:
        client.send(message, lambda _: None)
    return [build(batch) for batch in itertools.takewhile(bool, (client.take_batch() for _ in itertools.count()))]


@given(sizes, st.sampled_from([1, 2**31, 2**62]))
def test_frames_of_commits_are_valid_for_the_ledger(lengths: list[int], first_tag: int) -> None:
    messages = [ledger.CommitRequest(commit_id="x" * (length - 6)) for length in lengths]
    frames = frames_of(ledger_client.build_frame, messages, first_tag)
    for frame in frames:
        validate(frame)
    assert sum(len(frame.commits) for frame in frames) == len(messages)


def test_a_frame_filled_to_the_brim_is_taken_by_both_services() -> None:
    body = "x" * (MAX_FRAME_BYTES // MAX_FRAME_ITEMS - 4)  # less the field's own head
    commits = [ledger.CommitRequest(commit_id=body) for _ in range(2 * MAX_FRAME_ITEMS)]
    calls = [tools.ExecuteRequest(arguments_json=body) for _ in range(2 * MAX_FRAME_ITEMS)]
    for frame in frames_of(ledger_client.build_frame, commits, 1) + frames_of(tools_client.build_frame, calls, 1):
        validate(frame)


@pytest.mark.parametrize(("reason", "levels"), [(CALL_CANCELLED, []), ("STREAM_ENDED", ["WARNING"])])
async def test_a_worker_that_stops_warns_of_no_stream(
    reason: str, levels: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    ended = asyncio.Event()

    def connect() -> Any:
        ended.set()
        raise Unavailable("over", reason=reason)

    running = asyncio.create_task(
        FrameClient(FrameShape("test", NO_CHANNEL, connect, lambda _: ledger.CommitRequest(), lambda _: ())).run()
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        await ended.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert [line.levelname for line in caplog.records if line.levelno >= logging.INFO] == levels


async def test_wait_for_a_call_that_is_settled_begins_anew() -> None:
    """The tool service settles it for minutes: the worker neither gives the call up nor its stream."""
    client = FrameClient(FrameShape("test", NO_CHANNEL, lambda: None, tools_client.build_frame, lambda _: ()), 1)
    tag = client.send(tools.ExecuteRequest(), lambda _: None)
    last: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(client.last_event(tag, last, 0.05, "the call"))
    await asyncio.sleep(0)
    client.wait_longer(tag, PATIENCE_SECONDS)
    await asyncio.sleep(0.2)
    assert not waiting.done()
    last.set_result(tools.TaggedExecuteEvent(tag=tag))
    assert (await waiting).tag == tag
    client.wait_longer(tag, PATIENCE_SECONDS)

    unheard = client.send(tools.ExecuteRequest(), lambda _: None)
    with pytest.raises(Unavailable):
        await client.last_event(unheard, asyncio.get_running_loop().create_future(), 0.05, "the call")
