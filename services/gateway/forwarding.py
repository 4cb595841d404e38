"""The methods of public services that do more than forward a call: of leases, schedules, tenants, webhooks and agents.

`forwarder.py` serves all others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from services.gateway.forwarder import Forwarder
from services.gateway.peers import RETRY_AFTER_SECONDS, Peers, with_retries
from services.gateway.stops import take_to_services
from services.gateway.tool_names import check_tool_names, earlier_result
from tenure.domain.access import Permission, check_permission
from tenure.domain.errors import InvalidRequest, NotFound, PermissionDenied, Unavailable
from tenure.runtime.request_context import as_tenant, current_tenant
from tenure.runtime.rpc.server import draining
from tenure.runtime.security.access_control import ANYONE, current_principal
from tenure.v1 import agent_service_pb2 as agent_pb
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import lease_service_pb2 as pb
from tenure.v1 import schedule_service_pb2 as schedule_pb
from tenure.v1 import task_pb2
from tenure.v1 import tenant_service_pb2 as tenant_pb
from tenure.v1 import webhook_service_pb2 as webhook_pb
from tenure.wire.webhook_service import with_secret

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_log: Final = logging.getLogger(__name__)


class LeaseForwarder(Forwarder):
    """LeaseService, forwarded to the coordinators, so that backends need one address only.

    A repeated renewal is safe: the holder counts from its own sending, so the lease lives longer than it assumes.
    """

    def __init__(self, peers: Peers, stopping: asyncio.Event) -> None:
        super().__init__("LeaseService", peers)
        self._stopping = stopping

    async def ReleaseLease(self, request: pb.ReleaseLeaseRequest, _context: Any) -> pb.ReleaseLeaseResponse:
        """Releases a lease for its holder, or for an administrator of the tenant."""
        _check_authority(request)
        return await with_retries(lambda: self._peers.leases.ReleaseLease(request))

    async def TransferLease(self, request: pb.TransferLeaseRequest, _context: Any) -> pb.TransferLeaseResponse:
        """Transfers a lease for its holder, or for an administrator of the tenant."""
        _check_authority(request)
        return await with_retries(lambda: self._peers.leases.TransferLease(request))

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


class ScheduleForwarder(Forwarder):
    """ScheduleService: checks the tool names of a spec."""

    def __init__(self, peers: Peers) -> None:
        super().__init__("ScheduleService", peers)

    async def CreateSchedule(
        self, request: schedule_pb.CreateScheduleRequest, _context: Any
    ) -> schedule_pb.CreateScheduleResponse:
        check = check_tool_names(self._peers, request.spec, "spec.")
        if earlier := await earlier_result(self._peers, check, ledger.FindRepeatRequest(create_schedule=request)):
            return schedule_pb.CreateScheduleResponse(schedule=earlier.schedule)
        return await with_retries(lambda: self._peers.schedules.CreateSchedule(request))

    async def UpdateSchedule(
        self, request: schedule_pb.UpdateScheduleRequest, _context: Any
    ) -> schedule_pb.UpdateScheduleResponse:
        """Updates a schedule. A repeat finds the schedule as requested. A new spec is checked like a new schedule's."""
        check = check_tool_names(self._peers, request.spec, "spec.")
        if earlier := await earlier_result(self._peers, check, ledger.FindRepeatRequest(update_schedule=request)):
            return schedule_pb.UpdateScheduleResponse(schedule=earlier.schedule)
        return await with_retries(lambda: self._peers.schedules.UpdateSchedule(request))


class AgentForwarder(Forwarder):
    """AgentService: clients register agents without code."""

    def __init__(self, peers: Peers) -> None:
        super().__init__("AgentService", peers)

    async def RegisterAgent(
        self, request: agent_pb.RegisterAgentRequest, _context: Any
    ) -> agent_pb.RegisterAgentResponse:
        """Registers an agent without code. Those with code come from their workers, through coordinators."""
        if request.definition.kind != agent_pb.AGENT_KIND_MODEL:
            raise InvalidRequest(violations=[("definition.kind", "must be AGENT_KIND_MODEL: workers register code")])
        await check_tool_names(self._peers, task_pb2.TaskSpec(agent=request.definition.agent), "definition.")
        return await with_retries(lambda: self._peers.agents.RegisterAgent(request))


class WebhookForwarder(Forwarder):
    """WebhookService: makes the secret of a webhook."""

    def __init__(self, peers: Peers) -> None:
        super().__init__("WebhookService", peers)

    async def CreateWebhook(
        self, request: webhook_pb.CreateWebhookRequest, _context: Any
    ) -> webhook_pb.CreateWebhookResponse:
        """Creates a webhook. A repeat sends the same secret, and so the same payload."""
        forwarded_request = with_secret(request)
        return await with_retries(lambda: self._peers.webhooks.CreateWebhook(forwarded_request))


_OfTenant = TypeVar(
    "_OfTenant", tenant_pb.GetTenantRequest, tenant_pb.UpdateTenantLimitsRequest, tenant_pb.GetTenantUsageRequest
)


class TenantForwarder(Forwarder):
    """TenantService: limits each caller to its own tenant, except callers of the tenants in `operators`."""

    def __init__(self, peers: Peers, operators: Collection[str]) -> None:
        super().__init__("TenantService", peers)
        self._operators = frozenset(operators)

    async def GetTenant(self, request: tenant_pb.GetTenantRequest, _context: Any) -> tenant_pb.GetTenantResponse:
        with self._acting_on(request) as forwarded:
            return await with_retries(lambda: self._peers.tenants.GetTenant(forwarded))

    async def UpdateTenantLimits(
        self, request: tenant_pb.UpdateTenantLimitsRequest, _context: Any
    ) -> tenant_pb.UpdateTenantLimitsResponse:
        """Updates quotas. A quota of 0 is a stop, which a repeat confirms again."""
        self._check_operator()
        with self._acting_on(request) as forwarded:
            updated = await with_retries(lambda: self._peers.tenants.UpdateTenantLimits(forwarded))
        if updated.tenant.HasField("stopped"):
            updated.tenant.stopped.unconfirmed.extend(await take_to_services(self._peers))
        return updated

    async def ListTenants(self, request: tenant_pb.ListTenantsRequest, _context: Any) -> tenant_pb.ListTenantsResponse:
        self._check_operator()
        return await with_retries(lambda: self._peers.tenants.ListTenants(request))

    async def GetTenantUsage(
        self, request: tenant_pb.GetTenantUsageRequest, _context: Any
    ) -> tenant_pb.GetTenantUsageResponse:
        with self._acting_on(request) as forwarded:
            return await with_retries(lambda: self._peers.tenants.GetTenantUsage(forwarded))

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
    def _acting_on(self, request: _OfTenant) -> Iterator[_OfTenant]:
        """Makes the enclosed calls as the tenant that the request names, and yields the request without that name.

        Raises the same NotFound for existing and missing tenants.
        """
        forwarded = type(request)()
        forwarded.CopyFrom(request)
        forwarded.tenant = ""
        if request.tenant in {"", current_tenant()}:
            yield forwarded
            return
        if not self._is_operator():
            raise NotFound(f"tenant {request.tenant} not found", reason="TENANT_NOT_FOUND")
        with as_tenant(request.tenant):
            yield forwarded
