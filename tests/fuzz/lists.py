"""The methods that list in pages, the requests to them, and the tokens that they give for lists of two tenants."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import Message

from tenure.runtime.rpc.client import open_channel
from tenure.v1 import access_pb2, audit_service_pb2, lease_service_pb2, schedule_service_pb2, task_pb2
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import agent_service_pb2 as agents
from tenure.v1 import api_key_service_pb2 as keys
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import task_service_pb2 as tasks
from tenure.v1 import tenant_service_pb2 as tenants
from tenure.v1 import webhook_service_pb2 as webhooks
from tenure.v1.agent_service_pb2_grpc import AgentServiceStub
from tenure.v1.api_key_service_pb2_grpc import ApiKeyServiceStub
from tenure.v1.lease_service_pb2_grpc import LeaseServiceStub
from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from tenure.v1.task_service_pb2_grpc import TaskServiceStub
from tenure.v1.webhook_service_pb2_grpc import WebhookServiceStub
from tenure.wire.common import duration
from tests.fuzz.methods import METHODS, Method
from tests.support.patience import CALL_SECONDS

if TYPE_CHECKING:
    from tests.fuzz.world import World

_FOR_OPERATORS: Final = frozenset({"gateway-TenantService.ListTenants"})
"""The gateway refuses the fuzzed tenant before it looks at the token; the ledger answers the same request."""
LISTS: Final = tuple(
    one
    for one in METHODS
    if {"page_token", "page_size"} <= set(one.descriptor.input_type.fields_by_name) and str(one) not in _FOR_OPERATORS
)
ROWS: Final = 3

_VARIANTS: Final[dict[type[Message], tuple[dict[str, Any], ...]]] = {
    admin.ListInDoubtCallsRequest: ({"all": True},),
    admin.ListEffectsRequest: ({"tool": "append_record", "key": {"line": "x"}},),
    admin.ListAgingTasksRequest: ({"view": task_pb2.AGING_VIEW_HELD},),
    ledger.ListAgingRequest: ({"view": task_pb2.AGING_VIEW_HELD},),
    tasks.ListTasksRequest: ({"order": task_pb2.TASK_ORDER_WAIT_DEADLINE},),
    audit_service_pb2.ListAuditRecordsRequest: ({"oldest_first": True},),
    tenants.GetTenantUsageRequest: tuple(
        {"group_by": grouping}
        for grouping in (tenants.USAGE_GROUPING_ROOT, tenants.USAGE_GROUPING_MODEL, tenants.USAGE_GROUPING_DAY)
    ),
    webhooks.ListWebhookDeliveriesRequest: ({"states": [webhooks.WEBHOOK_DELIVERY_STATE_DEAD]},),
}
"""Further requests to a method: those that other statements answer."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What a tenant has: rows with the mark, one of them this task."""

    tenant: str
    mark: str
    task_id: str


def requests_to(method: Method, rows: Rows) -> list[Any]:
    """Requests for the first page, with one row."""
    needed: dict[str, Any] = {"page_size": 1}
    if method.request is tasks.ListFilesRequest:
        needed["task_id"] = rows.task_id
    if method.request is webhooks.ListWebhookDeliveriesRequest:
        needed["webhook"] = f"{rows.mark}-0"
    make: Any = method.request
    return [make(**needed, **more) for more in ({}, *_VARIANTS.get(method.request, ()))]


def is_of_one_tenant(method: Method) -> bool:
    """Whether the list has rows of the caller's tenant only. Without authentication each caller is an operator."""
    stated = method.descriptor.GetOptions().Extensions[access_pb2.access]
    return stated.scope != access_pb2.ACCESS_SCOPE_INSTALLATION and method.request is not keys.ListApiKeysRequest


async def fill(world: World, tenant: str, mark: str) -> Rows:
    """Makes rows for each list whose rows a client can make."""
    async with open_channel(world.stack.services["gateway"].address, tenant=tenant) as channel:
        stubs: list[Any] = [
            stub(channel)
            for stub in (TaskServiceStub, ScheduleServiceStub, WebhookServiceStub, AgentServiceStub, ApiKeyServiceStub)
        ]
        leases: Any = LeaseServiceStub(channel)
        for number in range(ROWS):
            name = f"{mark}-{number}"
            task_id = await _fill(stubs, name)
            request = lease_service_pb2.AcquireLeaseRequest(
                resource=name, holder=mark, ttl=duration(3600), request_id=str(uuid.uuid4())
            )
            await leases.AcquireLease(request, timeout=CALL_SECONDS)
        for _ in range(ROWS):
            await stubs[2].TestWebhook(webhooks.TestWebhookRequest(webhook=f"{mark}-0"), timeout=CALL_SECONDS)
    return Rows(tenant, mark, task_id)


async def _fill(stubs: list[Any], name: str) -> str:
    task, schedule, webhook, agent, key = stubs
    submit = tasks.SubmitTaskRequest(request_id=str(uuid.uuid4()), spec=task_pb2.TaskSpec(goal=name, queue="pages"))
    spec = task_pb2.TaskSpec(goal=name, queue="pages")
    task_id: str = (await task.SubmitTask(submit, timeout=CALL_SECONDS)).task.task_id
    await schedule.CreateSchedule(
        schedule_service_pb2.CreateScheduleRequest(name=name, cron="0 7 1 1 *", spec=spec), timeout=CALL_SECONDS
    )
    await webhook.CreateWebhook(
        webhooks.CreateWebhookRequest(name=name, url="http://127.0.0.1:9/hook", event_types=["task.failed"]),
        timeout=CALL_SECONDS,
    )
    model = agents.AgentDefinition(
        kind=agents.AGENT_KIND_MODEL, agent=task_pb2.AgentSpec(model="sim-hello", system=name)
    )
    await agent.RegisterAgent(agents.RegisterAgentRequest(name=name, definition=model), timeout=CALL_SECONDS)
    permissions = [access_pb2.PERMISSION_READ]
    await key.CreateApiKey(keys.CreateApiKeyRequest(name=name, permissions=permissions), timeout=CALL_SECONDS)
    return task_id
