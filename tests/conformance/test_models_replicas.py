"""Several model runners: a call is relayed to the one that makes it, and a dead one's call is lost once."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from services.models.liveness import RunnerLife
from services.models.statements import SCHEMA
from tenure.domain.errors import StaleEpoch, TryLater
from tenure.runtime.store.dedicated_connection import DedicatedConnection
from tests.conformance.test_models_calls import SLOW, slow
from tests.support.fix_models import SHORT_LIFE, ModelRunnerClient, ReadCall, StartModels
from tests.support.fix_simulator import SimulatorControl
from tests.support.fix_tools import Grants, Owner
from tests.support.patience import LONG_LIFE_SECONDS, PATIENCE_SECONDS


async def ended_at_last(runner: ModelRunnerClient, owner: Owner) -> Any:
    """The end of a call, asked for again as a worker does while its runner may be alive, or is not connected again."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                return await runner.generate(owner, **SLOW).ended()
            except TryLater:
                await asyncio.sleep(0.2)


async def test_another_replica_relays_the_call(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl
) -> None:
    slow(simulator, 6000)
    one, other = await model_runner(), await model_runner()
    owner = grants.claim()
    first = await one.generate(owner, **SLOW).speaking()
    relayed = await other.generate(grants.claim(owner.task_id, epoch=11), **SLOW).speaking()
    assert relayed.state.joined
    assert relayed.text.startswith(first.text[:1])
    assert await relayed.ended() == await first.ended()
    assert relayed.text == first.text
    assert len(simulator.calls()) == 1


@pytest.mark.faults
async def test_another_replica_cancels_the_call(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl
) -> None:
    slow(simulator, 30_000)
    one, other = await model_runner(), await model_runner()
    owner = grants.claim()
    call = await one.generate(owner, **SLOW).speaking()
    newest = grants.claim(owner.task_id, epoch=11)
    response = await other.cancel(newest)
    assert response.failure.error_class == "INTERRUPTED"
    assert (await call.ended()).failure == response.failure
    for runner in (one, other):
        with pytest.raises(StaleEpoch):
            await runner.cancel(owner)


async def test_a_killed_runners_call_is_lost_once(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl
) -> None:
    slow(simulator, 30_000)
    one, other = await model_runner(**SHORT_LIFE), await model_runner(**SHORT_LIFE)
    owner = grants.claim()
    await one.generate(owner, **SLOW).speaking()
    await one.process.kill()
    ends = await asyncio.gather(*(ended_at_last(other, owner) for _ in range(5)))
    assert {end.failure.error_class for end in ends} == {"LOST"}
    assert ends[0].failure.retryable
    assert (await other.generate(owner, 1, 2, **SLOW).begun()).state.joined is False
    await _asked(simulator, 2)


async def _asked(simulator: SimulatorControl, count: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(await asyncio.to_thread(simulator.calls)) + len(await asyncio.to_thread(simulator.running)) != count:
            await asyncio.sleep(0.05)


@pytest.mark.faults
async def test_a_runner_that_restarts_replaces_its_former_life(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl
) -> None:
    """A replica at the same address knows that the one before it is gone, long before its TTL."""
    slow(simulator, 30_000)
    runner = await model_runner(runner_ttl_seconds=3600)
    owner = grants.claim()
    await runner.generate(owner, **SLOW).speaking()
    await runner.process.kill()
    await runner.process.start_again()
    assert (await ended_at_last(runner, owner)).failure.error_class == "LOST"


@pytest.mark.faults
async def test_a_frozen_runner_does_not_replace_the_lost_end(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl
) -> None:
    slow(simulator, 9000)
    one, other = await model_runner(**SHORT_LIFE), await model_runner(**SHORT_LIFE)
    owner = grants.claim()
    stale = await one.generate(owner, **SLOW).speaking()
    one.freeze()
    lost = await ended_at_last(other, owner)
    assert lost.failure.error_class == "LOST"
    one.process.signal(signal.SIGCONT)
    assert await stale_end(stale) in (lost, None)
    assert await ended_at_last(one, owner) == lost


async def stale_end(call: ReadCall) -> Any:
    """The end that a reader of the frozen runner gets; None: its connection broke."""
    try:
        return await call.ended()
    except TryLater:
        return None


async def test_generation_is_deleted_after_its_retention(
    model_runner: StartModels, grants: Grants, models_database: Any, simulator: SimulatorControl
) -> None:
    runner = await model_runner()
    old, new = grants.claim(), grants.claim()
    await runner.generate(old).ended()
    await runner.generate(new).ended()
    await models_database("update generations set changed_on = changed_on - 8 where task_id = %s", old.task_id)
    await runner.process.stop()
    await model_runner(retention_days=7)  # sweeps when it starts
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await models_database("select task_id::text from generations") != [(new.task_id,)]:
            await asyncio.sleep(0.05)


async def test_a_renewal_after_the_end_of_a_life_does_not_revive_it(models_dsn: str, models_database: Any) -> None:
    """The duty may come to its turn after the row is deleted: the other replicas would count the runner as alive."""
    async with DedicatedConnection(models_dsn, service="models", schema=SCHEMA) as kept:
        async with RunnerLife(kept, ttl_seconds=LONG_LIFE_SECONDS) as life:
            await life.begin("127.0.0.1:1")
            assert len(await models_database("select runner_id from runners")) == 1
        async with asyncio.timeout(PATIENCE_SECONDS):
            await life.renew()
    assert await models_database("select runner_id from runners") == []
