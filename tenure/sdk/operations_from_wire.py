"""Converts messages about leases, schedules, webhooks, tenants, keys, agents, workers and tools to dataclasses."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from google.protobuf.message import Message

from tenure.domain.agents import needs_of_builds
from tenure.sdk import agent_info as agents
from tenure.sdk import operations_info as info
from tenure.sdk.from_wire import public
from tenure.sdk.json_shape import PublicValue
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import agent_service_pb2 as agent_pb
from tenure.v1 import api_key_service_pb2 as api_key_pb
from tenure.v1 import approval_service_pb2 as approval_pb
from tenure.v1 import audit_service_pb2 as audit_pb
from tenure.v1 import lease_service_pb2, task_pb2, token_pb2, tool_pb2
from tenure.v1 import schedule_service_pb2 as schedule_pb
from tenure.v1 import tenant_service_pb2 as tenant_pb
from tenure.v1 import webhook_service_pb2 as webhook_pb
from tenure.wire.codec import dollars
from tenure.wire.common import moment

# Leases.

lease_info = public(
    info.LeaseInfo,
    lease_service_pb2.Lease,
    given={"token": lambda lease: b64encode(lease.token.SerializeToString()).decode()},
)
signing_key_info = public(info.SigningKeyInfo, lease_service_pb2.SigningKey)


def lease_event_info(event: lease_service_pb2.LeaseEvent) -> info.LeaseEventInfo:
    is_held = event.HasField("held")
    lease = lease_info(event.held if is_held else event.ended)
    return info.LeaseEventInfo(kind="HELD" if is_held else "ENDED", revision=event.revision, lease=lease)


# Schedules.

public(
    info.TaskTemplate,
    task_pb2.TaskSpec,
    within=("agent",),
    rename={"function": "control", "agent_revision": "agent_pin.revision"},
    skip="source start_time context_window_tokens",
)
schedule_info = public(
    info.ScheduleInfo,
    schedule_pb.Schedule,
    rename={"task": "spec", "catch_up_seconds": "catch_up_window", "paused_by": "pause_actor"},
)
public(info.ScheduleRunInfo, schedule_pb.ScheduleRun)
schedule_with_runs = public(info.ScheduleWithRuns, schedule_pb.GetScheduleResponse)

# Webhooks.

public(
    info.WebhookFilter,
    task_pb2.TaskFilter,
    skip="root_task_id forked_from_task_id source output reasons agent agent_revision created_since ended_since "
    "task_ids",
)
public(info.WebhookGapInfo, webhook_pb.WebhookGap, skip="from_cursor to_cursor")
webhook_info = public(info.WebhookInfo, webhook_pb.Webhook, rename={"paused_by": "pause_actor"})
delivery_info = public(info.DeliveryInfo, webhook_pb.WebhookDelivery)

# Tenants and keys.


def _is_money(use: tenant_pb.QuotaUse) -> bool:
    return use.quota.kind == tenant_pb.QUOTA_KIND_MONEY_PER_DAY


public(
    info.QuotaInfo,
    tenant_pb.QuotaUse,
    within=("quota",),
    rename={"free_in_seconds": "room_after"},
    given={
        "limit": lambda use: None if _is_money(use) or use.quota.no_limit else use.quota.most,
        "used": lambda use: None if _is_money(use) else use.used,
        "limit_usd": lambda use: dollars(use.quota.most) if _is_money(use) and not use.quota.no_limit else None,
        "used_usd": lambda use: dollars(use.used) if _is_money(use) else None,
    },
    skip="most no_limit",
)
tenant_info = public(info.TenantInfo, tenant_pb.Tenant, rename={"changed_by": "actor"})
_usage_info = public(info.UsageInfo, tenant_pb.UsageSum, given={"tenant": lambda _: ""})
api_key_info = public(info.ApiKeyInfo, api_key_pb.ApiKey, rename={"created_by": "creator", "expires_at": "expire_time"})
approver_group_info = public(info.ApproverGroupInfo, approval_pb.ApproverGroup, rename={"updated_by": "actor"})
audit_record_info = public(info.AuditRecordInfo, audit_pb.AuditRecord, given={"hash": lambda record: record.hash.hex()})


def usage_info(tenant: str, billed: tenant_pb.UsageSum) -> info.UsageInfo:
    return replace(_usage_info(billed), tenant=tenant)


# Agents and their revisions.

agent_info = public(
    agents.AgentInfo,
    agent_pb.Agent,
    rename={"updated_by": "actor"},
    given={"ramp_percent": lambda agent: agent.ramp_basis_points / 100},
    skip="ramp_basis_points",
)
public(agents.AgentToolInfo, agent_pb.AgentTool)
public(
    agents.AgentDefinitionInfo,
    agent_pb.AgentDefinition,
    within=("agent",),
    rename={"allowed_tools": "agent.tools"},
    skip="loop",
)


def _registered_at(build: agent_pb.AgentBuild) -> datetime | None:
    return moment(build.register_time) if build.HasField("register_time") else None


agent_revision_info = public(
    agents.AgentRevisionInfo,
    agent_pb.AgentRevision,
    rename={"created_by": "creator"},
    given={"builds": lambda read: {each.build: _registered_at(each) for each in read.builds}},
)
agent_registration = public(agents.AgentRegistration, agent_pb.RegisterAgentResponse)


def agent_details(read: agent_pb.GetAgentResponse) -> agents.AgentDetails:
    needed = needs_of_builds(
        {each.revision: (each.open_tasks, tuple(build.build for build in each.builds)) for each in read.revisions}
    )
    return agents.AgentDetails(
        agent_info(read.agent),
        tuple(agent_revision_info(revision) for revision in read.revisions),
        tuple(agents.BuildInfo(need.build, need.open_tasks, need.only_here) for need in needed),
    )


# Workers.

worker_info = public(
    info.WorkerInfo,
    admin_pb.Worker,
    rename={"held_tasks": "claim_count", "coordinator": "coordinator_id"},
    skip="session_id",
)
public(info.RenewalsInfo, admin_pb.Renewals)
claim_info = public(info.ClaimInfo, admin_pb.Claim, rename={"worker": "worker_id"}, skip="session_id")
queue_info = public(info.QueueInfo, task_pb2.QueueDepth)
_refused_write_info = public(
    info.RefusedWriteInfo, token_pb2.RefusedWrite, rename={"worker": "holder"}, given={"fence": lambda _: ""}
)
aging_task_info = public(
    info.AgingTaskInfo,
    admin_pb.ListAgingTasksResponse.Aging,
    within=("task",),
    rename={"worker": "task.owner", "remaining_seconds": "lease_remaining"},
)


def refused_write_info(fence: str, write: token_pb2.RefusedWrite) -> info.RefusedWriteInfo:
    return replace(_refused_write_info(write), fence=fence)


# Tools.

tool_info = public(info.ToolInfo, tool_pb2.OfferedTool, within=("definition",))
public(info.HeldToolInfo, tool_pb2.HeldTool)
public(info.ToolSourceInfo, tool_pb2.ToolSource, rename={"tool_count": "tools"})
in_doubt_call_info = public(
    info.InDoubtCallInfo,
    admin_pb.ListInDoubtCallsResponse.Listed,
    within=("call",),
    rename={"in_doubt_at": "call.doubt_time"},
)


task_group_info = public(info.TaskGroupInfo, admin_pb.TaskGroup)
act_outcome_info = public(info.ActOutcomeInfo, admin_pb.ActOnTasksResponse.Outcome)

OPERATIONS: Final[dict[type[Message], Callable[[Any], PublicValue]]] = {
    lease_service_pb2.Lease: lease_info,
    lease_service_pb2.LeaseEvent: lease_event_info,
    lease_service_pb2.SigningKey: signing_key_info,
    schedule_pb.Schedule: schedule_info,
    schedule_pb.GetScheduleResponse: schedule_with_runs,
    webhook_pb.Webhook: webhook_info,
    webhook_pb.CreateWebhookResponse: public(info.WebhookSecret, webhook_pb.CreateWebhookResponse),
    webhook_pb.RotateWebhookSecretResponse: public(info.WebhookSecret, webhook_pb.RotateWebhookSecretResponse),
    webhook_pb.WebhookDelivery: delivery_info,
    tenant_pb.Tenant: tenant_info,
    api_key_pb.ApiKey: api_key_info,
    api_key_pb.CreateApiKeyResponse: public(info.NewApiKey, api_key_pb.CreateApiKeyResponse),
    approval_pb.ApproverGroup: approver_group_info,
    audit_pb.AuditRecord: audit_record_info,
    agent_pb.Agent: agent_info,
    agent_pb.AgentRevision: agent_revision_info,
    agent_pb.GetAgentResponse: agent_details,
    agent_pb.RegisterAgentResponse: agent_registration,
    admin_pb.Worker: worker_info,
    admin_pb.Claim: claim_info,
    task_pb2.QueueDepth: queue_info,
    admin_pb.ListAgingTasksResponse.Aging: aging_task_info,
    tool_pb2.OfferedTool: tool_info,
    admin_pb.ListToolSourcesResponse: public(
        info.ToolSources, admin_pb.ListToolSourcesResponse, rename={"seen_by": "instance"}
    ),
    admin_pb.ListInDoubtCallsResponse.Listed: in_doubt_call_info,
    admin_pb.ActOnTasksResponse.Outcome: act_outcome_info,
    admin_pb.TaskGroup: task_group_info,
}
"""The public form of each message that a command prints, besides those of `from_wire`."""
