"""Plans in the ledger: an answer records one, and the offers of its tree have it, until its end."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.domain.call_plans import MAX_PLANS
from tenure.domain.errors import InvalidRequest, LimitReached, NotFound, PermissionDenied, WrongState
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2, tool_pb2
from tenure.v1 import task_service_pb2 as tasks
from tests.conformance.test_ledger_waits import approval, leave_of_a_person, say, waiting
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint

TWO = tool_pb2.CallPlan(count=2, same=["args.a"], when="args.a < 9")


async def offered_plans(replica: Checkpoint) -> dict[str, list[str]]:
    """Offers all queued tasks. Returns the plans of each."""
    request = pb.ListClaimableRequest(limit=100, tenants=[replica.tenant])
    offers = (await replica.stub.ListClaimable(request, timeout=TIMEOUT_SECONDS)).offers
    return {offer.task_id: [plan.plan_id for plan in offer.plans] for offer in offers}


async def recorded(replica: Checkpoint, task_id: str) -> list[Any]:
    entries = await replica.entries(task_id)
    return [entry for entry in entries if entry.body.WhichOneof("body") == "wait_resolution"]


async def test_answer_records_its_plan_and_offers_have_it(replica: Checkpoint) -> None:
    task = await waiting(replica, leave_of_a_person())
    other = (await replica.create()).task_id
    await say(replica, task, actor="user/ann", decision="allow", plan=TWO)
    (entry,) = await recorded(replica, task.task_id)
    plan, plan_id = entry.body.wait_resolution.plan, f"{task.task_id}/{task.wait.wait_id}"
    assert (plan.plan_id, plan.tool, plan.count, plan.approved_by) == (plan_id, "pay", 2, "user/ann")
    assert (list(plan.same_values), entry.actor) == (["1"], "user/ann")
    assert plan.end_time.seconds - plan.approve_time.seconds == 86_400
    assert await offered_plans(replica) == {task.task_id: [plan_id], other: []}


async def test_agent_may_ask_for_a_plan_of_its_tool(replica: Checkpoint) -> None:
    task = await waiting(replica, approval())
    wanted = tool_pb2.CallPlan(count=2, tool="pay")
    for decision, plan in (("deny", wanted), ("approve", tool_pb2.CallPlan(count=2))):
        with pytest.raises(InvalidRequest):
            await say(replica, task, decision=decision, plan=plan)
    await say(replica, task, decision="approve", plan=wanted)
    (entry,) = await recorded(replica, task.task_id)
    assert entry.body.wait_resolution.plan.tool == "pay"
    assert await offered_plans(replica) == {task.task_id: [f"{task.task_id}/{task.wait.wait_id}"]}


async def test_repeat_of_an_answer_adds_no_second_plan(replica: Checkpoint) -> None:
    task = await waiting(replica, leave_of_a_person())
    for _ in range(2):
        await say(replica, task, "r1", decision="edit", edited_arguments_json='{"a": 5}', plan=TWO)
    (entry,) = await recorded(replica, task.task_id)
    assert list(entry.body.wait_resolution.plan.same_values) == ["5"], "the call runs with these arguments"
    assert await replica.query("select count(*) from ledger.call_plans where root_task_id = %s", task.task_id) == [(1,)]


@pytest.mark.parametrize(
    ("wait", "said", "error"),
    [
        (leave_of_a_person(), {"decision": "deny", "plan": TWO}, InvalidRequest),
        (leave_of_a_person(), {"decision": "allow", "plan": tool_pb2.CallPlan()}, InvalidRequest),
        (leave_of_a_person(), {"decision": "allow", "plan": tool_pb2.CallPlan(count=1, same=["args.b"])}, WrongState),
        (approval(), {"decision": "approve", "call_digest": "", "plan": TWO}, InvalidRequest),
    ],
)
async def test_plan_without_an_allowed_call_is_refused(
    replica: Checkpoint, wait: Any, said: dict[str, Any], error: type[Exception]
) -> None:
    task = await waiting(replica, wait)
    with pytest.raises(error):
        await say(replica, task, **said)
    assert (await recorded(replica, task.task_id), await offered_plans(replica)) == ([], {})


async def test_tree_has_a_bounded_number_of_plans(replica: Checkpoint) -> None:
    task = await waiting(replica, leave_of_a_person())
    fill = (
        "insert into ledger.call_plans select n::text, %s, '', now() + interval '1 hour' from generate_series(1, %s) n"
    )
    await replica.query(fill, task.task_id, MAX_PLANS)
    with pytest.raises(LimitReached) as refused:
        await say(replica, task, decision="allow", plan=TWO)
    assert refused.value.reason == "TOO_MANY_PLANS"
    await replica.query("update ledger.call_plans set ends_at = now() where plan_id = '1'")
    await replica.query("delete from ledger.call_plans where plan_id <> '1'")
    await say(replica, task, decision="allow", plan=TWO)
    mine = [f"{task.task_id}/{task.wait.wait_id}"]
    assert await offered_plans(replica) == {task.task_id: mine}, "the ended one is not"


async def test_plan_is_for_the_tree_and_not_for_a_fork(replica: Checkpoint) -> None:
    task = await waiting(replica, leave_of_a_person())
    await say(replica, task, decision="allow", plan=TWO)
    child, fork = (await replica.create()).task_id, await forked(replica, task.task_id)
    await replica.query("update ledger.tasks set root_task_id = %s where task_id = %s", task.task_id, child)
    plan_id = f"{task.task_id}/{task.wait.wait_id}"
    assert await offered_plans(replica) == {task.task_id: [plan_id], child: [plan_id], fork: []}


async def end(replica: Checkpoint, task_id: str, plan_id: str, actor: str) -> tool_pb2.CountedPlan:
    request = tasks.EndCallPlanRequest(task_id=task_id, plan_id=plan_id, actor=actor, reason=f"{actor} says so")
    ended: tasks.EndCallPlanResponse = await replica.stub.EndCallPlan(request, timeout=TIMEOUT_SECONDS)
    return ended.plan


async def test_ended_plan_is_in_no_offer_and_stays_listed(replica: Checkpoint) -> None:
    task = await waiting(replica, leave_of_a_person())
    await say(replica, task, decision="allow", plan=TWO)
    other, plan_id = (await replica.create()).task_id, f"{task.task_id}/{task.wait.wait_id}"
    with pytest.raises(NotFound) as unknown:
        await end(replica, other, plan_id, "user/bob")
    assert unknown.value.reason == "PLAN_NOT_FOUND"
    ended = await end(replica, task.task_id, plan_id, "user/bob")
    assert (ended.plan.plan_id, ended.ended_by, ended.end_reason) == (plan_id, "user/bob", "user/bob says so")
    assert await offered_plans(replica) == {task.task_id: [], other: []}
    assert await end(replica, task.task_id, plan_id, "user/eve") == ended, "the first end stays"
    request = tasks.ListCallPlansRequest(task_id=task.task_id)
    assert list((await replica.stub.ListCallPlans(request, timeout=TIMEOUT_SECONDS)).plans) == [ended]
    await replica.query("update ledger.call_plans set ended_by = '' where plan_id = %s", plan_id)
    with pytest.raises(WrongState) as over:
        await end(replica, task.task_id, plan_id, "user/bob")
    assert over.value.reason == "PLAN_OVER"


async def test_only_approvers_of_its_wait_end_a_plan(replica: Checkpoint) -> None:
    policy = task_pb2.TaskPolicy(approvers=["user/ann"])
    task = await waiting(replica, leave_of_a_person(), policy=policy)
    await say(replica, task, actor="user/ann", decision="allow", plan=TWO)
    plan_id = f"{task.task_id}/{task.wait.wait_id}"
    with pytest.raises(PermissionDenied) as refused:
        await end(replica, task.task_id, plan_id, "user/bob")
    assert (refused.value.reason, refused.value.metadata["approvers"]) == ("NOT_AN_APPROVER", "user/ann")
    assert (await end(replica, task.task_id, plan_id, "user/ann")).ended_by == "user/ann"


async def forked(replica: Checkpoint, task_id: str) -> str:
    request = tasks.ForkTaskRequest(task_id=task_id, request_id=f"fork of {task_id}", actor="user/ann")
    return str((await replica.stub.ForkTask(request, timeout=TIMEOUT_SECONDS)).task.task_id)
