"""The client's calls about webhooks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from tenure.v1 import schedule_service_pb2 as pb
from tenure.v1 import tenant_service_pb2 as tenant_pb
from tenure.v1 import webhook_service_pb2 as webhook_pb
from tenure.wire.webhook_service import new_secret

if TYPE_CHECKING:
    from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceAsyncStub
    from tenure.v1.tenant_service_pb2_grpc import TenantServiceAsyncStub
    from tenure.v1.webhook_service_pb2_grpc import WebhookServiceAsyncStub


# The client's calls about schedules.

_PAGE: Final = 500


class ScheduleCalls:
    """A part of Client, which has the stub and the patience."""

    schedules: ScheduleServiceAsyncStub
    _patiently: Callable[..., Awaitable[Any]]

    async def create_schedule(self, request: pb.CreateScheduleRequest) -> pb.Schedule:
        """A schedule; the same request again gives the same one. Raises AlreadyExists (SCHEDULE_EXISTS)."""
        answer: pb.CreateScheduleResponse = await self._patiently(self.schedules.CreateSchedule, request)
        return answer.schedule

    async def update_schedule(self, request: pb.UpdateScheduleRequest) -> pb.Schedule:
        """The schedule as asked; what is absent stays. Raises WrongState (SCHEDULE_CHANGED) at another revision."""
        answer: pb.UpdateScheduleResponse = await self._patiently(self.schedules.UpdateSchedule, request)
        return answer.schedule

    async def get_schedule(self, schedule: str, run_count: int = 0) -> pb.GetScheduleResponse:
        """A schedule by id or name, and what became of its newest due times."""
        request = pb.GetScheduleRequest(schedule=schedule, run_count=run_count)
        answer: pb.GetScheduleResponse = await self._patiently(self.schedules.GetSchedule, request)
        return answer

    async def list_schedules(self) -> AsyncGenerator[pb.Schedule]:
        """All of them, by name."""
        request = pb.ListSchedulesRequest(page_size=_PAGE)
        while True:
            page: pb.ListSchedulesResponse = await self._patiently(self.schedules.ListSchedules, request)
            for schedule in page.schedules:
                yield schedule
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return


# The client's calls about tenants: quotas, and what was billed.


class TenantCalls:
    """A part of Client, which has the stub and the patience."""

    tenants: TenantServiceAsyncStub
    _patiently: Callable[..., Awaitable[Any]]

    async def get_tenant(self, tenant: str = "") -> tenant_pb.Tenant:
        """The caller's own tenant, or, for operators, another: its quotas and what is used of each."""
        answer: tenant_pb.GetTenantResponse = await self._patiently(
            self.tenants.GetTenant, tenant_pb.GetTenantRequest(tenant=tenant)
        )
        return answer.tenant

    async def update_tenant_limits(self, request: tenant_pb.UpdateTenantLimitsRequest) -> tenant_pb.Tenant:
        """The tenant as asked. For operators. Raises WrongState (TENANT_CHANGED), PermissionDenied."""
        answer: tenant_pb.UpdateTenantLimitsResponse = await self._patiently(self.tenants.UpdateTenantLimits, request)
        return answer.tenant

    async def list_tenants(self) -> AsyncGenerator[tenant_pb.Tenant]:
        """All of them, by name. For operators."""
        request = tenant_pb.ListTenantsRequest(page_size=_PAGE)
        while True:
            page: tenant_pb.ListTenantsResponse = await self._patiently(self.tenants.ListTenants, request)
            for tenant in page.tenants:
                yield tenant
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return

    async def usage(self, request: tenant_pb.GetTenantUsageRequest) -> AsyncGenerator[tenant_pb.UsageSum]:
        """What was billed, summed up, by key. Raises NotFound for another tenant, unless to operators."""
        forwarded_request = tenant_pb.GetTenantUsageRequest()
        forwarded_request.CopyFrom(request)
        while True:
            page: tenant_pb.GetTenantUsageResponse = await self._patiently(
                self.tenants.GetTenantUsage, forwarded_request
            )
            for one in page.sums:
                yield one
            forwarded_request.page_token = page.next_page_token
            if not page.next_page_token:
                return


