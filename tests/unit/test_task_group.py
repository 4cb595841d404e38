"""Laws of our task group: its user is as before, and its timeouts are timeouts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tenure.runtime.task_group import TaskGroup
from tests.support.patience import PATIENCE_SECONDS


@asynccontextmanager
async def failing() -> AsyncIterator[None]:
    """The group inside ends with what failed in it."""
    with pytest.raises(ExceptionGroup):
        yield


async def fail() -> Any:
    raise ValueError("a child failed")


async def fail_when(event: asyncio.Event) -> Any:
    await event.wait()
    raise ValueError("a child failed")


def cancellations() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def test_a_child_failing_during_the_wait_leaves_no_cancel() -> None:
    async with failing(), TaskGroup() as group:
        group.create_task(fail())
        group.create_task(asyncio.Event().wait())
    assert cancellations() == 0


async def test_a_child_failing_during_the_body_leaves_no_cancel() -> None:
    async with failing(), TaskGroup() as group:
        group.create_task(fail())
        await asyncio.Event().wait()
    assert cancellations() == 0


async def test_a_body_that_fails_leaves_no_cancellation() -> None:
    async with failing(), TaskGroup() as group:
        group.create_task(asyncio.Event().wait())
        await fail()
    assert cancellations() == 0


async def test_groups_within_groups_leave_no_cancellation() -> None:
    go = asyncio.Event()

    async def inner() -> None:
        async with TaskGroup() as group:
            group.create_task(fail_when(go))

    async with failing(), TaskGroup() as outer:
        outer.create_task(inner())
        go.set()
    assert cancellations() == 0


async def test_a_timeout_after_a_group_that_failed_is_a_timeout() -> None:
    """With Python 3.11.2 it was a CancelledError, which ended the worker's session without a word."""
    async with failing(), TaskGroup() as group:
        group.create_task(fail())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()


async def test_a_cancellation_from_outside_is_kept() -> None:
    begun = asyncio.Event()

    async def work() -> None:
        async with TaskGroup() as group:
            group.create_task(asyncio.Event().wait())
            begun.set()

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert task.cancelled()


async def test_an_outer_cancellation_behind_a_failure_counts() -> None:
    """So that the code after the failure can see it."""
    begun = asyncio.Event()
    counted = []

    async def fail_when_cancelled() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("failed at that moment") from None

    async def work() -> None:
        try:
            async with TaskGroup() as group:
                group.create_task(fail_when_cancelled())
        except ExceptionGroup:
            counted.append(cancellations())

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
    assert counted == [1]
