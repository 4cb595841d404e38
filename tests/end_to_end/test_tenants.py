"""Tenants through the gateway, with real processes: a cap refuses and delays, fails nothing, and shows where it is."""

from __future__ import annotations

import uuid

import pytest

from tenure.client import Client
from tenure.domain.errors import LimitReached, NotFound, PermissionDenied
from tenure.v1 import tenant_service_pb2 as pb
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation


def quota(kind: pb.QuotaKind.ValueType, most: int, policy: pb.QuotaPolicy.ValueType) -> pb.Quota:
    return pb.Quota(kind=kind, most=most, policy=policy)


async def set_quotas(install: Installation, tenant: str, *quotas: pb.Quota) -> pb.Tenant:
    """As an operator."""
    request = pb.UpdateTenantLimitsRequest(tenant=tenant, quotas=quotas, reason="a test")
    return (await install.client.tenants.UpdateTenantLimits(request)).tenant


async def test_a_tenants_cap_refuses_only_its_own_submits(installation: Installation) -> None:
    name = f"t-{uuid.uuid4().hex[:12]}"
    capped = await set_quotas(installation, name, quota(pb.QUOTA_KIND_SUBMITS_PER_MINUTE, 1, pb.QUOTA_POLICY_REFUSE))
    assert (capped.tenant, capped.revision, capped.actor) == (name, 1, "tenant/default")
    async with Client(installation.stack.gateway_address, tenant=name) as client:
        await client.submit("the only one")
        with pytest.raises(LimitReached) as refused:
            await client.submit("one too many")
        assert refused.value.reason == "TENANT_QUOTA"
        assert refused.value.retry_after_seconds is not None
        assert [use.used for use in (await client.tenants.GetTenant(pb.GetTenantRequest())).tenant.quotas][1] == 1
        with pytest.raises(NotFound):
            await client.tenants.GetTenant(pb.GetTenantRequest(tenant="default"))
        with pytest.raises(PermissionDenied):
            await client.tenants.UpdateTenantLimits(
                pb.UpdateTenantLimitsRequest(follow_defaults=[pb.QUOTA_KIND_SUBMITS_PER_MINUTE], reason="more for me")
            )
    assert name in {
        tenant.tenant
        async for tenant in installation.client.items(
            installation.client.tenants.ListTenants, pb.ListTenantsRequest(), lambda page: page.tenants
        )
    }
    await installation.submit("sim-hello")
    response = await tenure("--tenant", name, "submit", "again", address=installation.stack.gateway_address)
    assert response.code == 4
    assert "1 of 1 submits a minute" in response.err
