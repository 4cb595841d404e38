"""Calls that wait for the rate limit: nothing was sent, so any replica may take them over, or end them unsent."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tenure.domain.errors import TryLater, Unavailable
from tenure.v1 import model_service_pb2 as pb
from tests.conformance.test_models_replicas import ended_at_last
from tests.support.fix_models import SHORT_LIFE, ModelReplica, ModelRunnerClient, ReadCall, StartModels
from tests.support.fix_simulator import SimulatorControl
from tests.support.fix_tools import Grants, Owner

LONG_SECONDS = 250
"""Longer than any test waits."""


async def at_its_limit(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl, **settings: object
) -> ModelReplica:
    """A replica that a provider has rate-limited; the other replicas do not know."""
    runner = await model_runner(**settings)
    simulator.order_fault(status=429, retry_after_seconds=LONG_SECONDS, count=1)
    failure = (await runner.generate(grants.claim()).ended()).failure
    assert failure.error_class == "RATE_LIMITED"
    return runner


async def accepted(runner: ModelRunnerClient, owner: Owner) -> ReadCall:
    """A call that waits."""
    call = await runner.generate(owner).begun()
    assert call.state.kind == pb.GenerationState.KIND_ACCEPTED
    assert not call.state.HasField("send_time")
    return call


def attempts(simulator: SimulatorControl, owner: Owner) -> list[str]:
    return [call["attempt"] for call in simulator.calls() if call["attempt"].startswith(owner.task_id)]


async def test_a_waiting_call_is_cancelled_and_never_sent(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl
) -> None:
    runner, other = await at_its_limit(model_runner, grants, simulator), await model_runner()
    for canceller in (runner, other):
        owner = grants.claim()
        call = await accepted(runner, owner)
        response = await canceller.cancel(grants.claim(owner.task_id, epoch=11))
        assert response.failure.error_class == "INTERRUPTED"
        assert not response.failure.usage.input_tokens
        again = other.generate(grants.claim(owner.task_id, epoch=12))
        assert (await again.ended()).failure == response.failure
        assert attempts(simulator, owner) == []
        if canceller is runner:
            assert (await call.ended()).failure == response.failure


@pytest.mark.faults
async def test_a_drained_runner_gives_its_waiting_calls_away(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl
) -> None:
    runner, other = await at_its_limit(model_runner, grants, simulator), await model_runner()
    owner = grants.claim()
    call = await accepted(runner, owner)
    runner.process.signal(signal.SIGTERM)
    with pytest.raises(Unavailable):
        await call.ended()
    taken = other.generate(owner)
    assert (await taken.ended()).HasField("answer")
    assert (taken.state.joined, taken.state.begun_epoch) == (True, owner.epoch)
    assert await runner.process.wait() == 0
    assert attempts(simulator, owner) == [f"{owner.task_id}/1/1"]


@pytest.mark.faults
async def test_a_killed_runners_waiting_call_is_taken_over(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl
) -> None:
    runner, other = await at_its_limit(model_runner, grants, simulator, **SHORT_LIFE), await model_runner(**SHORT_LIFE)
    owner = grants.claim()
    call = await accepted(runner, owner)
    await runner.process.kill()
    with pytest.raises(TryLater):
        await call.ended()
    ends = await asyncio.gather(*(ended_at_last(other, owner) for _ in range(3)))
    assert all(end.HasField("answer") for end in ends)
    assert attempts(simulator, owner) == [f"{owner.task_id}/1/1"]


@pytest.mark.faults
async def test_a_frozen_runners_waiting_call_is_sent_by_one(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl
) -> None:
    """The woken runner still has the call, and finds at the moment of sending that it is another's."""
    runner, other = await model_runner(**SHORT_LIFE), await model_runner(**SHORT_LIFE)
    simulator.order_fault(status=429, retry_after_seconds=8, count=1)
    await runner.generate(grants.claim()).ended()
    owner = grants.claim()
    await accepted(runner, owner)
    runner.freeze()
    end = await ended_at_last(other, owner)
    assert end.HasField("answer")
    runner.process.signal(signal.SIGCONT)
    assert await ended_at_last(runner, owner) == end
    await runner.generate(grants.claim()).ended()  # goes behind the waiting call
    assert attempts(simulator, owner) == [f"{owner.task_id}/1/1"]
