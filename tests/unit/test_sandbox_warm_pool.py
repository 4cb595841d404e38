"""Which places have a sandbox waiting. The waiting objects are not processes: the rules are the pool's own."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest

from services.tools.sandbox import SandboxLimits, SandboxUnavailable
from services.tools.sandbox.supervision import WarmSandbox
from services.tools.sandbox.warm_pool import WarmPool
from tests.support.patience import PATIENCE_SECONDS

LIMITS = SandboxLimits()


class Waiting:
    def __init__(self, place: int) -> None:
        self.place, self.is_alive = place, True
        self._tell: Callable[[], None] = lambda: None

    def on_death(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def die(self) -> None:
        self.is_alive = False
        self._tell()

    async def close(self) -> None:
        self.is_alive = False


class Made:
    """All that were made. `gate` holds the next one up; `failures` are raised one after another."""

    def __init__(self) -> None:
        self.all: list[Waiting] = []
        self.begun = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.failures: list[Exception] = []

    async def make(self, place: int, _limits: SandboxLimits) -> WarmSandbox:
        self.begun += 1
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.all.append(Waiting(place))
        return cast("WarmSandbox", self.all[-1])

    def living(self) -> list[int]:
        return sorted(one.place for one in self.all if one.is_alive)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.tools.sandbox.warm_pool._PAUSE_SECONDS", 0.0)


@pytest.fixture
def made() -> Made:
    return Made()


@pytest.fixture
async def pool(made: Made) -> AsyncIterator[WarmPool]:
    """Two of three places."""
    pool = WarmPool(2, 3, made.make)
    pool.start()
    assert await pool.is_full()
    yield pool
    await pool.close()
    assert made.living() == []


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


async def test_pool_keeps_its_size(pool: WarmPool, made: Made) -> None:
    assert len(made.living()) == 2
    taken = [pool.occupy(place, LIMITS) for place in range(3)]
    assert len([one for one in taken if one is not None]) == 2
    await asyncio.sleep(0)
    assert made.begun == 2  # no place is free
    for place in range(3):
        pool.vacate(place, retired=False)
    await until(lambda: made.begun == 4)
    for one in taken:
        if one is not None:
            await one.close()
    assert len(made.living()) == 2


async def test_last_free_slot_is_used_next(pool: WarmPool, made: Made) -> None:
    (cold,) = {0, 1, 2} - set(made.living())
    for place in range(3):
        pool.occupy(place, LIMITS)
    for one in made.all:
        await one.close()
    pool.vacate(made.all[0].place, retired=False)
    pool.vacate(cold, retired=False)
    await until(lambda: made.begun == 4)
    assert made.all[2].place == cold


async def test_retired_slot_gets_no_warm_sandbox(pool: WarmPool, made: Made) -> None:
    for place in range(3):
        pool.occupy(place, LIMITS)
    for one in made.all:
        await one.close()
    pool.vacate(0, retired=True)
    pool.vacate(1, retired=False)
    pool.vacate(2, retired=False)
    assert await pool.is_full()
    assert made.living() == [1, 2]


async def test_former_slot_is_preferred(pool: WarmPool, made: Made) -> None:
    (cold,) = {0, 1, 2} - set(made.living())
    first, second = made.living()
    assert (pool.preferred(first), pool.preferred(second)) == (first, second)
    assert pool.preferred(cold) in {first, second}
    assert pool.preferred(None) in {first, second}


async def test_warm_sandbox_of_a_used_slot_is_ended(pool: WarmPool, made: Made) -> None:
    free = ({0, 1, 2} - set(made.living())).pop()
    made.gate.clear()
    made.all[0].die()
    await until(lambda: made.begun == 3)  # in the place of the dead one, or in the free one
    taken = [pool.occupy(place, LIMITS) for place in (free, made.all[0].place)]
    assert taken == [None, None]
    made.gate.set()
    await until(lambda: len(made.all) == 3 and not made.all[2].is_alive)
    assert made.living() == [made.all[1].place]


async def test_dead_sandbox_is_replaced(pool: WarmPool, made: Made) -> None:
    made.all[0].die()
    await until(lambda: len(made.living()) == 2)
    assert made.begun == 3


async def test_limits_that_change_replace_all(pool: WarmPool, made: Made) -> None:
    other = dataclasses.replace(LIMITS, memory_bytes=1 << 29)
    place = made.living()[0]
    assert pool.occupy(place, other) is None
    await until(lambda: made.begun == 4)
    await until(lambda: not any(one.is_alive for one in made.all[:2]))
    assert len(made.living()) == 2
    taken = pool.occupy(made.living()[0], dataclasses.replace(other, wall_seconds=1.0))
    assert taken is not None
    await taken.close()  # it is ours now


async def test_failures_are_logged_and_retried(made: Made) -> None:
    pool = WarmPool(1, 1, made.make)
    made.failures = [SandboxUnavailable("not here"), OSError("nor there")]
    pool.start()
    assert not await pool.is_full()
    assert pool.last_failure == "not here"
    await until(lambda: made.living() == [0])
    assert made.begun == 3
    await pool.close()
    assert made.living() == []


async def test_pool_of_zero_starts_nothing(made: Made) -> None:
    pool = WarmPool(0, 3, made.make)
    pool.start()
    assert await pool.is_full()
    assert pool.preferred(2) == 2
    assert pool.occupy(2, LIMITS) is None
    pool.vacate(2, retired=False)
    await pool.close()
    assert made.begun == 0
