"""What the gateway makes of the feed: a heartbeat first, each change with its cursor, and patience behind both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest

from services.checkpoint.watch.change_feed import ChangeCursor
from services.gateway.task_changes import WatchTasksStream
from tenure.domain.errors import InvalidRequest, OutOfRange, Unavailable
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.support.patience import PATIENCE_SECONDS

BEAT_SECONDS = 0.05


def answer(cursor: str, *sequences: int) -> ledger.WatchChangesResponse:
    items = [
        ledger.WatchChangesResponse.Item(change=task_pb2.TaskChange(sequence=number), cursor=f"after {number}")
        for number in sequences
    ]
    return ledger.WatchChangesResponse(items=items, cursor=cursor)


class ScriptedLedger:
    """Streams, one a call: each gives its answers, then its error, or goes on for ever."""

    def __init__(self, *streams: list[Any]) -> None:
        self.streams = list(streams)
        self.cursors_requested: list[str] = []

    async def WatchChanges(self, request: ledger.WatchChangesRequest) -> AsyncIterator[ledger.WatchChangesResponse]:
        self.cursors_requested.append(request.after_cursor)
        for one in self.streams.pop(0):
            if isinstance(one, Exception):
                raise one
            yield one
        await asyncio.Event().wait()


async def events(
    script: ScriptedLedger, count: int, cursor: str = "", stopping: asyncio.Event | None = None
) -> list[Any]:
    """The first `count`, as (kind, cursor)."""
    peers: Any = SimpleNamespace(checkpoint=script)
    request = api.WatchTasksRequest(after_cursor=cursor)
    values: list[Any] = []
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        WatchTasksStream(peers, request, stopping or asyncio.Event()) as watch,
        aclosing(watch.events(BEAT_SECONDS)) as response,
    ):
        async for event in response:
            values.append((event.WhichOneof("event"), event.cursor))
            if len(values) == count:
                return values
    return values


async def test_the_first_event_is_a_heartbeat_with_a_cursor() -> None:
    script = ScriptedLedger([answer("begin"), answer("end", 1, 2)])
    assert await events(script, 3) == [("heartbeat", "begin"), ("change", "after 1"), ("change", "after 2")]


async def test_silence_has_heartbeats_with_the_newest_cursor() -> None:
    script = ScriptedLedger([answer("begin"), answer("later")])
    assert await events(script, 3) == [("heartbeat", "begin"), ("heartbeat", "later"), ("heartbeat", "later")]


async def test_broken_stream_continues_after_its_cursor() -> None:
    script = ScriptedLedger(
        [answer("begin"), answer("first", 1), Unavailable("gone")], [answer("first"), answer("second", 2)]
    )
    result = await events(script, 40)
    assert [one for one in result if one[0] == "change"] == [("change", "after 1"), ("change", "after 2")]
    assert script.cursors_requested == ["", "first"]


async def test_unavailable_ledger_is_reported_to_a_new_watch() -> None:
    script = ScriptedLedger(*[[Unavailable("gone")] for _ in range(10)])
    with pytest.raises(Unavailable) as refused:
        await events(script, 1)
    assert refused.value.retry_after_seconds


async def test_an_expired_cursor_ends_the_stream_with_its_own_error() -> None:
    with pytest.raises(OutOfRange):
        await events(ScriptedLedger([OutOfRange("gone", reason="CURSOR_EXPIRED")]), 1, cursor="old")


async def test_a_draining_gateway_ends_the_stream() -> None:
    stopping = asyncio.Event()
    stopping.set()
    with pytest.raises(Unavailable):
        await events(ScriptedLedger([]), 1, stopping=stopping)


def test_a_cursor_is_read_as_it_was_written() -> None:
    cursor = ChangeCursor("8b077652-1111-4111-8111-111111111111", 2**60, 7)
    assert ChangeCursor.decoded(cursor.encoded()) == cursor
    assert len(cursor.encoded()) <= 200


@pytest.mark.parametrize("text", ["", "x", "MSBhIGI", "MiBhIDEgMQ", "MSBhIC0xIDE", "é"])
def test_invalid_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        ChangeCursor.decoded(text)
