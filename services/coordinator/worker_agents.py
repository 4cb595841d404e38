"""Registers the agents and functions of workers in the registries of their tenants, which the worker's pool limits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tenure.domain.access import certificate_name, check_holder
from tenure.domain.errors import PermissionDenied
from tenure.domain.pools import OUTSIDE_POOL, WorkerPool
from tenure.domain.task import offered_loop
from tenure.runtime.request_context import DEFAULT_TENANT, as_tenant
from tenure.v1 import agent_service_pb2, coordinator_service_pb2
from tenure.v1.agent_service_pb2_grpc import AgentServiceStub

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.coordinator.pools import WorkerPools
    from tenure.domain.access import Principal
    from tenure.runtime.rpc.client import TenureChannel
    from tenure.v1 import coordinator_service_pb2 as pb
    from tenure.v1.agent_service_pb2_grpc import AgentServiceAsyncStub

_TIMEOUT_SECONDS: Final = 10.0
AT_ONCE: Final = 16
"""Registrations at a time: one after the other, those of a pool with many tenants take longer than a worker waits."""


class WorkerAgents:
    """Forwards registrations to the ledger, once for each tenant. A repeat is safe."""

    def __init__(self, channel: TenureChannel, pools: WorkerPools) -> None:
        self._stub: AgentServiceAsyncStub = AgentServiceStub(channel)
        self._pools = pools

    async def register(
        self, request: pb.RegisterWorkerAgentsRequest, principal: Principal
    ) -> pb.RegisterWorkerAgentsResponse:
        """Registers the agents. Raises PermissionDenied (OTHER_HOLDER, NOT_IN_POOL, OUTSIDE_POOL)."""
        check_holder(principal, request.worker_id)
        identity = certificate_name("" if principal.role is None else principal.name)
        pool = self._pools.pool_of(identity)
        pool.check(identity, (), [offered_loop(agent.name) for agent in request.agents])
        wanted = [(tenant, agent) for tenant in _tenants(pool, request.tenants) for agent in request.agents]
        revisions: list[agent_service_pb2.AgentRevision] = []
        for start in range(0, len(wanted), AT_ONCE):
            some = (self._register(request, *each) for each in wanted[start : start + AT_ONCE])
            for registered in await asyncio.gather(*some, return_exceptions=True):
                if isinstance(registered, BaseException):
                    raise registered
                revisions.append(registered)
        return coordinator_service_pb2.RegisterWorkerAgentsResponse(revisions=revisions)

    async def _register(
        self, request: pb.RegisterWorkerAgentsRequest, tenant: str, agent: pb.WorkerAgent
    ) -> agent_service_pb2.AgentRevision:
        wanted = agent_service_pb2.RegisterAgentRequest(
            name=agent.name, definition=agent.definition, build=request.build, actor=f"worker/{request.worker_id}"
        )
        with as_tenant(tenant):
            return (await self._stub.RegisterAgent(wanted, timeout=_TIMEOUT_SECONDS)).revision


def _tenants(pool: WorkerPool, stated: Sequence[str]) -> list[str]:
    """Returns the tenants of a worker: those that it states, else those of its pool. Raises PermissionDenied."""
    tenants = sorted(set(stated)) or sorted(pool.tenants or (DEFAULT_TENANT,))
    outside = [tenant for tenant in tenants if not pool.takes_tenant(tenant)]
    if outside:
        raise PermissionDenied(
            f"the pool {pool.name} does not have the tenant {outside[0]}: remove it from TENURE_WORKER_AGENT_TENANTS",
            reason=OUTSIDE_POOL,
            metadata={"pool": pool.name, "tenant": outside[0]},
        )
    return tenants
