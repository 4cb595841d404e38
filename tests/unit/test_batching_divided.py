"""A batch that fails because of one item is divided: neither its neighbours nor the next batches wait for the item."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest

from tenure.domain.errors import InvalidRequest, TryLater, Unavailable
from tenure.runtime.rpc.status import LOCK_TIMEOUT, OUTCOME_UNKNOWN, STATEMENT_TIMEOUT
from tenure.runtime.store.batching import Batcher, BatchLimits

ITEMS = 64
POISON = 37
NEIGHBOURS = [item for item in range(ITEMS) if item != POISON]
LOST = Unavailable("the connection was lost", reason="POSTGRES_UNAVAILABLE", metadata=OUTCOME_UNKNOWN)
AWAY = Unavailable("no connection", reason="POSTGRES_UNAVAILABLE")


class Store:
    """Fails with `error` whenever it gets the poison, and always while `away`."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.away = False
        self.writes: list[list[int]] = []

    async def write(self, batch: Sequence[int]) -> list[str]:
        self.writes.append(list(batch))
        if self.away:
            raise AWAY
        if POISON in batch:
            raise self.error
        return ["written"] * len(batch)


@asynccontextmanager
async def batching(store: Store, patience_seconds: float | None) -> AsyncGenerator[Batcher[int, str]]:
    limits = BatchLimits(patience_seconds=patience_seconds)
    batcher: Batcher[int, str] = Batcher("test", store.write, key=lambda item: item, size=lambda _: 1, limits=limits)
    running = asyncio.create_task(batcher.run())
    try:
        async with asyncio.timeout(20):
            yield batcher
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


ERRORS = [
    LOST,
    Unavailable("cancelled", reason=STATEMENT_TIMEOUT),
    Unavailable("locked", reason=LOCK_TIMEOUT),
    Unavailable("memory", reason="OUT_OF_MEMORY"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: str(error.reason))
async def test_neighbours_do_not_wait_for_a_failing_item(error: TryLater) -> None:
    store = Store(error)
    async with batching(store, patience_seconds=None) as batcher:
        answers = [asyncio.create_task(batcher.submit(item)) for item in range(ITEMS)]
        assert await asyncio.gather(*(answers[item] for item in NEIGHBOURS)) == ["written"] * len(NEIGHBOURS)
        assert await batcher.submit(1000) == "written"  # of a later batch
        assert not answers[POISON].done()
        answers[POISON].cancel()


async def test_an_item_that_fails_alone_gets_its_error() -> None:
    async with batching(Store(LOST), patience_seconds=0.3) as batcher:
        with pytest.raises(Unavailable):
            await batcher.submit(POISON)


async def test_neighbours_of_a_locked_row_are_written() -> None:
    class Locked(Store):
        async def write(self, batch: Sequence[int]) -> list[str]:
            if POISON in batch:
                await asyncio.sleep(0.3)
            return await super().write(batch)

    store = Locked(Unavailable("locked", reason=LOCK_TIMEOUT))
    async with batching(store, patience_seconds=0.2) as batcher:
        ends = await asyncio.gather(*map(batcher.submit, range(ITEMS)), return_exceptions=True)
    assert [item for item, end in enumerate(ends) if end != "written"] == [POISON]


async def test_a_second_item_of_a_suspect_waits_for_it() -> None:
    store = Store(LOST)
    async with batching(store, patience_seconds=None) as batcher:
        both = [asyncio.create_task(batcher.submit(POISON)) for _ in range(2)]
        while len(store.writes) < 5:
            await asyncio.sleep(0.01)
        assert await batcher.submit(1) == "written"
        store.error = InvalidRequest("refused")
        ends = await asyncio.gather(*both, return_exceptions=True)
        assert [type(end) for end in ends] == [InvalidRequest, InvalidRequest]
    assert all(batch.count(POISON) <= 1 for batch in store.writes)


async def test_a_refused_item_is_found_with_few_writes() -> None:
    store = Store(InvalidRequest("refused", reason="UNWRITABLE"))
    async with batching(store, patience_seconds=5.0) as batcher:
        ends = await asyncio.gather(*map(batcher.submit, range(ITEMS)), return_exceptions=True)
    assert [item for item, end in enumerate(ends) if end != "written"] == [POISON]
    assert len(store.writes) <= 2 * ITEMS.bit_length()


async def test_an_outage_divides_no_batch() -> None:
    store = Store(LOST)
    async with batching(store, patience_seconds=0.5) as batcher:
        store.away = True
        ends = await asyncio.gather(*map(batcher.submit, NEIGHBOURS), return_exceptions=True)
        assert {type(end) for end in ends} == {Unavailable}
        assert {len(batch) for batch in store.writes} == {len(NEIGHBOURS)}
        store.away = False
        assert await batcher.submit(1) == "written"
