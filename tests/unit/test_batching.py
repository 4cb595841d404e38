"""Group commit: what waits goes together, refusals stay apart, and no item is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tenure.domain.errors import LimitReached, NotFound, Unavailable
from tenure.runtime.observability import metrics
from tenure.runtime.rpc.status import OUTCOME_UNKNOWN
from tenure.runtime.store.batching import Batcher, BatchLimits


class Store:
    """Writes pairs of (key, value); holds each write until `go`."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[str, str]]] = []
        self.failures: list[Exception] = []
        self.go = asyncio.Event()
        self.go.set()

    async def write(self, batch: Any) -> Any:
        self.batches.append(list(batch))
        await self.go.wait()
        if self.failures:
            raise self.failures.pop(0)
        if any(value == "poison" for _, value in batch):
            raise ValueError("poison")
        return [NotFound(key) if value == "refuse" else value.upper() for key, value in batch]


@asynccontextmanager
async def batching(store: Store, **limits: Any) -> AsyncGenerator[Any]:
    batcher = Batcher("test", store.write, key=lambda i: i[0], size=lambda i: len(i[1]), limits=BatchLimits(**limits))
    loop = asyncio.create_task(batcher.run())
    try:
        yield batcher
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)


async def submitted(batcher: Any, *items: Any) -> Any:
    return await asyncio.gather(*(batcher.submit(item) for item in items), return_exceptions=True)


async def test_waiting_items_share_a_batch() -> None:
    store = Store()
    async with batching(store) as batcher:
        store.go.clear()
        first = asyncio.create_task(batcher.submit(("a", "x")))
        while not store.batches:
            await asyncio.sleep(0)
        rest = asyncio.create_task(submitted(batcher, ("b", "y"), ("c", "z")))
        await asyncio.sleep(0)
        store.go.set()
        assert (await first, await rest) == ("X", ["Y", "Z"])
    assert [len(batch) for batch in store.batches] == [1, 2]


async def test_a_refusal_harms_no_neighbour() -> None:
    async with batching(Store()) as batcher:
        answers = await submitted(batcher, ("a", "x"), ("b", "refuse"), ("c", "z"))
    assert [answers[0], answers[2]] == ["X", "Z"]
    assert isinstance(answers[1], NotFound)


async def test_failing_item_fails_alone() -> None:
    async with batching(Store()) as batcher:
        answers = await submitted(batcher, ("a", "x"), ("b", "poison"), ("c", "z"))
    assert [answers[0], answers[2]] == ["X", "Z"]
    assert isinstance(answers[1], ValueError)


async def test_two_of_a_key_never_share_a_batch_and_keep_their_order() -> None:
    store = Store()
    async with batching(store) as batcher:
        await submitted(batcher, ("a", "1"), ("a", "2"), ("b", "3"), ("a", "4"))
    assert store.batches == [[("a", "1"), ("b", "3")], [("a", "2")], [("a", "4")]]


@pytest.mark.parametrize(
    ("limits", "sizes"), [({"max_items": 2}, [2, 1]), ({"max_bytes": 5}, [1, 2]), ({"max_bytes": 1}, [1, 1, 1])]
)
async def test_a_batch_is_bounded_by_count_and_by_bytes(limits: Any, sizes: Any) -> None:
    store = Store()
    async with batching(store, **limits) as batcher:
        assert await submitted(batcher, ("a", "xxxx"), ("b", "yy"), ("c", "zz")) == ["XXXX", "YY", "ZZ"]
    assert [len(batch) for batch in store.batches] == sizes


async def test_an_outage_is_waited_out_with_the_same_batch() -> None:
    store = Store()
    store.failures = [Unavailable("down"), Unavailable("down")]
    async with batching(store) as batcher:
        assert await batcher.submit(("a", "x")) == "X"
    assert store.batches == [[("a", "x")]] * 3


async def test_an_item_is_given_up_when_its_patience_is_over() -> None:
    store = Store()
    store.failures = [Unavailable("down")] * 100
    async with batching(store, patience_seconds=0.05) as batcher:
        with pytest.raises(Unavailable, match="down"):
            await batcher.submit(("a", "x"))


async def test_a_full_queue_refuses_at_once() -> None:
    store = Store()
    store.go.clear()
    async with batching(store, max_waiting=1) as batcher:
        tasks = [asyncio.create_task(batcher.submit((key, "x"))) for key in "ab"]
        while not store.batches:
            await asyncio.sleep(0)
        third = asyncio.create_task(batcher.submit(("c", "x")))
        await asyncio.wait({*tasks, third}, return_when=asyncio.FIRST_COMPLETED)
        refused = [task for task in (*tasks, third) if task.done()]
        assert all(isinstance(task.exception(), LimitReached) for task in refused)
        store.go.set()
        await asyncio.gather(*tasks, third, return_exceptions=True)


async def test_a_caller_that_goes_away_cancels_nothing() -> None:
    store = Store()
    store.go.clear()
    async with batching(store) as batcher:
        gone = asyncio.create_task(batcher.submit(("a", "x")))
        while not store.batches:
            await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        store.go.set()
        assert await batcher.submit(("b", "y")) == "Y"
    assert store.batches == [[("a", "x")], [("b", "y")]]


async def test_close_answers_every_waiting_caller() -> None:
    store = Store()
    store.go.clear()
    async with batching(store) as batcher:
        waiting = asyncio.create_task(submitted(batcher, ("a", "x"), ("a", "y")))
        while not store.batches:
            await asyncio.sleep(0)
        assert metrics.cell("tenure_batch_items_waiting", batcher="test").value == 1
    assert [answer.reason for answer in await waiting] == ["DRAINING", "DRAINING"]
    assert metrics.cell("tenure_batch_items_waiting", batcher="test").value == 0


async def test_waiting_items_are_bounded_by_bytes() -> None:
    store = Store()
    store.go.clear()
    async with batching(store, max_items=1, max_waiting_bytes=4) as batcher:
        first = asyncio.create_task(batcher.submit(("a", "xx")))
        while not store.batches:
            await asyncio.sleep(0)
        second = asyncio.create_task(batcher.submit(("b", "xxxx")))
        await asyncio.sleep(0)
        with pytest.raises(LimitReached):
            batcher.enqueue(("c", "x"), lambda _: None)
        store.go.set()
        assert (await first, await second) == ("XX", "XXXX")
        assert await batcher.submit(("c", "xxxx")) == "XXXX"


async def test_every_caller_gets_one_answer() -> None:
    store, heard = Store(), []
    async with batching(store) as batcher:
        for place, value in enumerate(("x", "refuse", "poison")):
            batcher.enqueue((place, value), lambda result, place=place: heard.append((place, result)))
        while len(heard) < 3:
            await asyncio.sleep(0)
        store.go.clear()
        written = len(store.batches)
        batcher.enqueue((3, "y"), lambda result: heard.append((3, result)))
        while len(store.batches) == written:
            await asyncio.sleep(0)
    assert [place for place, _ in heard] == [0, 1, 2, 3]
    assert [type(result) for _, result in heard] == [str, NotFound, ValueError, Unavailable]
    assert heard[-1][1].metadata == OUTCOME_UNKNOWN
