"""How model calls end at the model runner: cancelled, failed, drained, without Postgres, without a reader."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import pytest

from devstack.postgres_process import PostgresProcess
from services.models.statements import MIGRATIONS
from tenure.domain.errors import Unavailable
from tenure.runtime.store.sql import migrate
from tests.conformance.test_models_calls import SLOW, slow
from tests.support.fix_models import ModelRunnerClient, StartModels
from tests.support.fix_simulator import SimulatorControl
from tests.support.fix_tools import Grants
from tests.support.patience import PATIENCE_SECONDS


async def until(holds: Callable[[], bool]) -> None:
    """Returns once it holds."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.05)


async def test_a_cancelled_call_ends_with_its_usage(
    runner: ModelRunnerClient, grants: Grants, simulator: SimulatorControl
) -> None:
    slow(simulator, 30_000)
    owner = grants.claim()
    call = await runner.generate(owner, **SLOW).speaking()
    response = await runner.cancel(owner)
    assert response.failure.error_class == "INTERRUPTED"
    assert response.failure.usage.input_tokens
    assert (await call.ended()).failure == response.failure
    assert (await runner.cancel(owner)) == response
    assert (await runner.generate(owner, **SLOW).ended()).failure == response.failure
    await until(lambda: bool(simulator.calls()))
    assert [request["ending"] for request in simulator.calls()] == ["abandoned"]


async def test_a_call_cancelled_before_it_began_is_never_sent(
    runner: ModelRunnerClient, grants: Grants, simulator: SimulatorControl
) -> None:
    owner = grants.claim()
    for _ in range(2):
        assert not (await runner.cancel(owner)).WhichOneof("end")
    end = await runner.generate(owner).ended()
    assert end.failure.error_class == "INTERRUPTED"
    assert (await runner.generate(owner, 1, 2).ended()).HasField("answer")
    assert [request["attempt"] for request in simulator.calls()] == [f"{owner.task_id}/1/2"]


async def test_a_cancelled_call_that_had_ended_stays_as_it_is(
    runner: ModelRunnerClient, grants: Grants, simulator: SimulatorControl
) -> None:
    owner = grants.claim()
    answer = (await runner.generate(owner).ended()).answer
    assert (await runner.cancel(grants.claim(owner.task_id, epoch=11))).answer == answer
    assert len(simulator.calls()) == 1


async def test_a_refusal_of_the_provider_is_recorded(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl
) -> None:
    simulator.order_fault(status=529, count=1)
    runner = await model_runner()
    owner = grants.claim()
    failure = (await runner.generate(owner).ended()).failure
    assert (failure.error_class, failure.status_code, failure.retryable) == ("OVERLOADED", 529, True)
    assert (await runner.generate(grants.claim(owner.task_id, epoch=11)).ended()).failure == failure
    assert len(simulator.calls()) == 1


async def test_a_drained_runner_finishes_what_it_sent(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl
) -> None:
    slow(simulator, 8000)
    runner = await model_runner()
    owner = grants.claim()
    call = await runner.generate(owner, **SLOW).speaking()
    runner.process.signal(signal.SIGTERM)
    await runner.process.logged("draining")
    with pytest.raises(Unavailable):
        await runner.generate(grants.claim(), **SLOW).ended()
    assert (await call.ended()).HasField("answer")
    assert await runner.process.wait() == 0
    assert len(simulator.calls()) == 1
    other = await model_runner()
    recorded = other.generate(grants.claim(owner.task_id, epoch=11), **SLOW)
    assert await recorded.ended() == call.parts[-1]


@pytest.mark.faults
async def test_calls_longer_than_the_drain_are_lost_with_usage(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl
) -> None:
    slow(simulator, 60_000)
    runner = await model_runner(drain_seconds=0.5)
    owner = grants.claim()
    call = await runner.generate(owner, **SLOW).speaking()
    assert await runner.process.stop() == 0
    failure = (await call.ended()).failure
    assert (failure.error_class, failure.retryable) == ("LOST", True)
    assert failure.usage.input_tokens
    other = await model_runner()
    assert (await other.generate(owner, **SLOW).ended()).failure == failure


@pytest.mark.faults
async def test_an_end_waits_for_postgres(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl, own_postgres: PostgresProcess
) -> None:
    await migrate(own_postgres.dsn(), MIGRATIONS)
    slow(simulator, 6000)
    runner = await model_runner(postgres_dsn=own_postgres.dsn())
    owner = grants.claim()
    call = await runner.generate(owner, **SLOW).speaking()
    await asyncio.to_thread(own_postgres.kill)
    await until(lambda: bool(simulator.calls()))
    assert not call.is_over
    await asyncio.to_thread(own_postgres.start)
    end = await call.ended()
    assert end.HasField("answer")
    assert (await runner.generate(grants.claim(owner.task_id, epoch=11), **SLOW).ended()) == end
    assert len(simulator.calls()) == 1
