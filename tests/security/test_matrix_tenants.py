"""Tenants: an administrator of one tenant calls every method with the ids of another, and finds nothing."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from google.protobuf.message import Message

from tenure.client import Client
from tenure.domain.access import Permission
from tenure.runtime.security.tls import ClientTls
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import agent_service_pb2 as agent_pb
from tenure.v1 import api_key_service_pb2 as key_pb
from tenure.v1 import approval_service_pb2 as approval_pb
from tenure.v1 import lease_service_pb2 as lease_pb
from tenure.v1 import schedule_service_pb2 as schedule_pb
from tenure.v1 import task_pb2, tenant_service_pb2, tool_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1 import webhook_service_pb2 as webhook_pb
from tenure.wire.common import duration, timestamp
from tests.security.access_table import answer_of, channel_to, matrix, methods_of
from tests.security.guarded import CLIENT_GATEWAYS, Guarded, bearer
from tests.security.identity_provider import TENANT
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.sweeps import first

WHY: Final = "a test"
LISTS: Final = {
    "AdminService/ListAgingTasks",
    "AdminService/ListEffects",
    "AdminService/ListToolRules",
    "AgentService/ListAgents",
    "ApiKeyService/ListApiKeys",
    "ApprovalService/ListApproverGroups",
    "LeaseService/ListLeases",
    "ScheduleService/ListSchedules",
    "TaskService/CountTasks",
    "TaskService/ListTasks",
    "WebhookService/ListWebhooks",
}
"""Methods whose empty request lists what the caller's tenant has."""
OWN: Final = {
    "AdminService/GetCaller": "the caller itself",
    "AdminService/ListTools": "the tools of the installation",
    "AdminService/SetToolRule": "each tenant has its own names of rules",
    "AgentService/RegisterAgent": "makes something for the caller's tenant",
    "ApiKeyService/CreateApiKey": "makes something for the caller's tenant",
    "ApprovalService/SetApproverGroup": "each tenant has its own names of groups",
    "LeaseService/AcquireLease": "each tenant has its own names of resources",
    "LeaseService/ListSigningKeys": "public keys",
    "LeaseService/WatchLeases": "see the test of streams",
    "ScheduleService/CreateSchedule": "makes something for the caller's tenant",
    "TaskService/SubmitTask": "makes something for the caller's tenant",
    "TaskService/WatchTasks": "see the test of streams",
    "WebhookService/CreateWebhook": "makes something for the caller's tenant",
}
"""Methods whose requests name nothing that another tenant could have, and why."""


@dataclass(frozen=True)
class Things:
    """What a tenant has."""

    tenant: str
    client: Client
    waiting: task_pb2.Task
    ended: task_pb2.Task
    lease: lease_pb.Lease
    key_id: str

    def ids(self) -> set[bytes]:
        """Texts that stand in no answer to another tenant."""
        named = {b"crane", b"nightly", b"finance", b"greeter", b"no-cranes"}
        return {self.waiting.task_id.encode(), self.ended.task_id.encode(), self.key_id.encode()} | named

    async def state(self) -> list[Message]:
        """All of it, as it is now."""
        client = self.client
        lease = (await client.leases.GetLease(lease_pb.GetLeaseRequest(resource="crane"))).lease
        lease.ClearField("remaining")
        entries = [entry for task in (self.waiting, self.ended) async for entry in client.entries(task.task_id)]
        return [
            *entries,
            await client.schedules.GetSchedule(schedule_pb.GetScheduleRequest(schedule="nightly")),
            (await client.webhooks.GetWebhook(webhook_pb.GetWebhookRequest(webhook="hook"))).webhook,
            lease,
            *[
                key
                async for key in client.items(
                    client.api_keys.ListApiKeys, key_pb.ListApiKeysRequest(), lambda page: page.api_keys
                )
            ],
            *(await client.approvals.ListApproverGroups(approval_pb.ListApproverGroupsRequest())).groups,
            *(await client.admin.ListToolRules(admin.ListToolRulesRequest())).tool_rules,
            await client.agents.GetAgent(agent_pb.GetAgentRequest(name="greeter")),
            *[
                file
                async for file in client.pages(client.tasks.ListFiles, api.ListFilesRequest(task_id=self.ended.task_id))
            ],
        ]


