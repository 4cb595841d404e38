"""Forwards LeaseService, ScheduleService, TenantService and WebhookService to the services that implement them.

Every call may be repeated behind the gateway: it adds missing request ids and webhook secrets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from services.gateway.peers import RETRY_AFTER_SECONDS, Peers, with_retries
from services.gateway.tasks import caller, new_id
from services.gateway.tool_names import check_tool_names, earlier_result
from tenure.domain.access import Permission, check_permission
from tenure.domain.errors import NotFound, PermissionDenied, Unavailable
from tenure.runtime.access_control import ANYONE, current_principal
from tenure.runtime.request_context import as_tenant, current_tenant
from tenure.runtime.rpc_server import draining
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import lease_service_pb2 as pb
from tenure.v1 import schedule_service_pb2 as schedule_pb
from tenure.v1 import tenant_service_pb2 as tenant_pb
from tenure.v1 import webhook_service_pb2 as webhook_pb
from tenure.v1.lease_service_pb2_grpc import LeaseServiceServicer
from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceServicer
from tenure.v1.tenant_service_pb2_grpc import TenantServiceServicer
from tenure.v1.webhook_service_pb2_grpc import WebhookServiceServicer
from tenure.wire.webhook_service import new_secret, with_secret

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


# LeaseService, forwarded to the coordinators, so that backends need one address only.

_log: Final = logging.getLogger(__name__)


class LeaseForwarder(LeaseServiceServicer):
    """Adds retries for replicas that restart."""

    def __init__(self, peers: Peers, stopping: asyncio.Event) -> None:
        self._peers, self._stopping = peers, stopping

    async def AcquireLease(self, request: pb.AcquireLeaseRequest, _context: Any) -> pb.AcquireLeaseResponse:
        return await with_retries(lambda: self._peers.leases.AcquireLease(request))

    async def RenewLease(self, request: pb.RenewLeaseRequest, _context: Any) -> pb.RenewLeaseResponse:
        """Renews a lease.

        A repeat is safe: the holder counts from its own sending, so the lease lives longer than it assumes.
        """
        return await with_retries(lambda: self._peers.leases.RenewLease(request))

    async def ReleaseLease(self, request: pb.ReleaseLeaseRequest, _context: Any) -> pb.ReleaseLeaseResponse:
        """Releases a lease for its holder, or for an administrator of the tenant."""
        _check_authority(request)
        return await with_retries(lambda: self._peers.leases.ReleaseLease(request))

    async def TransferLease(self, request: pb.TransferLeaseRequest, _context: Any) -> pb.TransferLeaseResponse:
        """Transfers a lease for its holder, or for an administrator of the tenant."""
        _check_authority(request)
        return await with_retries(lambda: self._peers.leases.TransferLease(request))

    async def GetLease(self, request: pb.GetLeaseRequest, _context: Any) -> pb.GetLeaseResponse:
        return await with_retries(lambda: self._peers.leases.GetLease(request))

    async def ListLeases(self, request: pb.ListLeasesRequest, _context: Any) -> pb.ListLeasesResponse:
        return await with_retries(lambda: self._peers.leases.ListLeases(request))

    async def WatchLeases(self, request: pb.WatchLeasesRequest, _context: Any) -> AsyncIterator[pb.WatchLeasesResponse]:
        """Ends with the coordinator's stream, or when this gateway drains.

        The caller watches again after the last revision.
        """
        call = self._peers.leases.WatchLeases(request)
        stopping = asyncio.create_task(self._stopping.wait())
        reading: asyncio.Task[Any] | None = None
        try:
            while True:
                reading = asyncio.create_task(call.read())
                await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
                if self._stopping.is_set():
                    raise draining()
                answer = _read(reading)
                if not isinstance(answer, pb.WatchLeasesResponse):  # the end of the stream
                    return
                yield answer
        finally:
            # A read that nothing awaits would report the cancellation of its call as an unhandled error.
            unfinished = [task for task in (reading, stopping) if task is not None]
            for task in unfinished:
                task.cancel()
            call.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)

    async def ListSigningKeys(self, request: pb.ListSigningKeysRequest, _context: Any) -> pb.ListSigningKeysResponse:
        return await with_retries(lambda: self._peers.leases.ListSigningKeys(request))


def _check_authority(request: pb.ReleaseLeaseRequest | pb.TransferLeaseRequest) -> None:
    """Raises PermissionDenied for a client without the lease's token that does not administer the tenant."""
    if request.HasField("lease"):
        check_permission(current_principal(), Permission.TENANT_ADMIN, "to end a lease without its token")


def _read(reading: asyncio.Task[Any]) -> Any:
    """Returns the message that was read. Only the log shows the addresses and the failures of the services."""
    try:
        return reading.result()
    except Unavailable as error:
        if error.metadata.get("outcome") != "unknown":
            raise
        _log.warning("the coordinator of a lease watch does not answer", extra={"why": str(error)})
        raise Unavailable(
            "the coordinator does not answer; watch again after the last revision received",
            retry_after_seconds=RETRY_AFTER_SECONDS,
        ) from error


