"""The example of a tree of agents: sub-agents answer, and all of them spend the budget of the function's task."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from devstack.child_process import ChildProcess
from tenure.serve import command_line
from tenure.v1 import task_pb2
from tests.end_to_end.installation import Installation

pytestmark = [pytest.mark.server, pytest.mark.nightly]
REPOSITORY: Final = Path(__file__).parents[2]
MAX_TOKENS: Final = 50_000


class FunctionWorker(ChildProcess):
    """A worker with the example's function. It is there once it listens."""

    async def serves(self) -> bool:
        return '"listening"' in self.log()


@pytest.fixture
async def function_worker(installation: Installation) -> AsyncIterator[FunctionWorker]:
    """On the queue of the installation's own workers, which drive the sub-agents."""
    addresses = installation.stack.addresses()
    environment = {
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'examples'}",
        "TENURE_WORKER_LOOPS": "control",
        "TENURE_WORKER_CONTROL_MODULES": "research_tree",
        "TENURE_WORKER_COORDINATOR_ADDRESS": addresses["coordinator"],
        "TENURE_WORKER_CHECKPOINT_ADDRESS": addresses["checkpoint"],
        "TENURE_WORKER_TOOLS_ADDRESS": addresses["tools"],
    }
    name = f"research-{uuid.uuid4().hex[:8]}"
    command = command_line("worker")
    worker = FunctionWorker(name, command, "", environment, installation.stack.layout.logs / f"{name}.log")
    worker.start()
    await worker.wait_ready()
    yield worker
    await worker.drain()


async def test_sub_agents_answer_and_share_the_budget(
    installation: Installation, function_worker: FunctionWorker
) -> None:
    topics = ["tea", "milk", "sugar"]
    control = task_pb2.ControlWork(function="research", input_json=json.dumps({"topics": topics}))
    limits = task_pb2.Limits(max_tokens=MAX_TOKENS)
    task_id = await installation.submit("sim-hello", "", control=control, limits=limits)
    task = await installation.ended(task_id)
    assert task.state == task_pb2.TASK_STATE_SUCCEEDED, function_worker.log()
    result = json.loads(task.result_json or task.result)
    assert (sorted(result["found"]), result["missing"]) == (sorted(topics), [])
    assert 0 < task.budget.used_tokens <= MAX_TOKENS
    assert task.budget.reserved_tokens == 0
