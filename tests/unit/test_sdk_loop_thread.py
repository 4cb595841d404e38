"""The calls of a SyncClient that another thread closes: at whatever moment, the reader of a stream hears of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator

import pytest

from tenure.domain.errors import Unavailable
from tenure.sdk.loop_thread import LoopCalls
from tests.support.patience import PATIENCE_SECONDS


async def no_connection() -> None:
    pass


async def numbers() -> AsyncGenerator[int]:
    yield 1
    yield 2


def test_a_stream_that_was_closed_between_two_items_ends() -> None:
    """Its thread had the first item and had not asked for the second."""
    calls = LoopCalls()
    stream = calls.iterate(numbers)
    assert next(stream) == 1
    calls.end(no_connection)
    with pytest.raises(Unavailable) as closed:
        next(stream)
    assert closed.value.reason == "CLIENT_CLOSED"


async def test_a_stream_that_was_closed_during_a_wait_ends() -> None:
    waits = threading.Event()

    async def endless() -> AsyncGenerator[int]:
        yield 1
        waits.set()
        await asyncio.Event().wait()

    calls = LoopCalls()
    stream = calls.iterate(endless)
    assert await asyncio.to_thread(next, stream) == 1
    waiting = asyncio.create_task(asyncio.to_thread(next, stream))
    assert await asyncio.to_thread(waits.wait, PATIENCE_SECONDS)
    calls.end(no_connection)
    with pytest.raises(Unavailable):
        await waiting


def test_a_stream_is_read_to_its_end() -> None:
    assert list(LoopCalls().iterate(numbers)) == [1, 2]


def test_stream_that_the_loops_thread_drops_is_closed() -> None:
    """The garbage collector ends an abandoned stream in any thread, also in the one that has to close it."""
    closed = threading.Event()

    async def endless() -> AsyncGenerator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    calls = LoopCalls()
    streams = [calls.iterate(endless)]
    assert next(streams[0]) == 1

    async def drop() -> None:
        streams.clear()

    calls.run(drop)
    assert closed.wait(PATIENCE_SECONDS)