_WEBHOOKS_PAGE: Final = 100
_DELIVERIES_A_PAGE: Final = 500


class WebhookCalls:
    """A part of Client, which has the stub and the patience."""

    webhooks: WebhookServiceAsyncStub
    _patiently: Callable[..., Awaitable[Any]]

    async def create_webhook(self, request: webhook_pb.CreateWebhookRequest) -> webhook_pb.CreateWebhookResponse:
        """A webhook and its secret, once, also when the call had to be repeated. Raises AlreadyExists."""
        forwarded_request = webhook_pb.CreateWebhookRequest()
        forwarded_request.CopyFrom(request)
        forwarded_request.secret = request.secret or new_secret()
        answer: webhook_pb.CreateWebhookResponse = await self._patiently(self.webhooks.CreateWebhook, forwarded_request)
        return answer

    async def get_webhook(self, webhook: str) -> webhook_pb.Webhook:
        """A webhook by id or name."""
        answer: webhook_pb.GetWebhookResponse = await self._patiently(
            self.webhooks.GetWebhook, webhook_pb.GetWebhookRequest(webhook=webhook)
        )
        return answer.webhook

    async def list_webhooks(self) -> AsyncGenerator[webhook_pb.Webhook]:
        """All of them, by name."""
        request = webhook_pb.ListWebhooksRequest(page_size=_WEBHOOKS_PAGE)
        while True:
            page: webhook_pb.ListWebhooksResponse = await self._patiently(self.webhooks.ListWebhooks, request)
            for webhook in page.webhooks:
                yield webhook
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return

    async def list_deliveries(
        self, webhook: str, states: Sequence[webhook_pb.WebhookDeliveryState.ValueType] = (), *, limit: int = 50
    ) -> AsyncGenerator[webhook_pb.WebhookDelivery]:
        """The newest first, at most `limit`."""
        request = webhook_pb.ListWebhookDeliveriesRequest(webhook=webhook, states=states)
        while limit > 0:
            request.page_size = min(limit, _DELIVERIES_A_PAGE)
            page: webhook_pb.ListWebhookDeliveriesResponse = await self._patiently(
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
        """Another secret, once, also when the call had to be repeated. Raises NotFound."""
        forwarded_request = webhook_pb.RotateWebhookSecretRequest()
        forwarded_request.CopyFrom(request)
        forwarded_request.secret = request.secret or new_secret()
        answer: webhook_pb.RotateWebhookSecretResponse = await self._patiently(
            self.webhooks.RotateWebhookSecret, forwarded_request
        )
        return answer

    async def replay_deliveries(self, webhook: str, delivery_id: str = "") -> int:
        """Sends a dead letter, or all there are, again; how many that was. Raises NotFound."""
        request = webhook_pb.ReplayWebhookDeliveriesRequest(webhook=webhook, delivery_id=delivery_id)
        replayed = 0
        while True:
            answer: webhook_pb.ReplayWebhookDeliveriesResponse = await self._patiently(
                self.webhooks.ReplayWebhookDeliveries, request
            )
            replayed += answer.replayed
            if delivery_id or not answer.replayed or not answer.remaining:
                return replayed

    async def discard_deliveries(self, webhook: str, delivery_id: str = "") -> int:
        """Forgets a dead letter, or all there are; how many that was. Raises NotFound."""
        request = webhook_pb.DiscardWebhookDeliveriesRequest(webhook=webhook, delivery_id=delivery_id)
        discarded = 0
        while True:
            answer: webhook_pb.DiscardWebhookDeliveriesResponse = await self._patiently(
                self.webhooks.DiscardWebhookDeliveries, request
            )
            discarded += answer.discarded
            if delivery_id or not answer.discarded or not answer.remaining:
                return discarded
