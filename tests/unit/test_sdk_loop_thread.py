"""The calls of a SyncClient that another thread closes: at whatever moment, the reader of a stream hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from tenure.domain.errors import Unavailable
from tenure.sdk.loop_thread import LoopCalls


async def numbers() -> AsyncGenerator[int]:
    yield 1
    yield 2


async def endless() -> AsyncGenerator[int]:
    yield 1
    await asyncio.Event().wait()


def test_a_stream_that_was_closed_between_two_items_ends() -> None:
    """Its thread had the first item and had not asked for the second."""
    calls = LoopCalls()
    stream = calls.iterate(numbers)
    assert next(stream) == 1
    calls.end()
    with pytest.raises(Unavailable, match="closed during the call") as closed:
        next(stream)
    assert closed.value.reason == "CLIENT_CLOSED"


async def test_a_stream_that_was_closed_during_a_wait_ends() -> None:
    calls = LoopCalls()
    stream = calls.iterate(endless)
    assert await asyncio.to_thread(next, stream) == 1
    waiting = asyncio.create_task(asyncio.to_thread(next, stream))
    while not calls._running:
        await asyncio.sleep(0.01)
    calls.end()
    with pytest.raises(Unavailable, match="closed during the call"):
        await waiting


def test_a_stream_is_read_to_its_end() -> None:
    assert list(LoopCalls().iterate(numbers)) == [1, 2]
