"""The client's calls about tenants: quotas, and what was billed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from tenure.v1 import tenant_service_pb2 as pb

if TYPE_CHECKING:  # these exist for type checkers only
    from tenure.v1.tenant_service_pb2_grpc import TenantServiceAsyncStub

_PAGE: Final = 500


class TenantCalls:
    """A part of Client, which has the stub and the patience."""

    tenants: TenantServiceAsyncStub
    _patiently: Callable[..., Awaitable[Any]]

    async def get_tenant(self, tenant: str = "") -> pb.Tenant:
        """The caller's own tenant, or, for operators, another: its quotas and what is used of each."""
        answer: pb.GetTenantResponse = await self._patiently(self.tenants.GetTenant, pb.GetTenantRequest(tenant=tenant))
        return answer.tenant

    async def update_tenant_limits(self, request: pb.UpdateTenantLimitsRequest) -> pb.Tenant:
        """The tenant as asked. For operators. Raises WrongState (TENANT_CHANGED), PermissionDenied."""
        answer: pb.UpdateTenantLimitsResponse = await self._patiently(self.tenants.UpdateTenantLimits, request)
        return answer.tenant

    async def list_tenants(self) -> AsyncGenerator[pb.Tenant]:
        """All of them, by name. For operators."""
        asked = pb.ListTenantsRequest(page_size=_PAGE)
        while True:
            page: pb.ListTenantsResponse = await self._patiently(self.tenants.ListTenants, asked)
            for tenant in page.tenants:
                yield tenant
            asked.page_token = page.next_page_token
            if not page.next_page_token:
                return

    async def usage(self, request: pb.GetTenantUsageRequest) -> AsyncGenerator[pb.UsageSum]:
        """What was billed, summed up, by key. Raises NotFound for another tenant, unless to operators."""
        asked = pb.GetTenantUsageRequest()
        asked.CopyFrom(request)
        while True:
            page: pb.GetTenantUsageResponse = await self._patiently(self.tenants.GetTenantUsage, asked)
            for one in page.sums:
                yield one
            asked.page_token = page.next_page_token
            if not page.next_page_token:
                return
