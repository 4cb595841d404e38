"""Checks the plan of an answer: the tool service compiles its expression, before the ledger records the plan."""

from __future__ import annotations

from services.gateway.peers import Peers, with_retries
from tenure.domain.errors import FieldViolation, InvalidRequest
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import tool_pb2

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
