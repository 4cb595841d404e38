"""What one watcher is handed, and when it has to read the ledger instead."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from services.checkpoint.rows import NewEntryRow
from services.checkpoint.watch.appended_entries import AppendedEntries
from services.checkpoint.watch.hub import MAX_BYTES, MAX_ENTRIES, Hub, TaskWatch
from tests.support.patience import PATIENCE_SECONDS


def growth(first: int, count: int = 1, size_bytes: int = 1) -> AppendedEntries:
    rows = [
        NewEntryRow("t", first + number, "default", 7, "c", 1, 1, 3, "worker-1", b"x" * size_bytes)
        for number in range(count)
    ]
    return AppendedEntries(rows, datetime(2026, 1, 1, tzinfo=UTC), closes=False)


def watch_at(sequence: int) -> TaskWatch:
    watch = TaskWatch()
    watch.seen_sequence = sequence
    return watch


async def taken(watch: TaskWatch) -> list[int] | None:
    """The first sequence of each growth that was handed over; None: to read."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        growths = await watch.take()
    return None if growths is None else [one.first for one in growths]


async def test_appended_entries_are_handed_over_in_order_once() -> None:
    watch = watch_at(4)
    watch.tell(growth(5, count=2))
    watch.tell(growth(7))
    assert watch.reached_sequence == 7
    assert await taken(watch) == [5, 7]
    watch.seen_sequence = 7
    watch.tell(growth(8))
    assert await taken(watch) == [8]


@pytest.mark.parametrize("expected", [[6], [5, 7], [6, 5], [None], [5, None], [None, 5]])
async def test_watcher_with_a_gap_reads_the_ledger(expected: list[int | None]) -> None:
    watch = watch_at(4)
    for first in expected:
        watch.tell(None if first is None else growth(first))
    assert await taken(watch) is None


async def test_caught_up_watcher_gets_appended_entries() -> None:
    watch = watch_at(4)
    watch.tell(growth(6))
    assert await taken(watch) is None
    watch.seen_sequence = 6
    watch.tell(growth(7))
    assert await taken(watch) == [7]


async def test_entries_that_were_read_are_not_handed_over_again() -> None:
    watch = watch_at(4)
    watch.tell(growth(5))
    watch.tell(growth(6))
    watch.seen_sequence = 5
    assert await taken(watch) == [6]
    watch.tell(growth(5))
    watch.seen_sequence = 6
    waiting = asyncio.ensure_future(taken(watch))
    await asyncio.sleep(0)
    watch.tell(growth(7))
    assert await waiting == [7]


@pytest.mark.parametrize(("most", "size_bytes"), [(MAX_ENTRIES, 1), (4, MAX_BYTES // 4)])
async def test_more_than_a_bound_is_not_kept_for_a_slow_one(most: int, size_bytes: int) -> None:
    watch = watch_at(0)
    for sequence in range(1, most + 1):
        watch.tell(growth(sequence, size_bytes=size_bytes))
    assert watch.reached_sequence == most
    watch.tell(growth(most + 1, size_bytes=size_bytes))
    watch.tell(growth(most + 2, size_bytes=size_bytes))
    assert watch.reached_sequence == 0
    assert await taken(watch) is None


async def test_a_poll_wakes_only_watchers_that_are_behind() -> None:
    """One watcher that begins must not make all others of its task read the ledger."""
    hub = Hub()
    with hub.watch_task("t") as current, hub.watch_task("t") as behind, hub.watch_task("u") as other:
        current.seen_sequence, behind.seen_sequence, other.seen_sequence = 7, 3, 1
        hub.wake_behind({"t": 7, "gone": 9})
        assert await taken(behind) is None
        waiting = [asyncio.ensure_future(watch.take()) for watch in (current, other)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
