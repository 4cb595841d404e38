"""Each service, etcd and Postgres is killed and started again under a running task: it only takes longer."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from tenure.v1 import task_pb2
from tests.end_to_end.installation import Installation, check_whole
from tests.end_to_end.test_takeover import EFFECTS


async def check_survives(install: Installation, task_id: str, file: str) -> None:
    task = await install.ended(task_id)
    assert task.state == task_pb2.TASK_STATE_SUCCEEDED, f"{task.reason}: {task.message}"
    check_whole(await install.entries(task_id))
    assert sorted(install.effects(file)) == EFFECTS


async def begun(install: Installation) -> tuple[str, str]:
    file = uuid.uuid4().hex
    task_id = await install.submit("sim-e2e-paced", file)
    await install.until(task_id, "tool_outcome", lambda entry: entry.step == 2)
    return task_id, file


@pytest.mark.faults
@pytest.mark.parametrize("service", ["checkpoint", "coordinator", "gateway"])
async def test_a_task_survives_a_crash_of(own_installation: Installation, service: str) -> None:
    task_id, file = await begun(own_installation)
    crashed = own_installation.stack.services[service]
    crashed.kill()
    await crashed.restart()
    await check_survives(own_installation, task_id, file)


@pytest.mark.faults
async def test_a_task_survives_a_crash_of_etcd(own_installation: Installation) -> None:
    task_id, file = await begun(own_installation)
    etcd = own_installation.stack.etcd
    assert etcd is not None
    etcd.kill()
    etcd.start()
    await asyncio.to_thread(etcd.wait_ready)
    await check_survives(own_installation, task_id, file)


@pytest.mark.faults
async def test_a_task_survives_a_crash_of_postgres(own_installation: Installation) -> None:
    task_id, file = await begun(own_installation)
    postgres = own_installation.stack.postgres
    assert postgres is not None
    postgres.kill()
    await postgres.start_async()
    await check_survives(own_installation, task_id, file)


@pytest.mark.faults
async def test_a_task_survives_a_restart_of_everything(own_installation: Installation) -> None:
    """UNSAFE calls may be in doubt after the tool service was stopped, so this one has only a slow model."""
    task_id = await own_installation.submit("sim-slow")
    await own_installation.until(task_id, "model_attempt")
    for service in own_installation.stack.services.values():
        service.kill()
    for name in ("checkpoint", "tools", "coordinator", "gateway", "worker-1", "worker-2"):
        await own_installation.stack.services[name].restart()
    task = await own_installation.ended(task_id)
    assert task.state == task_pb2.TASK_STATE_SUCCEEDED, f"{task.reason}: {task.message}"
