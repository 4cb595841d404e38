"""A plan reaches the fence: the worker sends its calls without asking, and asks again when the plan is used up."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tenure.domain import entries as facts
from tenure.domain.states import TaskState
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import tool_pb2
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub
from tenure.wire.common import state_name
from tests.conformance.test_parallel_approvals import begin
from tests.support.fix_worker import WorkerBench
from tests.support.patience import CALL_SECONDS
from tests.support.sweeps import first


async def plan_ids(bench: WorkerBench, task_id: str) -> dict[str, str]:
    async with open_channel(bench.stack.services["tools"].address) as channel:
        stub: Any = ToolServiceStub(channel)
        calls = (await stub.ListCalls(admin_pb.ListCallsRequest(task_id=task_id), timeout=CALL_SECONDS)).calls
        return {call.record.call_id: call.plan_id for call in calls}


@pytest.mark.parametrize("failpoints", first(["worker.after_execute=2#kill9", ""]))
async def test_later_call_runs_by_the_plan_also_after_a_kill(bench: WorkerBench, failpoints: str) -> None:
    await bench.start_worker(failpoints=failpoints)
    task = await begin(bench)
    plan = tool_pb2.CallPlan(count=1, same=["args.line"])
    said = pb.WaitAnswer(wait_id=task.wait.wait_id, call_digest=task.wait.call_digest, decision="allow", plan=plan)
    await bench._say(task.task_id, wait_answer=said)
    if failpoints:
        await bench.start_worker()
    ended = await bench.ended(task.task_id)
    assert state_name(ended.state) == TaskState.SUCCEEDED, ended.message
    outcomes = {body.call_id: body.outcome.status for body in await bench.bodies(task.task_id, facts.ToolOutcome)}
    assert outcomes == {"1.0": "SUCCEEDED", "1.1": "SUCCEEDED"}
    assert len(await bench.bodies(task.task_id, facts.WaitResolution)) == 1, "nobody was asked again"
    assert await plan_ids(bench, task.task_id) == {"1.0": "", "1.1": f"{task.task_id}/{task.wait.wait_id}"}


async def test_call_beyond_the_plan_is_asked_about(bench: WorkerBench) -> None:
    await bench.start_worker()
    task = await begin(bench)
    plan = tool_pb2.CallPlan(count=1, when=f"args.line == '{uuid.uuid4().hex}'")
    said = pb.WaitAnswer(wait_id=task.wait.wait_id, call_digest=task.wait.call_digest, decision="allow", plan=plan)
    await bench._say(task.task_id, wait_answer=said)
    await bench.reached(task.task_id, facts.ToolOutcome)
    again = await bench.in_state(task.task_id, TaskState.WAITING_USER)
    assert again.wait.call_id == "1.1"
    assert again.wait.context == "The task asks a person about each call of append_record_unsafe."
    await bench.answer(again, "deny")
    ended = await bench.ended(task.task_id)
    assert state_name(ended.state) == TaskState.SUCCEEDED, ended.message
