"""ExecuteStream: many calls on one stream, none of which holds up another."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import pytest

from services.tools.sandbox import Detection
from tenure.domain.errors import StaleEpoch, Unavailable
from tenure.v1 import tool_pb2, tool_service_pb2
from tenure.wire.common import refusal_to_domain
from tests.support.fix_tools import Grants, Outside, StartTools, ToolClient, execute_request
from tests.support.patience import PATIENCE_SECONDS


class Stream:
    """A worker's end."""

    def __init__(self, tools: Any) -> None:
        self.call = tools.stub.ExecuteStream()

    async def send(self, *tagged: Any) -> None:
        """(tag, owner, call_id, tool, arguments), in one frame."""
        calls = [
            tool_service_pb2.TaggedExecute(tag=tag, call=execute_request(owner, call_id, tool, json.dumps(arguments)))
            for tag, owner, call_id, tool, arguments in tagged
        ]
        await self.call.write(tool_service_pb2.ExecuteStreamRequest(calls=calls))

    async def endings(self, count: int) -> list[Any]:
        """The next outcomes and refusals, in the order of their arrival."""
        results: list[Any] = []
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(results) < count:
                frame = await self.call.read()
                assert frame is not grpc.aio.EOF
                results += [event for event in frame.events if event.WhichOneof("event") in {"outcome", "refusal"}]
        return results


async def test_a_slow_tool_does_not_delay_a_fast_one(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    stream = Stream(tools)
    owner = grants.claim()
    await stream.send(
        (1, owner, "1.0", "append_record", {"file": "a", "line": "slow", "delay_ms": 1500}),
        (2, owner, "1.1", "append_record", {"file": "a", "line": "fast"}),
    )
    assert [event.tag for event in await stream.endings(2)] == [2, 1]
    assert [line["line"] for line in outside.lines("a")] == ["fast", "slow"]


async def test_a_refusal_comes_by_its_tag_and_harms_no_neighbour(
    tools: ToolClient, grants: Grants, outside: Outside
) -> None:
    stream = Stream(tools)
    old = grants.claim(epoch=10)
    await tools.fence(grants.claim(old.task_id, epoch=11))
    good = grants.claim()
    forged = grants.claim()
    forged.token.signature = b"x" * 64
    await stream.send(
        (1, old, "1.0", "append_record", {"file": "a", "line": "x"}),
        (2, good, "not-an-id", "append_record", {"file": "a", "line": "x"}),
        (3, forged, "1.0", "append_record", {"file": "a", "line": "x"}),
        (4, good, "1.0", "append_record", {"file": "a", "line": "x"}),
    )
    endings = {event.tag: event for event in await stream.endings(4)}
    stale = refusal_to_domain(endings[1].refusal)
    assert isinstance(stale, StaleEpoch)
    assert (stale.presented, stale.current) == (10, 11)
    assert endings[2].refusal.reason == "INVALID_REQUEST"
    assert endings[3].refusal.reason == "INVALID_TOKEN"
    assert endings[4].outcome.status == tool_pb2.OUTCOME_STATUS_SUCCEEDED


async def test_a_hundred_calls_of_a_frame_are_answered_by_tag(
    tools: ToolClient, grants: Grants, outside: Outside
) -> None:
    stream = Stream(tools)
    owners = [grants.claim() for _ in range(100)]
    await stream.send(
        *((tag, owner, "1.0", "append_record", {"file": "a", "line": "x"}) for tag, owner in enumerate(owners))
    )
    endings = await stream.endings(100)
    assert sorted(event.tag for event in endings) == list(range(100))
    assert len(outside.lines("a")) == 100


async def test_a_tag_in_flight_cannot_be_used_again(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    stream = Stream(tools)
    owner = grants.claim()
    slow = {"file": "a", "line": "x", "delay_ms": 500}
    await stream.send((1, owner, "1.0", "append_record", slow), (1, owner, "1.1", "append_record", slow))
    refused, done = await stream.endings(2)
    assert refused.refusal.reason == "TAG_IN_USE"
    assert done.outcome.status == tool_pb2.OUTCOME_STATUS_SUCCEEDED
    await stream.send((1, owner, "1.1", "append_record", {"file": "a", "line": "x"}))
    assert (await stream.endings(1))[0].HasField("outcome")


async def test_half_closed_stream_delivers_running_calls(tools: ToolClient, grants: Grants) -> None:
    stream = Stream(tools)
    await stream.send((1, grants.claim(), "1.0", "append_record", {"file": "a", "line": "x", "delay_ms": 300}))
    await stream.call.done_writing()
    assert (await stream.endings(1))[0].HasField("outcome")
    assert await stream.call.read() is grpc.aio.EOF


async def test_broken_stream_does_not_stop_its_calls(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    stream = Stream(tools)
    owner = grants.claim()
    arguments = {"file": "a", "line": "x", "delay_ms": 500}
    await stream.send((1, owner, "1.0", "append_record_unsafe", arguments))
    frame = await stream.call.read()
    assert frame.events[0].HasField("started")
    stream.call.cancel()
    assert (await tools.outcome(owner, "1.0", "append_record_unsafe", **arguments)).content == "Appended."
    assert len(outside.lines("a")) == 1


async def test_programs_show_their_output_while_they_run(
    tools: ToolClient, grants: Grants, sandbox_detection: Detection
) -> None:
    if sandbox_detection.missing:
        pytest.skip("no sandbox on this machine")
    code = "import time\nprint('early', flush=True)\ntime.sleep(1)\nprint('late')"
    events = await tools.events(grants.claim(), "1.0", "execute_python", code=code)
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[0] == "started"
    assert kinds.index("output") < kinds.index("outcome") == len(kinds) - 1
    shown = [event.output.text for event in events if event.HasField("output")]
    assert shown[0].startswith("early")
    assert "".join(shown) == "early\nlate\n"
    assert events[-1].outcome.content == "early\nlate"


async def test_a_draining_server_ends_streams_and_finishes_calls(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    tools = await tool_service()
    stream = Stream(tools)
    await stream.send((1, grants.claim(), "1.0", "append_record_unsafe", {"file": "a", "line": "x", "delay_ms": 800}))
    assert (await stream.call.read()).events[0].HasField("started")
    ending = asyncio.create_task(tools.terminate())
    with pytest.raises(Unavailable) as caught:
        await stream.endings(2)
    assert caught.value.reason == "DRAINING"
    assert await ending == 0
    assert len(outside.lines("a")) == 1
