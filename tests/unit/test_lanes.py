"""Tenants share a lane: who waits gets the next place before a tenant that has more, and no call waits for ever."""

from __future__ import annotations

import asyncio

from services.tools.calls.lanes import Lane


async def settled() -> None:
    """Returns when every call that got a place knows it."""
    for _ in range(3):
        await asyncio.sleep(0)


async def waiting(lane: Lane, *tenants: str) -> list[asyncio.Task[None]]:
    """Returns calls that wait, in this order."""
    calls = [asyncio.create_task(lane.acquire(tenant)) for tenant in tenants]
    await settled()
    return calls


async def released(lane: Lane, tenant: str, calls: list[asyncio.Task[None]]) -> list[bool]:
    """Returns which calls have a place after a call of the tenant has ended."""
    lane.release(tenant)
    await settled()
    return [call.done() for call in calls]


async def test_next_slot_goes_to_the_tenant_with_the_fewest_calls() -> None:
    lane = Lane(3)
    await waiting(lane, "slow", "slow", "slow")
    calls = await waiting(lane, "slow", "slow", "other", "other")
    assert await released(lane, "slow", calls) == [False, False, True, False]
    assert await released(lane, "slow", calls) == [True, False, True, False]
    assert await released(lane, "slow", calls) == [True, False, True, True]
    assert await released(lane, "other", calls) == [True, True, True, True]


async def test_tenants_take_turns_for_a_single_slot() -> None:
    lane = Lane(1)
    await lane.acquire("a")
    calls = await waiting(lane, "a", "a", "b", "b", "c")
    order = list[int]()
    for _ in calls:
        before = [call.done() for call in calls]
        after = await released(lane, "aabbc"[order[-1]] if order else "a", calls)
        order += [index for index, (was, now) in enumerate(zip(before, after, strict=True)) if now and not was]
    assert order == [0, 2, 4, 1, 3]


async def test_cancelled_call_leaves_its_slot() -> None:
    lane = Lane(1)
    await lane.acquire("a")
    calls = await waiting(lane, "b", "c", "d")
    calls[0].cancel()
    await settled()
    lane.release("a")
    calls[1].cancel()  # in the moment in which it got its place
    await settled()
    assert [call.cancelled() for call in calls] == [True, True, False]
    assert calls[2].done()
    lane.release("d")
    assert not lane.is_full


async def test_lane_keeps_one_slot() -> None:
    """Its calls were recorded as STARTED, and waited for a slot that the sandbox did not have any more."""
    lane = Lane(2)
    await lane.acquire("a")
    await lane.acquire("a")
    lane.shrink()
    lane.shrink()
    lane.release("a")
    assert (lane.is_full, lane.places) == (True, 1)
    lane.release("a")
    assert not lane.is_full
    await lane.acquire("a")
    assert lane.is_full