# ScheduleService, forwarded to the ledger. Every call may be repeated: a trigger gets its request id here.


class ScheduleForwarder(ScheduleServiceServicer):
    """Adds retries for replicas that restart, and the caller as actor."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def CreateSchedule(
        self, request: schedule_pb.CreateScheduleRequest, _context: Any
    ) -> schedule_pb.CreateScheduleResponse:
        check = check_tool_names(self._peers, request.spec, "spec.")
        if earlier := await earlier_result(self._peers, check, ledger.FindRepeatRequest(create_schedule=request)):
            return schedule_pb.CreateScheduleResponse(schedule=earlier.schedule)
        return await with_retries(lambda: self._peers.schedules.CreateSchedule(request))

    async def GetSchedule(
        self, request: schedule_pb.GetScheduleRequest, _context: Any
    ) -> schedule_pb.GetScheduleResponse:
        return await with_retries(lambda: self._peers.schedules.GetSchedule(request))

    async def ListSchedules(
        self, request: schedule_pb.ListSchedulesRequest, _context: Any
    ) -> schedule_pb.ListSchedulesResponse:
        return await with_retries(lambda: self._peers.schedules.ListSchedules(request))

    async def UpdateSchedule(
        self, request: schedule_pb.UpdateScheduleRequest, _context: Any
    ) -> schedule_pb.UpdateScheduleResponse:
        """Updates a schedule. A repeat finds the schedule as requested. A new spec is checked like a new schedule's."""
        check = check_tool_names(self._peers, request.spec, "spec.")
        if earlier := await earlier_result(self._peers, check, ledger.FindRepeatRequest(update_schedule=request)):
            return schedule_pb.UpdateScheduleResponse(schedule=earlier.schedule)
        return await with_retries(lambda: self._peers.schedules.UpdateSchedule(request))

    async def PauseSchedule(
        self, request: schedule_pb.PauseScheduleRequest, _context: Any
    ) -> schedule_pb.PauseScheduleResponse:
        forwarded_request = schedule_pb.PauseScheduleRequest(
            schedule=request.schedule, reason=request.reason, actor=caller()
        )
        return await with_retries(lambda: self._peers.schedules.PauseSchedule(forwarded_request))

    async def ResumeSchedule(
        self, request: schedule_pb.ResumeScheduleRequest, _context: Any
    ) -> schedule_pb.ResumeScheduleResponse:
        return await with_retries(lambda: self._peers.schedules.ResumeSchedule(request))

    async def TriggerSchedule(
        self, request: schedule_pb.TriggerScheduleRequest, _context: Any
    ) -> schedule_pb.TriggerScheduleResponse:
        forwarded_request = schedule_pb.TriggerScheduleRequest(
            schedule=request.schedule, request_id=request.request_id or new_id()
        )
        return await with_retries(lambda: self._peers.schedules.TriggerSchedule(forwarded_request))

    async def DeleteSchedule(
        self, request: schedule_pb.DeleteScheduleRequest, _context: Any
    ) -> schedule_pb.DeleteScheduleResponse:
        """Deletes a schedule. A repeat may answer that the first try deleted it."""
        return await with_retries(lambda: self._peers.schedules.DeleteSchedule(request))


# TenantService, forwarded to the ledger. The gateway decides who may read and change which tenant.


class TenantForwarder(TenantServiceServicer):
    """Limits each caller to its own tenant, except callers of the tenants in `operators`."""

    def __init__(self, peers: Peers, operators: Collection[str]) -> None:
        self._peers, self._operators = peers, frozenset(operators)

    async def GetTenant(self, request: tenant_pb.GetTenantRequest, _context: Any) -> tenant_pb.GetTenantResponse:
        with self._acting_on(request.tenant):
            return await with_retries(lambda: self._peers.tenants.GetTenant(tenant_pb.GetTenantRequest()))

    async def UpdateTenantLimits(
        self, request: tenant_pb.UpdateTenantLimitsRequest, _context: Any
    ) -> tenant_pb.UpdateTenantLimitsResponse:
        """Updates quotas. A repeat finds the quotas as requested."""
        self._check_operator()
        forwarded_request = tenant_pb.UpdateTenantLimitsRequest()
        forwarded_request.CopyFrom(request)
        forwarded_request.tenant, forwarded_request.actor = "", caller()
        with self._acting_on(request.tenant):
            return await with_retries(lambda: self._peers.tenants.UpdateTenantLimits(forwarded_request))

    async def ListTenants(self, request: tenant_pb.ListTenantsRequest, _context: Any) -> tenant_pb.ListTenantsResponse:
        self._check_operator()
        return await with_retries(lambda: self._peers.tenants.ListTenants(request))

    async def GetTenantUsage(
        self, request: tenant_pb.GetTenantUsageRequest, _context: Any
    ) -> tenant_pb.GetTenantUsageResponse:
        forwarded_request = tenant_pb.GetTenantUsageRequest()
        forwarded_request.CopyFrom(request)
        forwarded_request.tenant = ""
        with self._acting_on(request.tenant):
            return await with_retries(lambda: self._peers.tenants.GetTenantUsage(forwarded_request))

    def _check_operator(self) -> None:
        if not self._is_operator():
            raise PermissionDenied("only operators may call this method", reason="OPERATORS_ONLY")

    def _is_operator(self) -> bool:
        """Returns whether the caller is an operator; without authentication, whether it states an operator's tenant."""
        principal = current_principal()
        if principal is ANYONE:
            return current_tenant() in self._operators
        return Permission.OPERATE in principal.permissions

    @contextmanager
    def _acting_on(self, named: str) -> Iterator[None]:
        """Makes the enclosed calls as the named tenant. Raises the same NotFound for existing and missing tenants."""
        if named in {"", current_tenant()}:
            yield
            return
        if not self._is_operator():
            raise NotFound(f"tenant {named} not found", reason="TENANT_NOT_FOUND")
        with as_tenant(named):
            yield


