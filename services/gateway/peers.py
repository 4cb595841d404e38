"""Holds the stubs of the services behind the gateway, and the retries of calls to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from socket import SOCK_STREAM
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from tenure.domain.access import Role
from tenure.domain.errors import TenureError, TryLater, Unavailable
from tenure.domain.retry import RetryPolicy
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc.client import PEER, open_channel
from tenure.runtime.rpc.status import PeerFailed
from tenure.runtime.security.certificate_files import PeerTls
from tenure.runtime.security.process_security import NO_SECURITY, Security
from tenure.v1 import (
    agent_service_pb2_grpc,
    api_key_service_pb2_grpc,
    approval_service_pb2_grpc,
    audit_service_pb2_grpc,
    checkpoint_service_pb2_grpc,
    coordinator_service_pb2_grpc,
    lease_service_pb2_grpc,
    schedule_service_pb2_grpc,
    tenant_service_pb2_grpc,
    tool_service_pb2_grpc,
    webhook_service_pb2_grpc,
)
from tenure.v1.coordinator_service_pb2 import ListRenewalsRequest
from tenure.v1.task_service_pb2 import GetTaskRequest

if TYPE_CHECKING:
    from tenure.v1 import task_pb2
    from tenure.v1.admin_service_pb2 import Claim, Renewals

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)
CALL_TIMEOUT_SECONDS: Final = 10.0
RENEWALS_TIMEOUT_SECONDS: Final = 2.0
MAX_REPLICAS: Final = 64
RETRY_AFTER_SECONDS: Final = 1.0
PATIENCE: Final = RetryPolicy(max_attempts=4, initial_seconds=0.1, factor=3.0, cap_seconds=1.0)
"""The retries of a call. They hide the restart of a replica; after a few seconds the caller gets an error."""


_STUBS: Final[Mapping[str, tuple[Role, type[Any]]]] = {
    "checkpoint": (Role.CHECKPOINT, checkpoint_service_pb2_grpc.CheckpointServiceStub),
    "schedules": (Role.CHECKPOINT, schedule_service_pb2_grpc.ScheduleServiceStub),
    "tenants": (Role.CHECKPOINT, tenant_service_pb2_grpc.TenantServiceStub),
    "webhooks": (Role.CHECKPOINT, webhook_service_pb2_grpc.WebhookServiceStub),
    "api_keys": (Role.CHECKPOINT, api_key_service_pb2_grpc.ApiKeyServiceStub),
    "approvals": (Role.CHECKPOINT, approval_service_pb2_grpc.ApprovalServiceStub),
    "audit": (Role.CHECKPOINT, audit_service_pb2_grpc.AuditServiceStub),
    "agents": (Role.CHECKPOINT, agent_service_pb2_grpc.AgentServiceStub),
    "coordinator": (Role.COORDINATOR, coordinator_service_pb2_grpc.CoordinatorServiceStub),
    "leases": (Role.COORDINATOR, lease_service_pb2_grpc.LeaseServiceStub),
    "tools": (Role.TOOLS, tool_service_pb2_grpc.ToolServiceStub),
}
PEER_SERVICES: Final = {attribute: stub.__name__.removesuffix("Stub") for attribute, (_, stub) in _STUBS.items()}
"""The services behind the gateway, by the attributes of `Peers` with their stubs."""


class Peers:
    """The stubs of the services, on channels of this process."""

    checkpoint: checkpoint_service_pb2_grpc.CheckpointServiceAsyncStub
    schedules: schedule_service_pb2_grpc.ScheduleServiceAsyncStub
    tenants: tenant_service_pb2_grpc.TenantServiceAsyncStub
    webhooks: webhook_service_pb2_grpc.WebhookServiceAsyncStub
    api_keys: api_key_service_pb2_grpc.ApiKeyServiceAsyncStub
    approvals: approval_service_pb2_grpc.ApprovalServiceAsyncStub
    audit: audit_service_pb2_grpc.AuditServiceAsyncStub
    agents: agent_service_pb2_grpc.AgentServiceAsyncStub
    coordinator: coordinator_service_pb2_grpc.CoordinatorServiceAsyncStub
    leases: lease_service_pb2_grpc.LeaseServiceAsyncStub
    tools: tool_service_pb2_grpc.ToolServiceAsyncStub

    def __init__(
        self,
        checkpoint: Sequence[str],
        coordinator: Sequence[str],
        tools: Sequence[str],
        security: Security = NO_SECURITY,
    ) -> None:
        self._security = security
        self._addresses = {
            Role.CHECKPOINT: ("the ledger", checkpoint),
            Role.COORDINATOR: ("the coordinator", coordinator),
            Role.TOOLS: ("the tool service", tools),
        }
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> Self:
        channels = {
            role: await self._opened.enter_async_context(
                open_channel(
                    addresses, tls=self._security.peer(role), default_timeout_seconds=CALL_TIMEOUT_SECONDS, peer=peer
                )
            )
            for role, (peer, addresses) in self._addresses.items()
        }
        for attribute, (role, stub) in _STUBS.items():
            setattr(self, attribute, stub(channels[role]))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    async def add_renewals(self, claims: Sequence[Claim], task_id: str) -> None:
        """Adds to the claims, all of them or those of a task, the renewals that their coordinators know."""
        renewals = await self._renewals(task_id) if claims else {}
        for claim in claims:
            if claim.claim_id in renewals:
                claim.renewals.CopyFrom(renewals[claim.claim_id])

    async def _renewals(self, task_id: str) -> dict[str, Renewals]:
        """Returns the renewals of claims by claim id, from every replica of the coordinator that answers soon."""
        _, addresses = self._addresses[Role.COORDINATOR]
        replicas, tls = await _replicas_of(addresses), self._security.peer(Role.COORDINATOR)
        newest: dict[str, Renewals] = {}
        for listed in await asyncio.gather(*(_renewals_at(address, tls, task_id) for address in replicas)):
            for claim_id, renewals in listed.items():
                known = newest.get(claim_id)
                if known is None or known.last_time.ToNanoseconds() < renewals.last_time.ToNanoseconds():
                    newest[claim_id] = renewals
        return newest


async def _replicas_of(addresses: Sequence[str]) -> list[str]:
    """Returns the `ip:port` of every replica: a name may stand for several."""
    replicas: set[str] = set()
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            infos = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), port, type=SOCK_STREAM)
        except OSError:
            continue
        replicas |= {f"[{ip}]:{port}" if ":" in str(ip) else f"{ip}:{port}" for *_, (ip, *_) in infos}
    return sorted(replicas)[:MAX_REPLICAS]


async def _renewals_at(address: str, tls: PeerTls | None, task_id: str) -> Mapping[str, Renewals]:
    try:
        async with open_channel(address, tls=tls, default_timeout_seconds=RENEWALS_TIMEOUT_SECONDS) as channel:
            listed = await coordinator_service_pb2_grpc.CoordinatorServiceStub(channel).ListRenewals(
                ListRenewalsRequest(task_id=task_id)
            )
            return listed.renewals
    except (TenureError, PeerFailed) as error:  # also a replica of an older version
        _log.debug("a replica listed no renewals", extra={"address": address, "error": str(error)})
        return {}


_FOR_OPERATORS: Final = {
    "STORAGE_FULL": "its disk is full; an operator has to make room",
    "READ_ONLY": "its Postgres is read-only; a failover may be under way, or an operator has to name the primary",
}
"""States of a store that do not pass by themselves. They tell nothing about addresses."""


async def with_retries(call: Callable[[], Awaitable[T]]) -> T:
    """Makes a repeatable call, and repeats it for a few seconds until the service answers.

    Raises Unavailable with a retry delay. Only the log shows the addresses and the failures of the services.
    """
    try:
        return await retrying(call, PATIENCE, on=(Unavailable,))
    except Unavailable as error:
        raise out_of_reach(error) from error


async def read_task(peers: Peers, task_id: str) -> task_pb2.Task:
    """Returns the task from the ledger. Raises NotFound and Unavailable."""
    request = GetTaskRequest(task_id=task_id)
    return (await with_retries(lambda: peers.checkpoint.GetTask(request))).task


def out_of_reach(error: TryLater) -> Unavailable:
    """Returns the error for a caller when a service does not answer. It names the service, not its address."""
    peer = error.metadata.get(PEER, "a part of this installation")
    _log.warning("a service behind the gateway does not answer", extra={"peer": peer, "why": str(error)})
    retry_after_seconds = error.retry_after_seconds or RETRY_AFTER_SECONDS
    if error.reason in _FOR_OPERATORS:
        message = f"{peer} refuses to write: {_FOR_OPERATORS[error.reason]}"
        return Unavailable(message, reason=error.reason, retry_after_seconds=retry_after_seconds)
    return Unavailable(f"{peer} does not answer just now", retry_after_seconds=retry_after_seconds)
