"""The client's calls about schedules, tenants, API keys, approver groups, agents and webhooks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from tenure.v1 import agent_service_pb2 as agent_pb
from tenure.v1 import api_key_service_pb2 as key_pb
from tenure.v1 import approval_service_pb2 as approval_pb
from tenure.v1 import audit_service_pb2 as audit_pb
from tenure.v1 import schedule_service_pb2 as pb
from tenure.v1 import tenant_service_pb2 as tenant_pb
from tenure.v1 import webhook_service_pb2 as webhook_pb
from tenure.wire.webhook_service import new_secret, with_secret

if TYPE_CHECKING:
    from tenure.v1.agent_service_pb2_grpc import AgentServiceAsyncStub
    from tenure.v1.api_key_service_pb2_grpc import ApiKeyServiceAsyncStub
    from tenure.v1.approval_service_pb2_grpc import ApprovalServiceAsyncStub
    from tenure.v1.audit_service_pb2_grpc import AuditServiceAsyncStub
    from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceAsyncStub
    from tenure.v1.tenant_service_pb2_grpc import TenantServiceAsyncStub
    from tenure.v1.webhook_service_pb2_grpc import WebhookServiceAsyncStub


# Schedules.

_PAGE: Final = 500


class ScheduleCalls:
    """A mixin of Client, which has the stub and `_call`."""

    schedules: ScheduleServiceAsyncStub
    _call: Callable[..., Awaitable[Any]]

    async def create_schedule(self, request: pb.CreateScheduleRequest) -> pb.Schedule:
        """Creates a schedule.

        A repeat of the request returns the same schedule. Raises AlreadyExists (SCHEDULE_EXISTS).
        """
        answer: pb.CreateScheduleResponse = await self._call(self.schedules.CreateSchedule, request)
        return answer.schedule

    async def update_schedule(self, request: pb.UpdateScheduleRequest) -> pb.Schedule:
        """Changes the fields of a schedule that the request sets.

        Raises WrongState (SCHEDULE_CHANGED) at another revision.
        """
        answer: pb.UpdateScheduleResponse = await self._call(self.schedules.UpdateSchedule, request)
        return answer.schedule

    async def get_schedule(self, schedule: str, run_count: int = 0) -> pb.GetScheduleResponse:
        """Returns a schedule by id or name, with its newest schedule runs."""
        request = pb.GetScheduleRequest(schedule=schedule, run_count=run_count)
        answer: pb.GetScheduleResponse = await self._call(self.schedules.GetSchedule, request)
        return answer

    async def list_schedules(self) -> AsyncGenerator[pb.Schedule]:
        """Yields all schedules, by name."""
        request = pb.ListSchedulesRequest(page_size=_PAGE)
        while True:
            page: pb.ListSchedulesResponse = await self._call(self.schedules.ListSchedules, request)
            for schedule in page.schedules:
                yield schedule
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return


# Tenants: quotas and usage.


class TenantCalls:
    """A mixin of Client, which has the stub and `_call`."""

    tenants: TenantServiceAsyncStub
    _call: Callable[..., Awaitable[Any]]

    async def get_tenant(self, tenant: str = "") -> tenant_pb.Tenant:
        """Returns the quotas of a tenant and their use: the caller's own tenant, or, for operators, another."""
        answer: tenant_pb.GetTenantResponse = await self._call(
            self.tenants.GetTenant, tenant_pb.GetTenantRequest(tenant=tenant)
        )
        return answer.tenant

    async def update_tenant_limits(self, request: tenant_pb.UpdateTenantLimitsRequest) -> tenant_pb.Tenant:
        """Changes the quotas of a tenant, for operators. Raises WrongState (TENANT_CHANGED), PermissionDenied."""
        answer: tenant_pb.UpdateTenantLimitsResponse = await self._call(self.tenants.UpdateTenantLimits, request)
        return answer.tenant

    async def list_tenants(self) -> AsyncGenerator[tenant_pb.Tenant]:
        """Yields all tenants, by name, for operators."""
        request = tenant_pb.ListTenantsRequest(page_size=_PAGE)
        while True:
            page: tenant_pb.ListTenantsResponse = await self._call(self.tenants.ListTenants, request)
            for tenant in page.tenants:
                yield tenant
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return

    async def usage(self, request: tenant_pb.GetTenantUsageRequest) -> AsyncGenerator[tenant_pb.UsageSum]:
        """Yields the sums of the bills, by key. Raises NotFound for another tenant, except for operators."""
        forwarded_request = tenant_pb.GetTenantUsageRequest()
        forwarded_request.CopyFrom(request)
        while True:
            page: tenant_pb.GetTenantUsageResponse = await self._call(self.tenants.GetTenantUsage, forwarded_request)
            for usage_sum in page.sums:
                yield usage_sum
            forwarded_request.page_token = page.next_page_token
            if not page.next_page_token:
                return


