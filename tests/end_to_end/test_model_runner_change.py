"""A rolling change of the workers from the direct way to the model runner and back, with tasks in flight."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import yaml

from checker.collect import collect_tasks, read_effects
from checker.verify import examine
from devstack import ServiceProcess, Stack, StackOptions
from tenure.client import Client
from tenure.v1 import task_pb2
from tests.end_to_end.installation import Installation, check_whole
from tests.end_to_end.scenarios import effects_of_turns, recording_turns
from tests.support.lives import SHORT_LIFE

pytestmark = [pytest.mark.server, pytest.mark.nightly]

ADDRESS: Final = "TENURE_WORKER_MODELS_ADDRESS"
TURNS: Final = {"sim-medium": 20, "sim-short": 5}
LATENCY_MS: Final = {"sim-medium": 1000, "sim-short": 200}
Submitted = tuple[str, str, str]
"""A task, its scenario, and the file of its effects."""


@pytest.fixture
async def install(tmp_path: Path) -> AsyncIterator[Installation]:
    scenarios = tmp_path / "scenarios"
    scenarios.mkdir()
    for name, count in TURNS.items():
        turns = recording_turns(count, LATENCY_MS[name])
        (scenarios / f"{name.removeprefix('sim-')}.yaml").write_text(yaml.safe_dump(turns))
    options = StackOptions(
        data_dir=tmp_path / "data", scenarios=scenarios, workers=2, model_runner=True, environment={"*": SHORT_LIFE}
    )
    async with Stack(options) as stack, Client(stack.gateway_address) as client:
        yield Installation(stack, client)


def of_kind(install: Installation, kind: str) -> list[ServiceProcess]:
    return [one for one in install.stack.services.values() if one.kind == kind]


async def change(install: Installation, *, runners: bool) -> None:
    """Replaces worker after worker. Without runners, they get the provider's key instead."""
    (runner,) = of_kind(install, "models")
    provider = {name: value for name, value in runner.environment.items() if name.startswith("ANTHROPIC_")}
    for worker in of_kind(install, "worker"):
        assert await worker.drain() == 0, worker.log_tail()
        if runners:
            worker.environment[ADDRESS] = runner.address
        else:
            worker.environment.pop(ADDRESS, None)
            worker.environment |= provider
        worker.start()
        await worker.wait_ready()


async def begin(install: Installation, scenario: str) -> Submitted:
    file = uuid.uuid4().hex
    return await install.submit(scenario, file), scenario, file


async def ways(install: Installation, task: Submitted) -> list[bool]:
    """Of each change of the way that the task's model calls took: whether to a model runner."""
    entries = await install.entries(task[0])
    taken = [one.body.model_attempt.outlives_worker for one in entries if one.body.HasField("model_attempt")]
    return [way for before, way in zip([None, *taken], taken, strict=False) if way != before]


async def check_all_ended(install: Installation, submitted: list[Submitted]) -> None:
    """No task is lost, no effect is repeated, and no invariant is broken."""
    for task_id, scenario, file in submitted:
        task = await install.ended(task_id)
        assert task.state == task_pb2.TASK_STATE_SUCCEEDED, f"{task.reason}: {task.message}"
        check_whole(await install.entries(task_id))
        assert sorted(install.effects(file)) == effects_of_turns(TURNS[scenario])
    ids = [task_id for task_id, _, _ in submitted]
    history = await collect_tasks(install.client, ids)
    seen = (one for one in read_effects(install.stack.layout.records) if one.task_id in ids)
    assert examine(replace(history, effects=tuple(seen))).violations == ()


async def test_workers_change_to_the_model_runner_and_back(install: Installation) -> None:
    """One worker may hold the task's claim when the other one changes."""
    await change(install, runners=False)
    there = await begin(install, "sim-medium")
    await install.until(there[0], "tool_outcome")
    await change(install, runners=True)
    back = await begin(install, "sim-medium")
    short = [await begin(install, "sim-short")]
    await install.until(back[0], "tool_outcome")
    await change(install, runners=False)
    short.append(await begin(install, "sim-short"))
    await check_all_ended(install, [there, back, *short])
    assert (await ways(install, there))[:2] == [False, True]
    assert (await ways(install, back))[-2:] == [True, False]
