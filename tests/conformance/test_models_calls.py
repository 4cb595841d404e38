"""A model call at one model runner: begun, joined, answered from the record, refused, and paid once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenure.domain.errors import StaleEpoch, WrongState
from tenure.v1 import model_service_pb2 as pb
from tests.support.fix_models import ModelRunnerClient, StartModels
from tests.support.fix_simulator import SimulatorControl
from tests.support.fix_tools import Grants

SLOW: dict[str, Any] = {"model": "sim-slow"}
"""A prompt whose answer has a hundred pieces."""


def slow(simulator: SimulatorControl, milliseconds: int = 5000) -> None:
    """The next answers take so long."""
    simulator.order_fault(latency_ms=milliseconds, count=10)


async def test_a_call_is_answered_and_recorded(
    runner: ModelRunnerClient, grants: Grants, simulator: SimulatorControl, models_database: Any
) -> None:
    owner = grants.claim()
    call = runner.generate(owner)
    end = await call.ended()
    assert end.HasField("answer")
    assert end.answer.attempt_number == 1
    assert end.answer.usage.output_tokens
    assert call.state.kind == pb.GenerationState.KIND_SENT
    assert (call.state.joined, call.state.begun_epoch) == (False, owner.epoch)
    assert call.text
    assert call.text in end.answer.content_json
    (request,) = simulator.calls()
    assert request["attempt"] == f"{owner.task_id}/1/1"
    ((state, ended),) = await models_database("select state, ended from generations where task_id = %s", owner.task_id)
    assert (state, bytes(ended)) == ("FINISHED", end.SerializeToString())


async def test_a_higher_epoch_joins_with_the_text_so_far(
    runner: ModelRunnerClient, grants: Grants, simulator: SimulatorControl
) -> None:
    slow(simulator)
    owner = grants.claim()
    first = await runner.generate(owner, **SLOW).speaking()
    had = first.text
    await first.disconnect()
    second = await runner.generate(grants.claim(owner.task_id, epoch=11), **SLOW).speaking()
    assert second.state.joined
    assert second.state.begun_epoch == 10
    assert second.text.startswith(had)
    end = await second.ended()
    assert second.text in end.answer.content_json
    assert len(simulator.calls()) == 1


async def test_a_stale_claim_starts_joins_and_cancels_nothing(
    runner: ModelRunnerClient, grants: Grants, simulator: SimulatorControl
) -> None:
    slow(simulator)
    stale = grants.claim()
    same_epoch = grants.claim(stale.task_id, epoch=11)  # as a restored etcd may grant twice
    newest = grants.claim(stale.task_id, epoch=11)
    call = await runner.generate(newest, **SLOW).speaking()
    for owner in (stale, same_epoch):
        for step in (1, 2):
            with pytest.raises(StaleEpoch):
                await runner.generate(owner, step, **SLOW).ended()
            with pytest.raises(StaleEpoch):
                await runner.cancel(owner, step)
    assert (await call.ended()).HasField("answer")
    assert len(simulator.calls()) == 1


async def test_the_record_gives_the_same_answer_byte_for_byte(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl
) -> None:
    runner = await model_runner()
    owner = grants.claim()
    answer = (await runner.generate(owner).ended()).SerializeToString()
    again = runner.generate(owner)
    assert (await again.ended()).SerializeToString() == answer
    assert again.state.kind == pb.GenerationState.KIND_FINISHED
    await runner.process.kill()
    other = await model_runner()
    recorded = other.generate(grants.claim(owner.task_id, epoch=11))
    assert (await recorded.ended()).SerializeToString() == answer
    assert recorded.state.joined
    assert len(simulator.calls()) == 1


async def test_a_later_attempt_replaces_the_earlier_one(
    runner: ModelRunnerClient, grants: Grants, simulator: SimulatorControl, models_database: Any
) -> None:
    owner = grants.claim()
    await runner.generate(owner, 1).ended()
    await runner.generate(owner, 1, 2).ended()
    await runner.generate(owner, 2).ended()
    for step, attempt_number in ((1, 1), (1, 2)):
        with pytest.raises(WrongState, match="is over") as refused:
            await runner.generate(owner, step, attempt_number).ended()
        assert refused.value.reason == "ATTEMPT_SUPERSEDED"
    assert len(simulator.calls()) == 3
    assert await models_database("select count(*) from generations where task_id = %s", owner.task_id) == [(1,)]


async def test_the_provider_is_asked_once_under_repeats(
    runner: ModelRunnerClient, grants: Grants, simulator: SimulatorControl
) -> None:
    slow(simulator, 1500)
    owner = grants.claim()
    calls = [runner.generate(owner, **SLOW) for _ in range(20)]
    await calls[0].speaking()
    for call in calls[:10]:
        await call.disconnect()
    calls.append(runner.generate(grants.claim(owner.task_id, epoch=11), **SLOW))
    ends = await asyncio.gather(*(call.ended() for call in calls[10:]))
    assert len({end.SerializeToString() for end in ends}) == 1
    assert len(simulator.calls()) == 1


async def test_parts_that_are_ready_travel_together(
    runner: ModelRunnerClient, grants: Grants, simulator: SimulatorControl
) -> None:
    slow(simulator)
    owner = grants.claim()
    await runner.generate(owner, **SLOW).speaking()
    joining = runner.generate(owner, **SLOW)
    end = await joining.ended()
    assert joining.messages < len(joining.parts)
    assert joining.text in end.answer.content_json