def a_tenant() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def things(guarded: Guarded) -> AsyncIterator[Things]:
    tenant = a_tenant()
    key = await guarded.key(Permission.TENANT_ADMIN, tenant=tenant)
    async with guarded.client(key.secret) as client:
        question, tool = (task_pb2.AgentSpec(model=f"sim-{name}") for name in ("question", "one-tool"))
        waiting = await client.submit("ask", request=api.SubmitTaskRequest(spec=task_pb2.TaskSpec(agent=question)))
        ended = await client.submit("write", request=api.SubmitTaskRequest(spec=task_pb2.TaskSpec(agent=tool)))
        ended = await client.wait(ended.task_id, PATIENCE_SECONDS)
        await client.schedules.CreateSchedule(
            schedule_pb.CreateScheduleRequest(
                name="nightly", spec=task_pb2.TaskSpec(goal="any"), cron="0 3 * * *", time_zone="UTC"
            )
        )
        await client.approvals.SetApproverGroup(
            approval_pb.SetApproverGroupRequest(name="finance", members=["user/ann"])
        )
        rule = tool_pb2.ToolRule(name="no-cranes", tool="crane_*", verdict=tool_pb2.RULE_VERDICT_DENY)
        await client.admin.SetToolRule(admin.SetToolRuleRequest(tool_rule=rule))
        await client.webhooks.CreateWebhook(webhook_pb.CreateWebhookRequest(name="hook", url="http://127.0.0.1:9/"))
        await client.agents.RegisterAgent(
            agent_pb.RegisterAgentRequest(
                name="greeter", definition=agent_pb.AgentDefinition(kind=agent_pb.AGENT_KIND_MODEL)
            )
        )
        acquired = await client.leases.AcquireLease(
            lease_pb.AcquireLeaseRequest(resource="crane", holder="me", ttl=duration(3600), request_id="1")
        )
        async with asyncio.timeout(PATIENCE_SECONDS), aclosing(client.watch(waiting.task_id)) as events:
            async for event in events:
                if event.HasField("entry") and event.entry.body.transition.to_state == task_pb2.TASK_STATE_WAITING_USER:
                    break
        waiting = await client.get(waiting.task_id)
        yield Things(tenant, client, waiting, ended, acquired.lease, key.api_key.key_id)


def of_tasks(things: Things) -> Mapping[str, Message]:
    """Requests that name a task."""
    task, ended, new = things.waiting.task_id, things.ended.task_id, str(uuid.uuid4())
    later = timestamp(datetime.now(UTC) + timedelta(hours=1))
    return {
        "TaskService/CancelTask": api.CancelTaskRequest(task_id=task, reason=WHY),
        "TaskService/EndCallPlan": api.EndCallPlanRequest(task_id=task, plan_id=f"{task}/w1", reason=WHY),
        "TaskService/ExplainTask": api.ExplainTaskRequest(task_id=task),
        "TaskService/ForkTask": api.ForkTaskRequest(task_id=ended, request_id=new, at_sequence=2),
        "TaskService/GetReceipts": api.GetReceiptsRequest(task_id=ended),
        "TaskService/PlanUndo": api.PlanUndoRequest(task_id=ended),
        "TaskService/UndoTask": api.UndoTaskRequest(task_id=ended, request_id=new),
        "TaskService/GetTask": api.GetTaskRequest(task_id=task),
        "TaskService/ListCallPlans": api.ListCallPlansRequest(task_id=task),
        "TaskService/ListFiles": api.ListFilesRequest(task_id=ended),
        "TaskService/ListTaskEntries": api.ListTaskEntriesRequest(task_id=task),
        "TaskService/ReadFile": api.ReadFileRequest(task_id=ended, path="note.txt"),
        "TaskService/ResumeTask": api.ResumeTaskRequest(
            task_id=task, wait_id=things.waiting.wait.wait_id, request_id=new, reply="blue"
        ),
        "TaskService/SendMessage": api.SendMessageRequest(task_id=task, request_id=new, text="hear me"),
        "TaskService/WaitTask": api.WaitTaskRequest(task_id=task),
        "TaskService/WatchTask": api.WatchTaskRequest(task_id=task, live=True),
        "AdminService/ActOnTasks": admin.ActOnTasksRequest(
            operation_id=new,
            filter=task_pb2.TaskFilter(task_ids=[task]),
            reason=WHY,
            cancel=admin.ActOnTasksRequest.Cancel(),
        ),
        "AdminService/BeginWait": admin.BeginWaitRequest(
            task_id=task,
            request_id=new,
            reason=WHY,
            question="why?",
            until=later,
        ),
        "AdminService/CloseOutTask": admin.CloseOutTaskRequest(
            task_id=task, request_id=new, reason=WHY, to_state=task_pb2.TASK_STATE_FAILED
        ),
        "AdminService/ListBills": admin.ListBillsRequest(task_id=task),
        "AdminService/ListCalls": admin.ListCallsRequest(task_id=ended),
        "AdminService/ListInDoubtCalls": admin.ListInDoubtCallsRequest(task_id=task),
        "AdminService/ListRefusals": admin.ListRefusalsRequest(task_id=task),
        "AdminService/PruneTasks": admin.PruneTasksRequest(task_id=ended, reason=WHY),
        "AdminService/RequeueTask": admin.RequeueTaskRequest(task_id=task, request_id=new, reason=WHY),
        "AdminService/ResolveInDoubtCall": admin.ResolveInDoubtCallRequest(
            task_id=ended,
            call_id="1.0",
            call_attempt=1,
            decision=tool_pb2.InDoubtDecision(happened=tool_pb2.InDoubtDecision.Happened()),
            reason=WHY,
            request_id=new,
        ),
        "AdminService/TransferTask": admin.TransferTaskRequest(task_id=task, reason=WHY),
    }


