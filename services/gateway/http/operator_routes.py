"""The routes of operators: acts on one task, agents, tool sources, leases, tenants, keys and the repair of webhooks."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from services.gateway.http import answers
from services.gateway.http import operator_requests as req
from services.gateway.http import requests as common
from services.gateway.http.api_route import route_of
from services.gateway.http.call import HttpCall
from tenure.domain.errors import InvalidRequest
from tenure.domain.quotas import DEFAULT_POLICY, QuotaKind
from tenure.sdk import agent_info
from tenure.sdk import operations_info as info
from tenure.sdk.operations_from_wire import agent_registration
from tenure.sdk.option_values import json_text, nano_usd, nano_usd_from_0
from tenure.sdk.submit_request import definition_of
from tenure.sdk.task_info import TaskInfo
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import agent_service_pb2 as agent_pb
from tenure.v1 import task_pb2, tool_pb2
from tenure.v1 import tenant_service_pb2 as tenant_pb
from tenure.wire import tool_rules  # noqa: F401  its enum
from tenure.wire.codec import pair, writer
from tenure.wire.common import EnumMap
from tenure.wire.tenant_service import KINDS, POLICIES

_TASK: Final = "/v1/tasks/{task_id}"
_WEBHOOK: Final = "/v1/webhooks/{webhook}"
_AGENT: Final = "/v1/agents/{name}"

EnumMap(req.AgingView, dict(task_pb2.AgingView.items()), "AGING_VIEW", req.AgingView.OLDEST)
pair(req.RuleBoundsBody, tool_pb2.RuleBounds)
_rule = writer(req.ToolRuleBody, tool_pb2.ToolRule, skip="version update_time changed_by")
_seen_tool = writer(req.SeenToolBody, tool_pb2.SeenTool)


async def accept_tools(call: HttpCall, _query: common.NoQuery, body: req.AcceptToolsBody) -> Any:
    request = admin.AcceptToolsRequest(name=call.path("name"), tools=map(_seen_tool, body.tools))
    await call.one(call.stubs.admin.AcceptTools, request)
    return answers.AcceptedTools(request.name, tuple(tool.name for tool in body.tools))


async def set_tool_rule(call: HttpCall, _query: common.NoQuery, body: req.ToolRuleBody) -> Any:
    answer = await call.one(call.stubs.admin.SetToolRule, admin.SetToolRuleRequest(tool_rule=_rule(body)))
    return info.READERS[tool_pb2.ToolRule](answer.tool_rule)


async def register_agent(call: HttpCall, _query: common.NoQuery, body: req.RegisterAgentBody) -> Any:
    schema_json = "" if body.result is None else json_text("result", body.result)
    definition = definition_of(body.options, schema_json)
    request = agent_pb.RegisterAgentRequest(name=body.name, definition=definition, make_current=body.make_current)
    return agent_registration(await call.one(call.stubs.agents.RegisterAgent, request))


def _money(amount: Decimal | None) -> int:
    return nano_usd("extra_cost", amount)


def _quota(quota: req.QuotaBody) -> tenant_pb.Quota:
    is_money = quota.kind is QuotaKind.MONEY_PER_DAY
    if (quota.limit if is_money else quota.limit_usd) is not None:
        message = f"{quota.kind} has {'limit_usd' if is_money else 'limit'}"
        raise InvalidRequest(violations=[("quotas", message)])
    limit = quota.limit if quota.limit_usd is None else nano_usd_from_0("quotas", quota.limit_usd)
    return tenant_pb.Quota(
        kind=KINDS.to_wire(quota.kind),
        most=limit or 0,
        policy=POLICIES.to_wire(quota.policy or DEFAULT_POLICY[quota.kind]),
        no_limit=limit is None,
    )


_WITH_MONEY: Final[dict[str, Any]] = {
    "rename": {"extra_cost": "extra_nano_usd"},
    "convert": {"extra_cost": (_money, None)},
}

OPERATOR_ROUTES: Final = (
    route_of(
        *("POST", f"{_TASK}/requeue", "AdminService.RequeueTask", TaskInfo),
        "Begin another attempt of a task that has ended",
        body=req.RequeueBody,
        with_=_WITH_MONEY,
    ),
    route_of(
        *("POST", f"{_TASK}/grant-budget", "AdminService.GrantBudget", TaskInfo),
        "Raise the cap of the budget of a task's tree",
        body=req.GrantBudgetBody,
        with_=_WITH_MONEY,
    ),
    route_of(
        *("POST", f"{_TASK}/close-out", "AdminService.CloseOutTask", TaskInfo),
        "End a task",
        body=req.CloseOutBody,
    ),
    route_of(
        *("POST", f"{_TASK}/begin-wait", "AdminService.BeginWait", TaskInfo),
        "Let a task wait for an operator",
        body=req.BeginWaitBody,
    ),
    route_of(
        *("POST", f"{_TASK}/transfer", "AdminService.TransferTask", answers.Transferred),
        "Give a task to another worker",
        body=req.TransferBody,
    ),
    route_of(
        *("GET", "/v1/aging", "AdminService.ListAgingTasks", answers.AgingPage),
        "List the tasks that have not ended, the oldest first",
        query=req.AgingQuery,
        with_={"rename": {"state": "states"}},
    ),
    route_of(
        *("POST", "/v1/prune", "AdminService.PruneTasks", answers.Pruned),
        "Delete ended tasks for good",
        body=req.PruneBody,
        with_={"skip": "task_id"},
    ),
    route_of(
        *("DELETE", _TASK, "AdminService.PruneTasks", answers.Pruned),
        "Delete an ended task for good",
        query=req.PruneQuery,
        with_={"skip": "ended_before limit"},
        name="prune_task",
    ),
    route_of(
        *("POST", "/v1/stops", "AdminService.BeginStop", info.StopBegun),
        "Stop a tenant, an agent, a queue, tools or everything",
        body=req.StopBody,
    ),
    route_of(
        *("POST", "/v1/stops/end", "AdminService.EndStop", info.StopEnded),
        "End a stop",
        body=req.StopBody,
    ),
    route_of(
        *("GET", "/v1/stops", "AdminService.ListStops", answers.Stops),
        "List the stops in force",
        with_={"leaves_out": "epoch late_readers"},
    ),
    route_of("GET", "/v1/tool-sources", "AdminService.ListToolSources", info.ToolSources, "List tool sources"),
    route_of(
        *("POST", "/v1/tool-sources/{name}/accept", accept_tools, answers.AcceptedTools),
        "Offer held tools from now on",
        body=req.AcceptToolsBody,
        group="operations",
    ),
    route_of(
        *("POST", "/v1/tool-rules", set_tool_rule, info.ToolRuleInfo),
        "Create a rule on tool calls, or replace it",
        body=req.ToolRuleBody,
        group="operations",
    ),
    route_of("GET", "/v1/tool-rules", "AdminService.ListToolRules", info.ToolRules, "List the rules on tool calls"),
    route_of(
        *("DELETE", "/v1/tool-rules/{name}", "AdminService.DeleteToolRule", answers.Deleted),
        "Delete a rule on tool calls, and what it has counted",
    ),
    route_of(
        *("POST", "/v1/tool-rules/try", "AdminService.TryToolRule", info.TriedRule),
        "Decide recorded calls by a rule, without effect",
        body=req.TryToolRuleBody,
        with_={
            "rename": {"since": "since_time"},
            "convert": {"tool_rule": (lambda rule: None if rule is None else _rule(rule), None)},
        },
    ),
    route_of(
        *("POST", "/v1/agents", register_agent, agent_info.AgentRegistration),
        "Register an agent without code: a new revision, unless it has the same one",
        body=req.RegisterAgentBody,
        group="agents",
    ),
    route_of("GET", "/v1/agents", "AgentService.ListAgents", answers.AgentPage, "List agents", query=common.Page),
    route_of(
        *("GET", _AGENT, "AgentService.GetAgent", agent_info.AgentDetails),
        "Read an agent with its revisions",
        query=req.AgentQuery,
    ),
    route_of(
        *("POST", f"{_AGENT}/ramp", "AgentService.RampAgent", agent_info.AgentInfo),
        "Give a revision a share of the new tasks",
        body=req.RampBody,
        with_={
            "rename": {"percent": "basis_points"},
            "convert": {"percent": (lambda percent: round(percent * 100), None)},
        },
    ),
    route_of(
        *("POST", f"{_AGENT}/retire", "AgentService.RetireAgentRevision", agent_info.AgentRevisionInfo),
        "Give a revision no new task",
        body=req.RetireBody,
    ),
    route_of("GET", "/v1/leases/{resource:path}", "LeaseService.GetLease", info.LeaseInfo, "Read a named lease"),
    route_of(
        *("PATCH", "/v1/tenants/{name}", "TenantService.UpdateTenantLimits", info.TenantInfo),
        "Change the quotas of a tenant",
        body=req.LimitsBody,
        with_={"rename": {"name": "tenant"}, "convert": {"quotas": (_quota, None)}},
    ),
    route_of(
        *("POST", "/v1/api-keys", "ApiKeyService.CreateApiKey", info.NewApiKey),
        "Create an API key; its secret is in this answer only",
        body=req.ApiKeyBody,
        with_={"rename": {"expires_at": "expire_time"}},
        status=201,
    ),
    route_of(
        *("GET", "/v1/api-keys", "ApiKeyService.ListApiKeys", answers.ApiKeyPage),
        "List API keys",
        query=req.ApiKeysQuery,
    ),
    route_of("DELETE", "/v1/api-keys/{key_id}", "ApiKeyService.RevokeApiKey", info.ApiKeyInfo, "Revoke an API key"),
    route_of(
        *("POST", "/v1/approver-groups", "ApprovalService.SetApproverGroup", info.ApproverGroupInfo),
        "Create a group of approvers, or replace its members",
        body=req.GroupBody,
    ),
    route_of(
        *("GET", "/v1/approver-groups", "ApprovalService.ListApproverGroups", answers.ApproverGroups),
        "List the groups of approvers",
    ),
    route_of(
        *("DELETE", "/v1/approver-groups/{name}", "ApprovalService.DeleteApproverGroup", answers.Deleted),
        "Delete a group of approvers",
    ),
    route_of(
        *("POST", f"{_WEBHOOK}/rotate", "WebhookService.RotateWebhookSecret", info.WebhookSecret),
        "Replace the secret of a webhook; the new one is in this answer only",
        body=req.RotateBody,
    ),
    route_of(
        *("POST", f"{_WEBHOOK}/test", "WebhookService.TestWebhook", info.DeliveryInfo), "Send a test event to a webhook"
    ),
    route_of(
        *("POST", f"{_WEBHOOK}/discard", "WebhookService.DiscardWebhookDeliveries", answers.Discarded),
        "Discard dead deliveries",
        body=common.ReplayBody,
        name="discard_deliveries",
    ),
    route_of("DELETE", _WEBHOOK, "WebhookService.DeleteWebhook", answers.Deleted, "Delete a webhook"),
)
