"""Laws of the slot pool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.tools.sandbox.limits import SandboxUnavailable
from services.tools.sandbox.slots import Slot, SlotPool
from tests.support.patience import PATIENCE_SECONDS


@asynccontextmanager
async def occupied(pool: SlotPool, workspace: str | None, preferred: int | None = None) -> AsyncIterator[Slot]:
    slot = await pool.enter(workspace, preferred)
    try:
        yield slot
    finally:
        pool.leave(workspace, slot)


async def test_no_two_runs_of_different_workspaces_share_a_slot() -> None:
    pool = SlotPool(2)
    async with occupied(pool, "a") as first, occupied(pool, "b") as second:
        assert first.number != second.number


async def test_runs_in_the_same_workspace_share_a_slot() -> None:
    pool = SlotPool(2)
    async with occupied(pool, "a") as first:
        async with occupied(pool, "a") as second:
            assert first is second
        async with occupied(pool, None) as third:
            assert third is not first


async def test_shared_slot_is_counted() -> None:
    pool = SlotPool(2)
    async with occupied(pool, "a"), occupied(pool, "a"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), occupied(pool, "a"):
                pytest.fail("a third run entered a pool of two")


async def test_a_slot_is_given_back_when_its_run_fails() -> None:
    pool = SlotPool(1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            async with occupied(pool, "a"):
                raise ZeroDivisionError
    async with asyncio.timeout(PATIENCE_SECONDS), occupied(pool, "b") as slot:
        assert slot.users == 1


async def test_a_waiting_run_that_is_cancelled_takes_nothing() -> None:
    pool = SlotPool(1)
    async with occupied(pool, None):
        waiting = asyncio.create_task(pool.enter(None))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with asyncio.timeout(PATIENCE_SECONDS), occupied(pool, None):
        pass


async def test_the_preferred_slot_is_taken_when_it_is_free() -> None:
    pool = SlotPool(4)
    async with occupied(pool, "a", preferred=3) as first, occupied(pool, "b", preferred=3) as second:
        assert first.number == 3
        assert second.number != 3


async def test_a_retired_slot_is_never_given_out_again() -> None:
    pool = SlotPool(2)
    async with occupied(pool, "a") as lost:
        lost.retired = True
    for _ in range(4):
        async with asyncio.timeout(PATIENCE_SECONDS), occupied(pool, None, preferred=lost.number) as slot:
            assert slot is not lost
    with pytest.raises(TimeoutError):
        async with occupied(pool, None), asyncio.timeout(0.01), occupied(pool, None):
            pytest.fail("the retired slot came back")


async def test_a_pool_without_slots_refuses_and_does_not_wait() -> None:
    pool, lost = SlotPool(2), list[int]()
    pool.on_lost = lambda: lost.append(1)
    async with occupied(pool, "a") as first, occupied(pool, "b") as second:
        waiting = [asyncio.create_task(pool.enter(None)) for _ in range(3)]
        await asyncio.sleep(0)
        first.retired = second.retired = True
    assert len(lost) == 2
    async with asyncio.timeout(PATIENCE_SECONDS):
        refused = await asyncio.gather(*waiting, pool.enter("a"), return_exceptions=True)
    assert [type(each) for each in refused] == [SandboxUnavailable] * 4
    assert "no slot is left: restart the tool service" in str(refused[0])


async def test_long_running_programs_have_slots_of_their_own() -> None:
    pool = SlotPool(2, long_running=1)
    staying = await pool.enter("a", long_running=True)
    async with occupied(pool, "b") as one, occupied(pool, "c") as other:
        assert {one.number, other.number} == {0, 1}
        assert staying.number == 2
        second = asyncio.create_task(pool.enter("d", long_running=True))
        await asyncio.sleep(0)
        assert not second.done()
        pool.leave("a", staying, long_running=True)
        assert (await second).number == 2


async def test_a_run_and_a_long_running_program_share_a_slot() -> None:
    pool = SlotPool(1, long_running=1)
    staying = await pool.enter("a", long_running=True)
    async with occupied(pool, "a") as run:
        assert run is staying
    async with occupied(pool, "b") as other:
        assert other is not staying
