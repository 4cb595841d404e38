"""Two tenants and two pools: a foreign worker that asks for everything sees only the tasks of its own tenant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tenure.domain.errors import PermissionDenied
from tenure.v1 import task_pb2
from tests.end_to_end.conftest import options
from tests.support.fix_pools import PooledStack, open_pooled_stack
from tests.support.patience import PATIENCE_SECONDS
from tests.support.scripted_worker import ScriptedWorker

pytestmark = pytest.mark.faults

POOLS = {
    "ours": {"identities": ["worker-1", "worker-2"], "tenants": ["shop"]},
    "acme": {"identities": ["acme"], "queues": ["default"], "loops": ["messages"], "tenants": ["acme"]},
}
TASKS = 8


@pytest_asyncio.fixture
async def pooled(tmp_path: Path) -> AsyncIterator[PooledStack]:
    async with open_pooled_stack(tmp_path, POOLS, options(tmp_path)) as opened:
        yield opened


async def do_all(worker: ScriptedWorker, seen: list[str]) -> None:
    """Works as any worker does, and takes whatever it gets."""
    while True:
        grant = await worker.next_grant()
        seen.append(grant.task_id)
        await worker.succeed(grant)
        await worker.report_slots(64)


async def ended(pooled: PooledStack, tenant: str, task_ids: list[str]) -> list[task_pb2.Task]:
    async with pooled.client(tenant) as client:
        return [await client.wait(task_id, PATIENCE_SECONDS) for task_id in task_ids]


async def test_a_foreign_worker_sees_only_its_own_tenants_tasks(pooled: PooledStack) -> None:
    agent = task_pb2.AgentSpec(model="sim-hello")
    for queues, loops in ((["default", "secret"], []), ([], ["messages", "control.month_end"])):
        with pytest.raises(PermissionDenied) as refused:
            await pooled.worker("acme", queues=queues, loops=loops)
        assert refused.value.reason == "OUTSIDE_POOL"
    foreign = await pooled.worker("acme", "acme-7", slots=64)
    seen: list[str] = []
    working = asyncio.create_task(do_all(foreign, seen))
    theirs, ours = [], []
    for _ in range(TASKS):
        ours += await pooled.submit("shop", agent=agent)
        theirs += await pooled.submit("acme", agent=agent)
    done = {tenant: await ended(pooled, tenant, ids) for tenant, ids in (("shop", ours), ("acme", theirs))}
    assert {task.state for tasks in done.values() for task in tasks} == {task_pb2.TASK_STATE_SUCCEEDED}
    assert {task.claim_count for tasks in done.values() for task in tasks} == {1}
    assert sorted(seen) == sorted(theirs)
    working.cancel()
