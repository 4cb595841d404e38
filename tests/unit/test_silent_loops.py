"""Sweeps and dispatch whose first round never ends: each is noticed by its silence, and goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from services.checkpoint.queue.due import DueWork
from services.checkpoint.queue.sweeps import SWEEPS, Sweeper
from services.coordinator.claims.dispatch import Dispatch
from services.coordinator.pruned_tasks import PrunedTasks
from tenure.domain.fairness import Slots
from tenure.domain.retry import RetryPolicy
from tenure.runtime.process import Duties
from tenure.runtime.store.batching import Batcher
from tests.support.patience import PATIENCE_SECONDS

QUICK = RetryPolicy(max_attempts=3, initial_seconds=0.001, cap_seconds=0.001)
SILENCE_SECONDS = 0.2
ANY: Any = None


class HangsOnce:
    """Asked for the first time it never answers; afterwards nothing is there."""

    def __init__(self) -> None:
        self.count = 0
        self.asked_again = asyncio.Event()

    async def __call__(self, *_: object, **__: object) -> list[Any]:
        self.count += 1
        if self.count == 1:
            await asyncio.Event().wait()
        self.asked_again.set()
        return []


def always_due() -> Any:
    async def wait(_: str) -> None:
        await asyncio.sleep(0.01)

    return SimpleNamespace(wait=wait)


def sweeper(monkeypatch: pytest.MonkeyPatch, look: HangsOnce) -> Callable[[], Awaitable[None]]:
    monkeypatch.setitem(SWEEPS, "retries", look)
    return partial(Sweeper(ANY, lambda _: None, always_due()).run, "retries")


def dispatch(_: pytest.MonkeyPatch, look: HangsOnce) -> Callable[[], Awaitable[None]]:
    session: Any = SimpleNamespace(
        profile="any", has_suspect=False, worker_id="w", slots=lambda _now: Slots.open_to_all(1)
    )
    ledger: Any = SimpleNamespace(list_claimable=look)
    generation: Any = SimpleNamespace(is_settled=True)
    sessions: Any = [session]
    return Dispatch(ledger, sessions, ANY, generation, asyncio.Event()).run


def prunings(_: pytest.MonkeyPatch, look: HangsOnce) -> Callable[[], Awaitable[None]]:
    ledger: Any = SimpleNamespace(list_prunings=look)
    return PrunedTasks(ledger, ANY, ANY, "c").run


@pytest.mark.parametrize("loop", [sweeper, dispatch, prunings])
async def test_an_endless_round_is_abandoned(monkeypatch: pytest.MonkeyPatch, loop: Any) -> None:
    look = HangsOnce()
    async with asyncio.timeout(PATIENCE_SECONDS), Duties(QUICK) as duties:
        duties.start("loop", loop(monkeypatch, look), silence_seconds=SILENCE_SECONDS)
        await look.asked_again.wait()


async def test_an_endless_write_is_abandoned() -> None:
    look = HangsOnce()

    async def write(batch: Any) -> list[Any]:
        await look()
        return list(batch)

    batcher: Batcher[int, int] = Batcher("test", write, key=lambda item: item, size=lambda _: 1)
    async with asyncio.timeout(PATIENCE_SECONDS), Duties(QUICK) as duties:
        duties.start("write", batcher.run, silence_seconds=SILENCE_SECONDS)
        lost = asyncio.create_task(batcher.submit(1))
        assert isinstance((await asyncio.gather(lost, return_exceptions=True))[0], Exception)
        assert await batcher.submit(2) == 2


async def nothing(*_: object, **__: object) -> list[Any]:
    return []


@pytest.mark.parametrize("loop", ["sweep", "dispatch", "write"])
async def test_a_loop_without_work_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    """For many times its limit."""
    monkeypatch.setitem(SWEEPS, "retries", nothing)
    ledger: Any = SimpleNamespace(list_claimable=nothing)
    generation: Any = SimpleNamespace(is_settled=True)
    sessions: Any = []
    runs: dict[str, Callable[[], Awaitable[None]]] = {
        "sweep": partial(Sweeper(ANY, lambda _: None, DueWork(ANY, 3600.0, {})).run, "retries"),
        "dispatch": Dispatch(ledger, sessions, ANY, generation, asyncio.Event()).run,
        "write": Batcher("test", nothing, key=id, size=lambda _: 1).run,
    }
    async with asyncio.timeout(PATIENCE_SECONDS), Duties(QUICK) as duties:
        duties.start(loop, runs[loop], silence_seconds=SILENCE_SECONDS)
        await asyncio.sleep(5 * SILENCE_SECONDS)
    assert not [record for record in caplog.records if "a duty failed" in record.message]
