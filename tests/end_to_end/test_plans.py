"""A plan from each surface: the later call runs unasked, and ledger, call log and receipt say who approved it."""

from __future__ import annotations

import json
import uuid
from typing import Any

import httpx2
import pytest

from tenure import CallPlan, Client, InvalidRequest, TaskWait, WaitResolutionEvent
from tenure.runtime.http.outbound_http import http_tls_context
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation
from tests.end_to_end.test_sub_agents import tree_of
from tests.support.patience import CALL_SECONDS
from tests.support.sweeps import first

pytestmark = pytest.mark.server
UNSAFE = "append_record_unsafe"


async def by_python(task: Any, wait: TaskWait, _installation: Installation) -> None:
    with pytest.raises(InvalidRequest, match=r"plan\.when"):
        await task.approve(wait, plan=CallPlan(count=1, when="args.line = 1"))
    await task.approve(wait, plan=CallPlan(count=2, same=("args.file",)))


async def by_command(task: Any, wait: TaskWait, installation: Installation) -> None:
    options = ("--approve", "--wait", wait.wait_id, "--plan", "2", "--plan-same", "args.file", "--plan-for", "2h")
    done = await tenure("resume", task.id, *options, address=installation.stack.gateway_address)
    assert done.code == 0, done.err


async def by_http(task: Any, wait: TaskWait, installation: Installation) -> None:
    body = {"wait_id": wait.wait_id, "decision": "allow", "call_digest": wait.call_digest}
    plan = {"count": 2, "same": ["args.file"]}
    url = f"{installation.stack.http_url}/v1/tasks/{task.id}/resume"
    async with httpx2.AsyncClient(verify=http_tls_context(), timeout=CALL_SECONDS, trust_env=False) as http:
        sent = await http.post(url, json={**body, "plan": plan})
    assert sent.status_code == 200, sent.text


@pytest.mark.parametrize("approve", first([by_http, by_python, by_command]))
async def test_later_call_runs_by_the_plan_of_an_approval(installation: Installation, approve: Any) -> None:
    address = installation.stack.gateway_address
    async with Client(address) as client:
        task = await client.submit(uuid.uuid4().hex, model="sim-e2e-leave", approve_tools=[UNSAFE])
        waits = list[str]()
        answers = list[WaitResolutionEvent]()
        async for event in task.events():
            if isinstance(event, WaitResolutionEvent):
                answers.append(event)
            wait = getattr(event, "wait", None)
            if wait is not None and wait.wait_id not in waits:
                waits.append(wait.wait_id)
                await approve(task, wait, installation)
        await task.result()
        assert (len(waits), len(answers)) == (1, 1), "the later calls were not asked about"
        plan = answers[0].plan
        assert plan is not None
        assert (plan.plan_id, plan.tool, plan.count) == (f"{task.id}/{waits[0]}", UNSAFE, 2)
        receipts = [json.loads(line)["receipt"] for line in await task.receipts() if "receipt" in json.loads(line)]
    approvals = [receipt["ledger"]["approval"] for receipt in receipts]
    assert [approval.get("plan", "") for approval in approvals] == ["", plan.plan_id, plan.plan_id]
    assert {(approval["wait"], approval["actor"]) for approval in approvals} == {(waits[0], plan.approved_by)}
    audit = await tenure("--json", "admin", "audit", "list", address=address)
    assert [one for one in audit.values if task.id in one["target"] and "plan.count=2" in one["target"]], audit.out
    log = await tenure("watch", task.id, address=address)
    assert f"and without asking up to 2 calls of {UNSAFE}, args.file" in log.out


async def test_calls_of_sub_agents_run_by_the_plan_of_their_root(installation: Installation) -> None:
    address = installation.stack.gateway_address
    async with Client(address) as client:
        task = await client.submit(f"asking-tree {uuid.uuid4().hex}", model="sim-by-goal", approve_tools=[UNSAFE])
        wait = await anext(wait async for event in task.events() if (wait := getattr(event, "wait", None)) is not None)
        await task.approve(wait, plan=CallPlan(count=2, same=("args.file",)))
        await task.result()
    used = [
        (one.depth, call.plan_id)
        for one in await tree_of(installation, task.id)
        async for page in installation.client.calls(one.task_id)
        for call in page.calls
        if call.record.tool == UNSAFE
    ]
    plan_id = f"{task.id}/{wait.wait_id}"
    assert used == [(0, ""), (1, plan_id), (1, plan_id)]


async def test_plan_is_shown_and_ended_from_each_surface(installation: Installation) -> None:
    address = installation.stack.gateway_address
    async with Client(address) as client:
        task = await client.submit(uuid.uuid4().hex, model="sim-e2e-leave", approve_tools=[UNSAFE])
        await installation.in_state(task.id, "WAITING_USER")
        wait = (await task.refresh()).wait
        assert wait is not None
        await task.approve(wait, plan=CallPlan(count=5, when="args.file == ''", sum_of="args.line", limit="9.50"))
        shown = await tenure("tasks", "plans", task.id, address=address)
        assert f"/{wait.wait_id}" in shown.out, shown.err
        without_reason = await tenure("tasks", "plans", task.id, "--end", wait.wait_id, address=address)
        assert without_reason.code == 2
        end = ("--end", wait.wait_id, "--reason", "enough")
        ended = await tenure("--json", "tasks", "plans", task.id, *end, address=address)
        assert ended.code == 0, ended.err
        plan = ended.values[0]
        assert (plan["calls"], plan["calls_left"], plan["total_left"], plan["end_reason"]) == (0, 0, "0", "enough")
        assert plan["ended_by"] == plan["plan"]["approved_by"]
        url = f"{installation.stack.http_url}/v1/tasks/{task.id}/plans"
        async with httpx2.AsyncClient(verify=http_tls_context(), timeout=CALL_SECONDS, trust_env=False) as http:
            again = await http.post(f"{url}/end", json={"plan_id": plan["plan"]["plan_id"], "reason": "again"})
            assert (again.status_code, again.json()) == (200, plan), "a repeat gets the first answer"
            assert (await http.get(url)).json() == {"plans": [plan]}
        await task.cancel()
    audit = await tenure("--json", "admin", "audit", "list", "--method", "TaskService/EndCallPlan", address=address)
    reasons = [one["reason"] for one in audit.values if plan["plan"]["plan_id"] in one["target"]]
    assert reasons == ["again", "enough"], audit.out
