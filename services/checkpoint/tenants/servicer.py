"""TenantService on the wire, as far as the ledger serves it: of the caller's tenant, whatever a request says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.checkpoint.tenants import store, usage
from tenure.runtime.tenancy import current_tenant
from tenure.v1 import tenant_service_pb2 as pb
from tenure.v1.tenant_service_pb2_grpc import TenantServiceServicer

if TYPE_CHECKING:
    from tenure.runtime.postgres import Pool


class TenantServicer(TenantServiceServicer):
    """See protos/tenure/v1/tenant_service.proto for what each method promises. Who may ask, the gateway decides."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def GetTenant(self, _request: pb.GetTenantRequest, _context: Any) -> pb.GetTenantResponse:
        return pb.GetTenantResponse(tenant=await store.get_tenant(self._pool, current_tenant()))

    async def UpdateTenantLimits(
        self, request: pb.UpdateTenantLimitsRequest, _context: Any
    ) -> pb.UpdateTenantLimitsResponse:
        updated = await store.update_limits(self._pool, current_tenant(), request)
        return pb.UpdateTenantLimitsResponse(tenant=updated)

    async def ListTenants(self, request: pb.ListTenantsRequest, _context: Any) -> pb.ListTenantsResponse:
        return await store.list_tenants(self._pool, request)

    async def GetTenantUsage(self, request: pb.GetTenantUsageRequest, _context: Any) -> pb.GetTenantUsageResponse:
        return await usage.sum_up(self._pool, current_tenant(), request)
