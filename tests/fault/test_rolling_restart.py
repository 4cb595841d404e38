"""A rolling restart of everything under load: no task fails, no claim is lost, and nothing is done twice."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import yaml

from checker.collect import collect_tasks, read_effects
from checker.history import History
from checker.verify import examine
from devstack import Stack, StackOptions
from devstack.options import REPLICATED
from tenure.client import Client
from tenure.v1 import task_pb2
from tests.end_to_end.installation import Installation
from tests.fault.suite.etcd_log import EtcdLog
from tests.support.model_log import read_model_calls
from tests.support.patience import PATIENCE_SECONDS
from tests.support.rolling import ORDER, RestartedProcess, rolling_restart

pytestmark = [pytest.mark.server, pytest.mark.timeout(400), pytest.mark.faults]

TASKS: Final = 30
AT_ONCE: Final = 5
MODEL: Final = "sim-rolling"
REPLICAS: Final = 2
NOT_RECORDED: Final = {"operations", "subscriptions", "unix_minus_monotonic_seconds", "healthy", "stops", "bounds"}
"""What the checker does without here: logs of clients, delivery times without faults; there are no stops or rules."""
PATIENT: Final = {"TENURE_COORDINATOR_TTL_SECONDS": "30", "TENURE_COORDINATOR_RENEW_INTERVAL_SECONDS": "1"}
"""No lease runs out by itself on a busy machine: a claim that is lost was lost by the restart."""


def turn(number: int) -> dict[str, object]:
    """A model call and two effects: one that may be repeated by its key, and one that must not be repeated."""
    calls = [
        {"name": name, "arguments": {"file": "{{goal}}", "line": f"{name} {number}", "delay_ms": 200}}
        for name in ("append_record", "append_record_unsafe")
    ]
    return {"text": f"Turn {number}.", "latency_ms": 400, "calls": calls}


@pytest.fixture
async def replicated(tmp_path: Path) -> AsyncIterator[Installation]:
    tmp_path.chmod(0o755)
    scenario = tmp_path / f"{MODEL.removeprefix('sim-')}.yaml"
    scenario.write_text(yaml.safe_dump([*map(turn, range(1, 5)), {"text": "All is done."}]))
    options = StackOptions(
        data_dir=tmp_path / "data",
        workers=REPLICAS,
        replicas=dict.fromkeys(REPLICATED, REPLICAS),
        scenario_files=(scenario,),
        environment={"coordinator": PATIENT},
    )
    async with Stack(options) as stack, Client(stack.gateway_address) as client:
        yield Installation(stack, client)


async def restart_all(stack: Stack) -> list[RestartedProcess]:
    return [restarted async for restarted in rolling_restart(stack)]


async def work_while(install: Installation, restarting: asyncio.Task[list[RestartedProcess]]) -> list[task_pb2.Task]:
    """Submits tasks and waits for each until the restart is over, and until there were TASKS of them."""
    ended: list[task_pb2.Task] = []

    async def one_after_another() -> None:
        while not restarting.done() or len(ended) < TASKS:
            ended.append(await install.ended(await install.submit(MODEL, uuid.uuid4().hex)))

    await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))
    return ended


async def history_of(install: Installation, log: EtcdLog, task_ids: list[str]) -> History:
    """All that is known of the tasks, once no claim of them is left."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while log.held(set(task_ids)):
            await asyncio.sleep(0.1)
    await log.caught_up()
    return replace(
        await collect_tasks(install.client, task_ids),
        effects=read_effects(install.stack.layout.records),
        model_calls=read_model_calls(install.stack.layout.model_log),
        grants=log.grants(set(task_ids)),
        generations=tuple(log.generations),
        settled=True,
    )


async def test_a_rolling_restart_under_load_fails_no_task(replicated: Installation) -> None:
    log = EtcdLog([replicated.stack.etcd_endpoints])
    recording = asyncio.create_task(log.run())
    try:
        restarting = asyncio.create_task(restart_all(replicated.stack))
        tasks = await work_while(replicated, restarting)
        restarted = await restarting
        history = await history_of(replicated, log, [task.task_id for task in tasks])
    finally:
        recording.cancel()
    kinds = [kind for kind in ORDER if kind != "models"]  # this installation has no model runner
    assert Counter(one.service.kind for one in restarted) == dict.fromkeys(kinds, REPLICAS)
    assert len(tasks) >= TASKS
    endings = Counter((task.state, task.attempt, task.message) for task in tasks)
    assert set(endings) == {(task_pb2.TASK_STATE_SUCCEEDED, 1, "")}
    report = examine(history)
    assert report.violations == ()
    assert {name for run in report.not_run for name in run.missing} <= NOT_RECORDED
    assert len(history.effects or ()) == 8 * len(tasks)
    assert await left_workers(replicated, tasks) == {"WORKER_DRAINED"}


async def left_workers(install: Installation, tasks: list[task_pb2.Task]) -> set[str]:
    """The reasons for which tasks left their worker before their end."""
    moved = (task for task in tasks if task.claim_count > 1)
    return {
        entry.body.transition.reason
        for task in moved
        for entry in await install.entries(task.task_id)
        if entry.body.transition.from_state == task_pb2.TASK_STATE_RUNNING
        and entry.body.transition.to_state == task_pb2.TASK_STATE_QUEUED
    }
