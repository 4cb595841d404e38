"""A batch load does not take the last slot of interactive work: a worker that keeps one, and what operators see."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from devstack.child_process import ChildProcess
from tenure.serve import command_line
from tenure.v1 import task_pb2
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation

pytestmark = pytest.mark.faults

REPOSITORY = Path(__file__).parents[2]


class PoolWorker(ChildProcess):
    """A worker of a pool of its own. It is there once it listens."""

    async def run(self) -> None:
        self.start()
        await self.wait_ready()

    async def serves(self) -> bool:
        return '"listening"' in self.log()


@pytest.fixture
async def pool(installation: Installation) -> AsyncIterator[PoolWorker]:
    """A worker with two slots, one of them kept for HIGH tasks. It is not started; its name is its queue."""
    queue, addresses = f"pool-{uuid.uuid4().hex[:12]}", installation.stack.addresses()
    environment = {
        "TENURE_WORKER_QUEUES": queue,
        "TENURE_WORKER_SLOTS": "2",
        "TENURE_WORKER_RESERVED_SLOTS_HIGH": "1",
        "TENURE_WORKER_COORDINATOR_ADDRESSES": addresses["coordinator"],
        "TENURE_WORKER_CHECKPOINT_ADDRESS": addresses["checkpoint"],
        "TENURE_WORKER_TOOLS_ADDRESS": addresses["tools"],
        "ANTHROPIC_BASE_URL": addresses["model"],
    }
    command = command_line("worker")
    worker = PoolWorker(queue, command, "", environment, installation.stack.layout.logs / f"{queue}.log")
    try:
        yield worker
    finally:
        worker.kill()


async def depth(installation: Installation, queue: str) -> list[dict[str, Any]]:
    response = await tenure("--json", "workers", "queues", address=installation.stack.gateway_address)
    return [one for one in response.values if one["queue"] == queue]


async def test_batch_load_leaves_the_reserved_slot_free(installation: Installation, pool: PoolWorker) -> None:
    await pool.run()
    batch = [await installation.submit("sim-long", queue=pool.name, priority=task_pb2.PRIORITY_LOW) for _ in range(3)]
    try:
        await installation.in_state(batch[0], "RUNNING")
        urgent = await installation.submit("sim-hello", queue=pool.name, priority=task_pb2.PRIORITY_HIGH)
        ended = await installation.ended(urgent)
        assert ended.state == task_pb2.TASK_STATE_SUCCEEDED
        states = [(await installation.client.get(task_id)).state for task_id in batch]
        assert states.count(task_pb2.TASK_STATE_RUNNING) == 1
        (response,) = await depth(installation, pool.name)
        assert (response["priority"], response["queued"]) == ("LOW", 2)
        assert response["oldest_queued_at"]
    finally:
        for task_id in batch:
            await installation.client.cancel(task_id, "the test is over")


async def test_a_low_task_runs_while_high_tasks_keep_coming(installation: Installation, pool: PoolWorker) -> None:
    urgent = [
        await installation.submit("sim-hello", queue=pool.name, priority=task_pb2.PRIORITY_HIGH) for _ in range(60)
    ]
    low = await installation.submit("sim-hello", queue=pool.name, priority=task_pb2.PRIORITY_LOW)
    await pool.run()  # every task is queued by now, however slowly they were submitted
    ended = await installation.ended(low)
    assert ended.state == task_pb2.TASK_STATE_SUCCEEDED
    others = [await installation.ended(task_id) for task_id in urgent]
    began_later = sum(ended.start_time.ToNanoseconds() < one.start_time.ToNanoseconds() for one in others)
    assert began_later >= 30, "it waited for nearly all of them"
