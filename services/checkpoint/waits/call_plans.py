"""The plans of trees: an answer adds one, the tokens of the tree have those in force, and a person ends one early."""

from __future__ import annotations

from typing import Any

from services.checkpoint.approvals.groups import APPROVALS, members_for
from services.checkpoint.commit.operator_requests import root_of
from services.checkpoint.queries import fetch_all, fetch_one
from services.checkpoint.waits.waits import Approved
from tenure.domain.approvals import refuse_identity
from tenure.domain.call_plans import MAX_PLANS
from tenure.domain.errors import LimitReached, NotFound, WrongState
from tenure.runtime.store.postgres import Connection, Pool, in_transaction, pool_connection
from tenure.v1 import task_service_pb2 as pb
from tenure.v1 import tool_pb2
from tenure.wire.call_plans import plan_to_wire


async def check_number_of_plans(connection: Connection, root_task_id: str) -> None:
    """Raises LimitReached (TOO_MANY_PLANS). The caller holds the lock of the tree's budget until it adds a plan."""
    ((count,),) = await fetch_all(connection, APPROVALS.count_plans, {"root_task_id": root_task_id})
    if count >= MAX_PLANS:
        message = f"{MAX_PLANS} plans of the task's tree are in force: answer without a plan, or end one"
        raise LimitReached(message, reason="TOO_MANY_PLANS")


async def keep_plan(connection: Connection, root_task_id: str, approved: Approved) -> None:
    """Keeps the plan of an answer for the tokens of the tree's next grants."""
    if (plan := approved.plan) is None:
        return
    packed = plan_to_wire(plan).SerializeToString()
    columns = {"plan_id": plan.plan_id, "root_task_id": root_task_id, "plan": packed, "ends_at": plan.end_time}
    await connection.execute(APPROVALS.keep_plan, {**columns, "approvers": list(approved.approvers)})


async def list_call_plans(pool: Pool, tenant: str, request: pb.ListCallPlansRequest) -> pb.ListCallPlansResponse:
    """Returns the plans of the task's tree, without what they have counted. Raises NotFound."""
    async with pool_connection(pool) as connection:
        root = await root_of(connection, tenant, request.task_id)
        rows = await fetch_all(connection, APPROVALS.list_plans, {"root_task_id": root})
    return pb.ListCallPlansResponse(plans=[_listed(*row) for row in rows])


async def end_call_plan(pool: Pool, tenant: str, request: pb.EndCallPlanRequest) -> pb.EndCallPlanResponse:
    """Ends a plan for later tokens; the first end of a plan stays. The tool service ends it for those that exist.

    Raises NotFound (PLAN_NOT_FOUND), PermissionDenied (NOT_AN_APPROVER) and WrongState (PLAN_OVER).
    """

    async def work(connection: Connection) -> pb.EndCallPlanResponse:
        root = await root_of(connection, tenant, request.task_id)
        row = await fetch_one(connection, APPROVALS.lock_plan, {"plan_id": request.plan_id, "root_task_id": root})
        if row is None:
            raise NotFound(f"the task's tree has no plan {request.plan_id}", reason="PLAN_NOT_FOUND")
        approvers, is_over, *listed = row
        members = await members_for(connection, tenant, approvers)
        if refusal := refuse_identity(approvers, members, request.actor, f"end the plan {request.plan_id}"):
            raise refusal
        plan = _listed(*listed)
        if not plan.ended_by:
            if is_over:
                raise WrongState("the time of the plan was over before: it counts no call", reason="PLAN_OVER")
            plan.ended_by, plan.end_reason = request.actor, request.reason
            columns = {"plan_id": request.plan_id, "ended_by": plan.ended_by, "end_reason": plan.end_reason}
            await connection.execute(APPROVALS.end_plan, columns)
        return pb.EndCallPlanResponse(plan=plan)

    return await in_transaction(pool, work)


def _listed(packed: Any, ended_by: str, end_reason: str) -> tool_pb2.CountedPlan:
    plan = tool_pb2.CallPlan.FromString(packed)
    return tool_pb2.CountedPlan(plan=plan, ended_by=ended_by, end_reason=end_reason)
