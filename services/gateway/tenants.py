"""TenantService handed through to the ledger: here it is decided who may look at, and change, which tenant.

The ledger serves a tenant its own. An operator who names another is let through under that one's identity: so there is
one place where a field says whose something is, and it asks for leave first.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from services.gateway.peers import Peers, patiently
from services.gateway.tasks import caller
from tenure.domain.errors import NotFound, PermissionDenied
from tenure.runtime.tenancy import as_tenant, current_tenant
from tenure.v1 import tenant_service_pb2 as pb
from tenure.v1.tenant_service_pb2_grpc import TenantServiceServicer

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


class TenantServicer(TenantServiceServicer):
    """`operators`: the tenants whose callers may act on all."""

    def __init__(self, peers: Peers, operators: Collection[str]) -> None:
        self._peers, self._operators = peers, frozenset(operators)

    async def GetTenant(self, request: pb.GetTenantRequest, _context: Any) -> pb.GetTenantResponse:
        with self._acting_on(request.tenant):
            return await patiently(lambda: self._peers.tenants.GetTenant(pb.GetTenantRequest()))

    async def UpdateTenantLimits(
        self, request: pb.UpdateTenantLimitsRequest, _context: Any
    ) -> pb.UpdateTenantLimitsResponse:
        """A repeat behind this call finds the quotas as asked."""
        self._check_operator()
        asked = pb.UpdateTenantLimitsRequest()
        asked.CopyFrom(request)
        asked.tenant, asked.actor = "", caller()
        with self._acting_on(request.tenant):
            return await patiently(lambda: self._peers.tenants.UpdateTenantLimits(asked))

    async def ListTenants(self, request: pb.ListTenantsRequest, _context: Any) -> pb.ListTenantsResponse:
        self._check_operator()
        return await patiently(lambda: self._peers.tenants.ListTenants(request))

    async def GetTenantUsage(self, request: pb.GetTenantUsageRequest, _context: Any) -> pb.GetTenantUsageResponse:
        asked = pb.GetTenantUsageRequest()
        asked.CopyFrom(request)
        asked.tenant = ""
        with self._acting_on(request.tenant):
            return await patiently(lambda: self._peers.tenants.GetTenantUsage(asked))

    def _check_operator(self) -> None:
        if current_tenant() not in self._operators:
            raise PermissionDenied("this is for operators", reason="OPERATORS_ONLY")

    @contextmanager
    def _acting_on(self, named: str) -> Iterator[None]:
        """Inside, calls are the named tenant's. To others than operators it is not told whether there is one."""
        if named in {"", current_tenant()}:
            yield
            return
        if current_tenant() not in self._operators:
            raise NotFound(f"there is no tenant {named}", reason="TENANT_NOT_FOUND")
        with as_tenant(named):
            yield