_WEBHOOKS_PAGE: Final = 100
_DELIVERIES_PAGE: Final = 500


# API keys.


class ApiKeyCalls:
    """A mixin of Client, which has the stub and `_call`."""

    api_keys: ApiKeyServiceAsyncStub
    _call: Callable[..., Awaitable[Any]]

    async def create_api_key(self, request: key_pb.CreateApiKeyRequest) -> key_pb.CreateApiKeyResponse:
        """Creates a key; only the answer has it. Raises PermissionDenied, LimitReached (TOO_MANY_API_KEYS)."""
        answer: key_pb.CreateApiKeyResponse = await self._call(self.api_keys.CreateApiKey, request)
        return answer

    async def list_api_keys(self, *, every: bool = False) -> AsyncGenerator[key_pb.ApiKey]:
        """Yields the keys of the caller's tenant, newest first; `every`: also revoked and expired keys."""
        request = key_pb.ListApiKeysRequest(page_size=_PAGE, all=every)
        while True:
            page: key_pb.ListApiKeysResponse = await self._call(self.api_keys.ListApiKeys, request)
            for key in page.api_keys:
                yield key
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return

    async def revoke_api_key(self, key_id: str) -> key_pb.ApiKey:
        """Revokes a key for good. Raises NotFound (API_KEY_NOT_FOUND)."""
        answer: key_pb.RevokeApiKeyResponse = await self._call(
            self.api_keys.RevokeApiKey, key_pb.RevokeApiKeyRequest(key_id=key_id)
        )
        return answer.api_key


# Approver groups.


class ApproverCalls:
    """A mixin of Client, which has the stub and `_call`."""

    approvals: ApprovalServiceAsyncStub
    _call: Callable[..., Awaitable[Any]]

    async def set_approver_group(self, name: str, members: Sequence[str]) -> approval_pb.ApproverGroup:
        """Creates a group or replaces its members. Raises LimitReached (TOO_MANY_APPROVER_GROUPS)."""
        request = approval_pb.SetApproverGroupRequest(name=name, members=members)
        answer: approval_pb.SetApproverGroupResponse = await self._call(self.approvals.SetApproverGroup, request)
        return answer.group

    async def list_approver_groups(self) -> list[approval_pb.ApproverGroup]:
        """Returns all groups of the tenant by name."""
        request = approval_pb.ListApproverGroupsRequest()
        answer: approval_pb.ListApproverGroupsResponse = await self._call(self.approvals.ListApproverGroups, request)
        return list(answer.groups)

    async def delete_approver_group(self, name: str) -> bool:
        """Deletes a group. Returns whether it existed."""
        request = approval_pb.DeleteApproverGroupRequest(name=name)
        answer: approval_pb.DeleteApproverGroupResponse = await self._call(self.approvals.DeleteApproverGroup, request)
        return answer.deleted


# Agents and their revisions.


class AgentCalls:
    """A mixin of Client, which has the stub and `_call`."""

    agents: AgentServiceAsyncStub
    _call: Callable[..., Awaitable[Any]]

    async def register_agent(
        self, name: str, definition: agent_pb.AgentDefinition, *, make_current: bool = False
    ) -> agent_pb.RegisterAgentResponse:
        """Registers an agent without code: the same definition is the same revision. Raises LimitReached."""
        request = agent_pb.RegisterAgentRequest(name=name, definition=definition, make_current=make_current)
        answer: agent_pb.RegisterAgentResponse = await self._call(self.agents.RegisterAgent, request)
        return answer

    async def list_agents(self) -> AsyncGenerator[agent_pb.Agent]:
        """Yields all agents of the tenant, by name."""
        request = agent_pb.ListAgentsRequest(page_size=_PAGE)
        while True:
            page: agent_pb.ListAgentsResponse = await self._call(self.agents.ListAgents, request)
            for agent in page.agents:
                yield agent
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return

    async def get_agent(self, name: str, revision: int = 0) -> agent_pb.GetAgentResponse:
        """Returns an agent with its revisions; `revision`: only this one, with its definition. Raises NotFound."""
        request = agent_pb.GetAgentRequest(name=name, revision=revision)
        answer: agent_pb.GetAgentResponse = await self._call(self.agents.GetAgent, request)
        return answer

    async def ramp_agent(self, name: str, revision: int, basis_points: int, reason: str = "") -> agent_pb.Agent:
        """Sends a part of the new tasks to a revision; 10,000 makes it current, 0 ends its ramp.

        Raises NotFound, WrongState (AGENT_REVISION_RETIRED, AGENT_REVISION_CURRENT).
        """
        request = agent_pb.RampAgentRequest(name=name, revision=revision, basis_points=basis_points, reason=reason)
        answer: agent_pb.RampAgentResponse = await self._call(self.agents.RampAgent, request)
        return answer.agent

    async def retire_agent_revision(self, name: str, revision: int, reason: str = "") -> agent_pb.AgentRevision:
        """Retires a revision for good. Raises NotFound, WrongState (AGENT_REVISION_IN_USE)."""
        request = agent_pb.RetireAgentRevisionRequest(name=name, revision=revision, reason=reason)
        answer: agent_pb.RetireAgentRevisionResponse = await self._call(self.agents.RetireAgentRevision, request)
        return answer.revision


