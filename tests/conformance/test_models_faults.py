"""Faults around a model call: clocks that jump, a call that was taken over, a sweep, many calls."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import pytest

from tenure.domain.errors import LimitReached, TryLater
from tests.conformance.test_models_calls import SLOW, slow
from tests.conformance.test_models_replicas import ended_at_last
from tests.conformance.test_models_waiting import accepted, attempts
from tests.support.fix_models import SHORT_LIFE, StartModels
from tests.support.fix_simulator import SimulatorControl
from tests.support.fix_tools import Grants
from tests.support.patience import PATIENCE_SECONDS, SHORT_LIFE_SECONDS

LARGE: dict[str, Any] = {"messages_json": [json.dumps({"role": "user", "content": "x" * (24 * 1024 * 1024)})]}
EARLIER = "update runners set renewed_at = renewed_at - interval '1 hour'"
"""As if the clock of Postgres had jumped: no renewal looks recent."""


async def test_a_clock_that_jumps_loses_no_call(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl, models_database: Any
) -> None:
    slow(simulator, 6000)
    one, other = await model_runner(), await model_runner()
    owner = grants.claim()
    first = await one.generate(owner, **SLOW).speaking()
    await models_database(EARLIER)
    joined = await other.generate(grants.claim(owner.task_id, epoch=11), **SLOW).ended()
    assert joined.HasField("answer")
    assert await first.ended() == joined
    assert len(simulator.calls()) == 1


@pytest.mark.faults
async def test_thawed_runner_does_not_declare_others_gone(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl, models_database: Any
) -> None:
    """It cannot know who renewed while it was frozen: it looks again before it decides."""
    slow(simulator, 20_000)
    one, other = await model_runner(**SHORT_LIFE), await model_runner(**SHORT_LIFE)
    owner = grants.claim()
    first = await one.generate(owner, **SLOW).speaking()
    other.freeze()
    await asyncio.sleep(SHORT_LIFE_SECONDS + 2)  # longer than the TTL
    other.process.signal(signal.SIGCONT)
    joined = await ended_at_last(other, grants.claim(owner.task_id, epoch=11))
    assert joined.HasField("answer")
    assert await first.ended() == joined


@pytest.mark.faults
async def test_a_reader_of_a_call_taken_over_finds_it_there(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl
) -> None:
    """The runner that stood still no longer has the call; its reader must not hear that the call is over."""
    runner, other = await model_runner(**SHORT_LIFE), await model_runner(**SHORT_LIFE)
    simulator.order_fault(status=429, retry_after_seconds=8, count=1)
    await runner.generate(grants.claim()).ended()
    owner = grants.claim()
    reader = await accepted(runner, owner)
    runner.freeze()
    slow(simulator, 20_000)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not attempts_sent(simulator, owner.task_id):
            taken = other.generate(owner)
            await asyncio.wait([taken.reading], timeout=2)
    runner.process.signal(signal.SIGCONT)
    with pytest.raises(TryLater):
        await reader.ended()
    again = await ended_by(runner, owner)
    assert again.HasField("answer")
    assert attempts(simulator, owner) == [f"{owner.task_id}/1/1"]


def attempts_sent(simulator: SimulatorControl, task_id: str) -> list[str]:
    return [call["attempt"] for call in simulator.running() if call["attempt"].startswith(task_id)]


async def ended_by(runner: Any, owner: Any) -> Any:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                return await runner.generate(owner).ended()
            except TryLater:
                await asyncio.sleep(0.2)


async def test_the_row_of_a_call_in_flight_is_not_swept(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl, models_database: Any
) -> None:
    slow(simulator, 8000)
    runner = await model_runner()
    old, owner = grants.claim(), grants.claim()
    await runner.generate(old).ended()
    call = await runner.generate(owner, **SLOW).speaking()
    await models_database("update generations set changed_on = changed_on - 8")
    await model_runner(retention_days=7)  # sweeps when it starts
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await models_database("select task_id::text from generations") != [(owner.task_id,)]:
            await asyncio.sleep(0.05)
    assert (await call.ended()).HasField("answer")


async def test_one_tenant_cannot_take_all_calls(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl
) -> None:
    slow(simulator, 60_000)
    runner = await model_runner(max_calls=18)
    for _ in range(16):
        await runner.generate(grants.claim(), **SLOW).begun()
    with pytest.raises(LimitReached) as refused:
        await runner.generate(grants.claim(), **SLOW).ended()
    assert refused.value.reason == "TOO_MANY_CALLS"
    for _ in range(2):
        await runner.generate(grants.claim(tenant="other"), **SLOW).begun()


@pytest.mark.faults
async def test_prompts_beyond_the_memory_are_refused(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl
) -> None:
    slow(simulator, 60_000)
    runner = await model_runner(max_prompt_megabytes=64)
    for _ in range(2):
        await runner.generate(grants.claim(), **LARGE, **SLOW).begun()
    with pytest.raises(LimitReached) as refused:
        await runner.generate(grants.claim(), **LARGE, **SLOW).ended()
    assert refused.value.reason == "TOO_MANY_CALLS"
    await runner.generate(grants.claim(), **SLOW).begun()


async def test_an_end_that_postgres_refuses_leaves_no_reader_waiting(
    model_runner: StartModels, grants: Grants, models_database: Any
) -> None:
    runner = await model_runner(report_seconds=0.5)
    owner = grants.claim()
    await models_database("alter table generations add constraint refused check (ended is null) not valid")
    with pytest.raises(TryLater) as refused:
        await runner.generate(owner).ended()
    assert refused.value.reason == "NOT_RECORDED"
    await models_database("alter table generations drop constraint refused")
    end = await ended_by(runner, owner)  # the process has forgotten the call, so its end is lost
    assert end.failure.error_class == "LOST"
