"""Model calls that wait for a rate limit, or move to another endpoint, in a process of the model runner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tenure.v1 import model_service_pb2 as pb
from tests.support.fix_models import StartModels
from tests.support.fix_simulator import SimulatorControl
from tests.support.fix_tools import Grants
from tests.support.sweeps import first

ENDPOINT = """
[[endpoint]]
name = "{name}"
vendor = "anthropic"
base_url = "{url}"
"""


def endpoints(folder: Path, simulator: SimulatorControl) -> Path:
    """Two endpoints with buckets and a circuit of their own, at one simulator."""
    path = folder / "endpoints.toml"
    path.write_text("".join(ENDPOINT.format(name=name, url=simulator.url) for name in ("first", "second")))
    return path


async def test_a_call_waits_as_accepted_and_is_sent(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl, models_database: Any
) -> None:
    simulator.order_fault(status=429, retry_after_seconds=8)
    runner = await model_runner()
    refused = await runner.generate(grants.claim()).ended()
    assert refused.failure.error_class == "RATE_LIMITED"
    waiting = await runner.generate(grants.claim()).begun()
    assert waiting.state.kind == pb.GenerationState.KIND_ACCEPTED
    assert await models_database("select count(*) from generations where state = 'ACCEPTED'") == [(1,)]
    assert len(simulator.calls()) == 1
    end = await waiting.ended()
    assert end.HasField("answer")
    kinds = [part.state.kind for part in waiting.parts if part.HasField("state")]
    assert kinds == [pb.GenerationState.KIND_ACCEPTED, pb.GenerationState.KIND_SENT]
    assert len(simulator.calls()) == 2
    assert await models_database("select count(*) from generations where sent_at is null") == [(0,)]


async def test_a_joined_call_waits_once(model_runner: StartModels, grants: Grants, simulator: SimulatorControl) -> None:
    """Three readers of one attempt make one call, whatever it waits for."""
    simulator.order_fault(status=429, retry_after_seconds=2)
    runner = await model_runner()
    await runner.generate(grants.claim()).ended()
    owner = grants.claim()
    calls = [runner.generate(owner) for _ in range(3)]
    ends = [await call.ended() for call in calls]
    assert len({end.SerializeToString() for end in ends}) == 1
    assert len(simulator.calls()) == 2


@pytest.mark.parametrize("status", first([529, 429, 500]))
async def test_a_refused_call_is_answered_by_the_next(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl, tmp_path: Path, status: int
) -> None:
    simulator.order_fault(status=status)
    runner = await model_runner(endpoints_file=endpoints(tmp_path, simulator))
    owner = grants.claim()
    end = await runner.generate(owner).ended()
    assert end.HasField("answer")
    calls = simulator.calls()
    assert [call["status"] for call in calls] == [status, 200]
    assert {call["attempt"] for call in calls} == {f"{owner.task_id}/1/1"}


async def test_a_model_without_an_endpoint_fails(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl
) -> None:
    runner = await model_runner(without="OPENAI")
    end = await runner.generate(grants.claim(), model="openai/none").ended()
    assert end.failure.error_class == "NOT_FOUND"
    assert "has no endpoint" in end.failure.message
    assert simulator.calls() == []