class AuditCalls:
    """A mixin of Client, which has the stub and `_call`."""

    audit: AuditServiceAsyncStub
    _call: Callable[..., Awaitable[Any]]

    async def audit_records(self, request: audit_pb.ListAuditRecordsRequest) -> AsyncGenerator[audit_pb.AuditRecord]:
        """Yields the records of the audit log that the request selects, page by page."""
        page_request = audit_pb.ListAuditRecordsRequest()
        page_request.CopyFrom(request)
        while True:
            page: audit_pb.ListAuditRecordsResponse = await self._call(self.audit.ListAuditRecords, page_request)
            for record in page.records:
                yield record
            page_request.page_token = page.next_page_token
            if not page.next_page_token:
                return


class WebhookCalls:
    """A mixin of Client, which has the stub and `_call`."""

    webhooks: WebhookServiceAsyncStub
    _call: Callable[..., Awaitable[Any]]

    async def create_webhook(self, request: webhook_pb.CreateWebhookRequest) -> webhook_pb.CreateWebhookResponse:
        """Creates a webhook and returns it with its secret, once, also after retries. Raises AlreadyExists."""
        answer: webhook_pb.CreateWebhookResponse = await self._call(self.webhooks.CreateWebhook, with_secret(request))
        return answer

    async def get_webhook(self, webhook: str) -> webhook_pb.Webhook:
        """Returns a webhook by id or name. Raises NotFound."""
        answer: webhook_pb.GetWebhookResponse = await self._call(
            self.webhooks.GetWebhook, webhook_pb.GetWebhookRequest(webhook=webhook)
        )
        return answer.webhook

    async def list_webhooks(self) -> AsyncGenerator[webhook_pb.Webhook]:
        """Yields all webhooks, by name."""
        request = webhook_pb.ListWebhooksRequest(page_size=_WEBHOOKS_PAGE)
        while True:
            page: webhook_pb.ListWebhooksResponse = await self._call(self.webhooks.ListWebhooks, request)
            for webhook in page.webhooks:
                yield webhook
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return

    async def list_deliveries(
        self, webhook: str, states: Sequence[webhook_pb.WebhookDeliveryState.ValueType] = (), *, limit: int = 50
    ) -> AsyncGenerator[webhook_pb.WebhookDelivery]:
        """Yields at most `limit` deliveries of a webhook, the newest first."""
        request = webhook_pb.ListWebhookDeliveriesRequest(webhook=webhook, states=states)
        while limit > 0:
            request.page_size = min(limit, _DELIVERIES_PAGE)
            page: webhook_pb.ListWebhookDeliveriesResponse = await self._call(
                self.webhooks.ListWebhookDeliveries, request
            )
            for delivery in page.deliveries:
                yield delivery
            limit -= len(page.deliveries)
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return

    async def rotate_secret(
        self, request: webhook_pb.RotateWebhookSecretRequest
    ) -> webhook_pb.RotateWebhookSecretResponse:
        """Replaces the secret of a webhook, once, also after retries. Raises NotFound."""
        forwarded_request = webhook_pb.RotateWebhookSecretRequest()
        forwarded_request.CopyFrom(request)
        forwarded_request.secret = request.secret or new_secret()
        answer: webhook_pb.RotateWebhookSecretResponse = await self._call(
            self.webhooks.RotateWebhookSecret, forwarded_request
        )
        return answer

    async def replay_deliveries(self, webhook: str, delivery_id: str = "") -> int:
        """Sends one dead delivery, or all, again. Returns how many. Raises NotFound."""
        request = webhook_pb.ReplayWebhookDeliveriesRequest(webhook=webhook, delivery_id=delivery_id)
        replayed = 0
        while True:
            answer: webhook_pb.ReplayWebhookDeliveriesResponse = await self._call(
                self.webhooks.ReplayWebhookDeliveries, request
            )
            replayed += answer.replayed
            if delivery_id or not answer.replayed or not answer.remaining:
                return replayed

    async def discard_deliveries(self, webhook: str, delivery_id: str = "") -> int:
        """Discards one dead delivery, or all. Returns how many. Raises NotFound."""
        request = webhook_pb.DiscardWebhookDeliveriesRequest(webhook=webhook, delivery_id=delivery_id)
        discarded = 0
        while True:
            answer: webhook_pb.DiscardWebhookDeliveriesResponse = await self._call(
                self.webhooks.DiscardWebhookDeliveries, request
            )
            discarded += answer.discarded
            if delivery_id or not answer.discarded or not answer.remaining:
                return discarded
