"""A rule asks about a call: the worker turns it into the wait for an approval, and the approval reaches the fence."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tenure.domain import entries as facts
from tenure.domain.states import TaskState
from tenure.domain.task import AgentSpec, TaskSpec
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub
from tenure.wire.common import state_name
from tenure.wire.task import spec_to_wire
from tests.support.fix_worker import WorkerBench
from tests.support.patience import CALL_SECONDS
from tests.support.tool_rules import ASK, rule


@asynccontextmanager
async def asking_about(bench: WorkerBench, label: str) -> AsyncIterator[None]:
    """A rule that asks about the calls of tasks with this label."""
    when = f"has(labels.run) && labels.run == '{label}'"
    made = rule(label, ASK, when, tool="append_record*", reason="Money moves.")
    async with open_channel(bench.stack.services["tools"].address) as channel:
        stub: Any = ToolServiceStub(channel)
        await stub.SetToolRule(admin_pb.SetToolRuleRequest(tool_rule=made, actor="user/ann"), timeout=CALL_SECONDS)
        yield
        await stub.DeleteToolRule(admin_pb.DeleteToolRuleRequest(name=label), timeout=CALL_SECONDS)


async def test_a_call_that_a_rule_asks_about_waits(bench: WorkerBench) -> None:
    label = f"r{uuid.uuid4().hex[:8]}"
    async with asking_about(bench, label):
        await bench.start_worker()
        agent = AgentSpec(model="sim-worker-two-calls")
        spec = TaskSpec(f"record-{uuid.uuid4().hex}", agent=agent, queue=bench.queue, labels=(("run", label),))
        request = pb.CreateTaskRequest(request_id=str(uuid.uuid4()), spec=spec_to_wire(spec))
        task_id = str((await bench.ledger.CreateTask(request, timeout=CALL_SECONDS)).task.task_id)
        task = await bench.in_state(task_id, TaskState.WAITING_USER)
        assert (task.reason, len(task.wait.calls)) == ("TOOL_NEEDS_APPROVAL", 2)
        assert f"The rule {label} asks a person about this call. Money moves." in task.wait.context
        await bench.answer(task, "allow")  # the first call runs; the other one is asked about again
        again = await bench.in_state(task_id, TaskState.WAITING_USER)
        assert (again.wait.call_id, list(again.wait.calls)) == ("1.1", [])
        await bench.answer(again, "deny")
        ended = await bench.ended(task_id)
    assert state_name(ended.state) == TaskState.SUCCEEDED, ended.message
    outcomes = {body.call_id: body.outcome for body in await bench.bodies(task_id, facts.ToolOutcome)}
    assert (outcomes["1.0"].status, outcomes["1.1"].status) == ("SUCCEEDED", "NOT_ALLOWED")
