"""What the commands say of deadlines and costs, after the services that know it were killed."""

from __future__ import annotations

import re
import uuid

import pytest

from tenure.cli.exit_codes import Exit
from tenure.client import Client
from tenure.v1 import task_pb2
from tenure.wire.common import duration, moment
from tests.end_to_end.command import Done, tenure
from tests.end_to_end.installation import Installation

pytestmark = pytest.mark.faults


async def test_deadlines_and_costs_are_reported_after_a_kill(own_installation: Installation) -> None:
    """The deadline of a task stands still while it waits for a person; the simulator's calls cost no money."""
    stack, name = own_installation.stack, f"t-{uuid.uuid4().hex[:12]}"

    async def said(*arguments: str) -> str:
        done: Done = await tenure("--tenant", name, *arguments, address=stack.gateway_address)
        assert done.code == Exit.OK, done.err
        return " ".join(done.out.split())

    async with Client(stack.gateway_address, tenant=name) as client:
        theirs = Installation(stack, client)
        task_id = await theirs.submit("sim-question", limits=task_pb2.Limits(timeout=duration(600)))
        waiting = await theirs.in_state(task_id, "WAITING_USER")
        for service in ("checkpoint", "gateway"):
            stack.services[service].kill()
            await stack.services[service].restart()
        explained = await said("explain", task_id)
        assert re.search("deadline stands still while it waits for a person; then (9|10) min are left", explained)
        assert "simulated" in await said("tenants", "usage")
        assert "$" not in await said("tenants", "usage", "--by", "model")
        resumed = await client.resume(task_id, waiting.wait.wait_id, reply="blue")
        assert moment(resumed.deadline_time) > moment(waiting.deadline_time), "moved by the time of the wait"
        assert (await theirs.ended(task_id)).state == task_pb2.TASK_STATE_SUCCEEDED