def of_others(things: Things) -> Mapping[str, Message]:
    """Requests that name something else."""
    hook, nightly, token = "hook", "nightly", things.lease.token
    reference = lease_pb.LeaseReference(resource="crane", epoch=things.lease.epoch)
    return {
        "AdminService/DeleteToolRule": admin.DeleteToolRuleRequest(name="no-cranes"),
        "AdminService/TryToolRule": admin.TryToolRuleRequest(name="no-cranes", since_time=timestamp(datetime.now(UTC))),
        "AgentService/GetAgent": agent_pb.GetAgentRequest(name="greeter"),
        "AgentService/RampAgent": agent_pb.RampAgentRequest(name="greeter", revision=1, basis_points=10_000),
        "AgentService/RetireAgentRevision": agent_pb.RetireAgentRevisionRequest(name="greeter", revision=1),
        "ApiKeyService/RevokeApiKey": key_pb.RevokeApiKeyRequest(key_id=things.key_id),
        "ApprovalService/DeleteApproverGroup": approval_pb.DeleteApproverGroupRequest(name="finance"),
        "LeaseService/GetLease": lease_pb.GetLeaseRequest(resource="crane"),
        "LeaseService/ReleaseLease": lease_pb.ReleaseLeaseRequest(token=token, reason=WHY),
        "LeaseService/ReleaseLease by reference": lease_pb.ReleaseLeaseRequest(lease=reference, reason=WHY),
        "LeaseService/TransferLease by reference": lease_pb.TransferLeaseRequest(
            lease=reference, holder="you", reason=WHY, request_id="2"
        ),
        "LeaseService/RenewLease": lease_pb.RenewLeaseRequest(token=token),
        "LeaseService/TransferLease": lease_pb.TransferLeaseRequest(
            token=token, holder="you", reason=WHY, request_id="2"
        ),
        "ScheduleService/DeleteSchedule": schedule_pb.DeleteScheduleRequest(schedule=nightly),
        "ScheduleService/GetSchedule": schedule_pb.GetScheduleRequest(schedule=nightly),
        "ScheduleService/PauseSchedule": schedule_pb.PauseScheduleRequest(schedule=nightly, reason=WHY),
        "ScheduleService/ResumeSchedule": schedule_pb.ResumeScheduleRequest(schedule=nightly),
        "ScheduleService/TriggerSchedule": schedule_pb.TriggerScheduleRequest(schedule=nightly, request_id="3"),
        "ScheduleService/UpdateSchedule": schedule_pb.UpdateScheduleRequest(schedule=nightly, cron="* * * * *"),
        "TenantService/GetTenant": tenant_service_pb2.GetTenantRequest(tenant=things.tenant),
        "TenantService/GetTenantUsage": tenant_service_pb2.GetTenantUsageRequest(tenant=things.tenant),
        "WebhookService/DeleteWebhook": webhook_pb.DeleteWebhookRequest(webhook=hook),
        "WebhookService/DiscardWebhookDeliveries": webhook_pb.DiscardWebhookDeliveriesRequest(webhook=hook),
        "WebhookService/GetWebhook": webhook_pb.GetWebhookRequest(webhook=hook),
        "WebhookService/ListWebhookDeliveries": webhook_pb.ListWebhookDeliveriesRequest(webhook=hook),
        "WebhookService/PauseWebhook": webhook_pb.PauseWebhookRequest(webhook=hook, reason=WHY),
        "WebhookService/ReplayWebhookDeliveries": webhook_pb.ReplayWebhookDeliveriesRequest(webhook=hook),
        "WebhookService/ResumeWebhook": webhook_pb.ResumeWebhookRequest(webhook=hook),
        "WebhookService/RotateWebhookSecret": webhook_pb.RotateWebhookSecretRequest(webhook=hook),
        "WebhookService/TestWebhook": webhook_pb.TestWebhookRequest(webhook=hook),
    }