class WebhookForwarder(WebhookServiceServicer):
    """Adds retries for replicas that restart, and the caller as actor."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def CreateWebhook(
        self, request: webhook_pb.CreateWebhookRequest, _context: Any
    ) -> webhook_pb.CreateWebhookResponse:
        """Creates a webhook. A repeat sends the same secret, and so the same payload."""
        forwarded_request = with_secret(request)
        return await with_retries(lambda: self._peers.webhooks.CreateWebhook(forwarded_request))

    async def GetWebhook(self, request: webhook_pb.GetWebhookRequest, _context: Any) -> webhook_pb.GetWebhookResponse:
        return await with_retries(lambda: self._peers.webhooks.GetWebhook(request))

    async def ListWebhooks(
        self, request: webhook_pb.ListWebhooksRequest, _context: Any
    ) -> webhook_pb.ListWebhooksResponse:
        return await with_retries(lambda: self._peers.webhooks.ListWebhooks(request))

    async def PauseWebhook(
        self, request: webhook_pb.PauseWebhookRequest, _context: Any
    ) -> webhook_pb.PauseWebhookResponse:
        forwarded_request = webhook_pb.PauseWebhookRequest(
            webhook=request.webhook, reason=request.reason, actor=caller()
        )
        return await with_retries(lambda: self._peers.webhooks.PauseWebhook(forwarded_request))

    async def ResumeWebhook(
        self, request: webhook_pb.ResumeWebhookRequest, _context: Any
    ) -> webhook_pb.ResumeWebhookResponse:
        return await with_retries(lambda: self._peers.webhooks.ResumeWebhook(request))

    async def RotateWebhookSecret(
        self, request: webhook_pb.RotateWebhookSecretRequest, _context: Any
    ) -> webhook_pb.RotateWebhookSecretResponse:
        forwarded_request = webhook_pb.RotateWebhookSecretRequest()
        forwarded_request.CopyFrom(request)
        forwarded_request.secret = request.secret or new_secret()
        return await with_retries(lambda: self._peers.webhooks.RotateWebhookSecret(forwarded_request))

    async def DeleteWebhook(
        self, request: webhook_pb.DeleteWebhookRequest, _context: Any
    ) -> webhook_pb.DeleteWebhookResponse:
        """Deletes a webhook. A repeat may answer that the first try deleted it."""
        return await with_retries(lambda: self._peers.webhooks.DeleteWebhook(request))

    async def TestWebhook(
        self, request: webhook_pb.TestWebhookRequest, _context: Any
    ) -> webhook_pb.TestWebhookResponse:
        """Sends a test event. A repeat may send a second event with another id, which is harmless."""
        return await with_retries(lambda: self._peers.webhooks.TestWebhook(request))

    async def ListWebhookDeliveries(
        self, request: webhook_pb.ListWebhookDeliveriesRequest, _context: Any
    ) -> webhook_pb.ListWebhookDeliveriesResponse:
        return await with_retries(lambda: self._peers.webhooks.ListWebhookDeliveries(request))

    async def ReplayWebhookDeliveries(
        self, request: webhook_pb.ReplayWebhookDeliveriesRequest, _context: Any
    ) -> webhook_pb.ReplayWebhookDeliveriesResponse:
        """Replays dead deliveries. A repeat finds fewer of them; the number in the answer is that of the rest."""
        return await with_retries(lambda: self._peers.webhooks.ReplayWebhookDeliveries(request))

    async def DiscardWebhookDeliveries(
        self, request: webhook_pb.DiscardWebhookDeliveriesRequest, _context: Any
    ) -> webhook_pb.DiscardWebhookDeliveriesResponse:
        return await with_retries(lambda: self._peers.webhooks.DiscardWebhookDeliveries(request))
