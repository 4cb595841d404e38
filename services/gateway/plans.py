"""Plans: the ledger has those of a tree, and the tool service what they have counted.

The tool service also compiles the expression of a plan, before the ledger records it.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.gateway.peers import Peers, with_retries
from tenure.domain.errors import FieldViolation, InvalidRequest
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import task_service_pb2 as api
from tenure.v1 import tool_pb2, tool_service_pb2

_NAME = "plan"


async def check_expression(peers: Peers, plan: tool_pb2.CallPlan) -> None:
    """Raises InvalidRequest for an expression with a fault, and Unavailable."""
    rule = tool_pb2.ToolRule(name=_NAME, tool=plan.tool or "*", when=plan.when, verdict=tool_pb2.RULE_VERDICT_ALLOW)
    tried = admin.TryToolRuleRequest(tool_rule=rule)
    tried.since_time.GetCurrentTime()  # of no calls: only the expression is of interest
    try:
        await with_retries(lambda: peers.tools.TryToolRule(tried))
    except InvalidRequest as refused:
        problems = [one for one in refused.violations if one.field == "tool_rule.when"]
        raise InvalidRequest(violations=[FieldViolation("plan.when", one.description) for one in problems]) from refused


async def list_call_plans(peers: Peers, request: api.ListCallPlansRequest) -> api.ListCallPlansResponse:
    """Returns the plans of a task's tree with what each has left. Raises NotFound and Unavailable."""
    listed = await with_retries(lambda: peers.checkpoint.ListCallPlans(request))
    return api.ListCallPlansResponse(plans=await _counted(peers, listed.plans))


async def end_call_plan(peers: Peers, request: api.EndCallPlanRequest) -> api.EndCallPlanResponse:
    """Ends a plan, first for the tokens to come, and then, under the lock of its counter, for all.

    Raises as the ledger does, and Unavailable: then a repeat completes it.
    """
    recorded = await with_retries(lambda: peers.checkpoint.EndCallPlan(request))
    (ended,) = await _counted(peers, [recorded.plan], end=True)
    return api.EndCallPlanResponse(plan=ended)


async def _counted(
    peers: Peers, plans: Sequence[tool_pb2.CountedPlan], *, end: bool = False
) -> Sequence[tool_pb2.CountedPlan]:
    """Adds what the plans have counted."""
    request = tool_service_pb2.CountPlannedCallsRequest(plans=[one.plan for one in plans], end=end)
    counted = (await with_retries(lambda: peers.tools.CountPlannedCalls(request))).plans if plans else ()
    for plan, recorded in zip(counted, plans, strict=True):
        plan.ended_by, plan.end_reason = recorded.ended_by, recorded.end_reason
    return counted