UNLIKE: Final = {
    "AdminService/ActOnTasks": "OK",  # each task has its outcome, here TASK_NOT_FOUND
    "AdminService/DeleteToolRule": "OK",  # a deletion may be repeated
    "AdminService/TryToolRule": "NOT_FOUND/NO_SUCH_TOOL_RULE",
    "ApprovalService/DeleteApproverGroup": "OK",  # a deletion may be repeated
    "LeaseService/ReleaseLease": "PERMISSION_DENIED/WRONG_RESOURCE",  # a token names its tenant
    "LeaseService/RenewLease": "PERMISSION_DENIED/WRONG_RESOURCE",
    "LeaseService/TransferLease": "PERMISSION_DENIED/WRONG_RESOURCE",
    "LeaseService/ReleaseLease by reference": "OK",  # as for a lease that has ended
    "LeaseService/TransferLease by reference": "ABORTED/LEASE_LOST",
    "ScheduleService/DeleteSchedule": "OK",  # a deletion may be repeated
    "WebhookService/DeleteWebhook": "OK",
}
"""Methods with another answer than NOT_FOUND. `Things.state` shows that they do nothing."""


def expected_of(method: str) -> str:
    if method in UNLIKE:
        return UNLIKE[method]
    return "NOT_FOUND/" + {
        "AgentService": "AGENT_NOT_FOUND",
        "ApiKeyService": "API_KEY_NOT_FOUND",
        "LeaseService": "LEASE_NOT_HELD",
        "ScheduleService": "SCHEDULE_NOT_FOUND",
        "TenantService": "TENANT_NOT_FOUND",
        "WebhookService": "WEBHOOK_NOT_FOUND",
    }.get(method.partition("/")[0], "NOT_FOUND")


@pytest.mark.parametrize("identity", first(["key", "token"]))
async def test_another_tenants_objects_are_not_found(guarded: Guarded, things: Things, identity: str) -> None:
    other = a_tenant()
    key = (await guarded.key(Permission.TENANT_ADMIN, tenant=other)).secret
    token = guarded.provider.token(scope="tenant-admin", named={TENANT: other})
    metadata = bearer(key if identity == "key" else token)
    requests = {**of_tasks(things), **of_others(things)}
    for_clients = {name for name, row in matrix().items() if row.permission not in {"", "operate"}}
    assert {*(name.partition(" ")[0] for name in requests), *LISTS, *OWN} == for_clients, (
        "each method of clients needs a row"
    )
    methods, before = dict(methods_of("gateway")), await things.state()
    async with channel_to(guarded.stack.services[CLIENT_GATEWAYS[1]], ClientTls(guarded.ca_file)) as channel:
        answers = {
            name: await answer_of(channel, methods[name.partition(" ")[0]], metadata, request.SerializeToString())
            for name, request in requests.items()
        }
        lists = {}
        for name in LISTS:
            path = f"/tenure.v1.{name}"
            lists[name] = await channel.unary_unary(path)(b"", metadata=metadata, timeout=CALL_SECONDS)
    expected = {name: expected_of(name) for name in requests}
    assert {name: answer for name, answer in answers.items() if answer != expected[name]} == {}
    assert {name for name, answer in lists.items() if any(one in answer for one in things.ids())} == set()
    assert await things.state() == before


async def test_streams_have_only_what_the_tenant_has(guarded: Guarded, things: Things) -> None:
    """What comes first happened in the other tenant before."""
    admin_key = (await guarded.key(Permission.TENANT_ADMIN, tenant=a_tenant())).secret
    async with guarded.client(admin_key) as other:
        changes: Any = other.tasks.WatchTasks(api.WatchTasksRequest(), timeout=PATIENCE_SECONDS)
        leases: Any = other.leases.WatchLeases(lease_pb.WatchLeasesRequest(), timeout=PATIENCE_SECONDS)
        await changes.read()
        await leases.read()
        await things.client.cancel(things.waiting.task_id, WHY)
        await things.client.leases.RenewLease(lease_pb.RenewLeaseRequest(token=things.lease.token))
        task = await other.submit("any", request=api.SubmitTaskRequest(spec=task_pb2.TaskSpec(queue="none")))
        await other.leases.AcquireLease(
            lease_pb.AcquireLeaseRequest(resource="crane", holder="other", ttl=duration(60), request_id="1")
        )
        seen = [await _until(changes, task.task_id.encode()), await _until(leases, b"other")]
    assert not [one for one in seen if things.waiting.task_id.encode() in one or things.lease.claim_id.encode() in one]


async def _until(stream: Any, text: bytes) -> bytes:
    """All that comes until the text comes."""
    seen = b""
    while text not in seen:
        seen += (await stream.read()).SerializeToString()
    stream.cancel()
    return seen
