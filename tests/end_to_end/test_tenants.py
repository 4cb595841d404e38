"""Tenants through the gateway, with real processes: a cap refuses and delays, fails nothing, and shows where it is."""

from __future__ import annotations

import uuid
from contextlib import AsyncExitStack

import pytest

from tenure.client import Client
from tenure.domain.errors import LimitReached, NotFound, PermissionDenied
from tenure.v1 import task_pb2
from tenure.v1 import tenant_service_pb2 as pb
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation
from tests.support.patience import PATIENCE_SECONDS


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


@pytest.mark.faults
async def test_a_task_at_its_token_cap_waits_and_then_succeeds(
    installation: Installation,
) -> None:
    name = f"t-{uuid.uuid4().hex[:12]}"
    cap = quota(pb.QUOTA_KIND_TOKENS_PER_HOUR, 1, pb.QUOTA_POLICY_DELAY)
    async with AsyncExitStack() as opened:
        client = await opened.enter_async_context(Client(installation.stack.gateway_address, tenant=name))
        theirs = Installation(installation.stack, client)
        first = await theirs.submit("sim-hello")
        assert (await theirs.ended(first)).state == task_pb2.TASK_STATE_SUCCEEDED
        await set_quotas(installation, name, cap)
        second = await theirs.submit("sim-hello")
        task = await client.get(second)
        assert (task.state, task.reason) == (task_pb2.TASK_STATE_QUEUED, "TENANT_QUOTA")
        explained = " ".join((await client.explain(second)).lines)
        assert "tokens an hour" in explained
        await set_quotas(installation, name, quota(cap.kind, 10**12, cap.policy))
        assert (await client.wait(second, PATIENCE_SECONDS)).state == task_pb2.TASK_STATE_SUCCEEDED
        sums = [
            one
            async for one in client.items(
                client.tenants.GetTenantUsage,
                pb.GetTenantUsageRequest(group_by=pb.USAGE_GROUPING_ROOT),
                lambda page: page.sums,
            )
        ]
        assert {one.key for one in sums} == {first, second}
        entry = (await client.tenants.GetTenant(pb.GetTenantRequest())).tenant.quotas[pb.QUOTA_KIND_TOKENS_PER_HOUR - 1]
    assert entry.used == sum(
        one.usage.input_tokens
        + one.usage.output_tokens
        + one.usage.cache_creation_input_tokens
        + one.usage.cache_read_input_tokens
        for one in sums
    )
    shown = await tenure(
        "--tenant", name, "tenants", "usage", "--by", "model", address=installation.stack.gateway_address
    )
    assert (shown.code, "CACHED" in shown.out) == (0, True)
