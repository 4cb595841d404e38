"""Holds the stubs of the services behind the gateway, and the retries of calls to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from socket import SOCK_STREAM
from typing import TYPE_CHECKING, Final, Self, TypeVar

from tenure.domain.access import Role
from tenure.domain.errors import TenureError, TryLater, Unavailable
from tenure.domain.retry import RetryPolicy
from tenure.runtime.certificate_files import PeerTls
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc_client import PEER, open_channel
from tenure.runtime.rpc_status import PeerFailed
from tenure.runtime.security import NO_SECURITY, Security
from tenure.v1 import task_pb2
from tenure.v1.agent_service_pb2_grpc import AgentServiceStub
from tenure.v1.api_key_service_pb2_grpc import ApiKeyServiceStub
from tenure.v1.approval_service_pb2_grpc import ApprovalServiceStub
from tenure.v1.audit_service_pb2_grpc import AuditServiceStub
from tenure.v1.checkpoint_service_pb2 import CheckpointServiceGetTaskRequest
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.v1.coordinator_service_pb2 import ListRenewalsRequest
from tenure.v1.coordinator_service_pb2_grpc import CoordinatorServiceStub
from tenure.v1.lease_service_pb2_grpc import LeaseServiceStub
from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from tenure.v1.tenant_service_pb2_grpc import TenantServiceStub
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub
from tenure.v1.webhook_service_pb2_grpc import WebhookServiceStub

if TYPE_CHECKING:  # these names exist for type checkers only
    from tenure.v1.agent_service_pb2_grpc import AgentServiceAsyncStub
    from tenure.v1.api_key_service_pb2_grpc import ApiKeyServiceAsyncStub
    from tenure.v1.approval_service_pb2_grpc import ApprovalServiceAsyncStub
    from tenure.v1.audit_service_pb2_grpc import AuditServiceAsyncStub
    from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceAsyncStub
    from tenure.v1.coordinator_service_pb2 import Renewals
    from tenure.v1.coordinator_service_pb2_grpc import CoordinatorServiceAsyncStub
    from tenure.v1.lease_service_pb2_grpc import LeaseServiceAsyncStub
    from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceAsyncStub
    from tenure.v1.tenant_service_pb2_grpc import TenantServiceAsyncStub
    from tenure.v1.tool_service_pb2_grpc import ToolServiceAsyncStub
    from tenure.v1.webhook_service_pb2_grpc import WebhookServiceAsyncStub

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)
CALL_TIMEOUT_SECONDS: Final = 10.0
RENEWALS_TIMEOUT_SECONDS: Final = 2.0
MAX_REPLICAS: Final = 64
RETRY_AFTER_SECONDS: Final = 1.0
PATIENCE: Final = RetryPolicy(max_attempts=4, initial_seconds=0.1, factor=3.0, cap_seconds=1.0)
"""The retries of a call. They hide the restart of a replica; after a few seconds the caller gets an error."""


class Peers:
    """The stubs of the services, on channels of this process."""

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
        self.checkpoint: CheckpointServiceAsyncStub
        self.coordinator: CoordinatorServiceAsyncStub
        self.leases: LeaseServiceAsyncStub
        self.schedules: ScheduleServiceAsyncStub
        self.tenants: TenantServiceAsyncStub
        self.tools: ToolServiceAsyncStub
        self.webhooks: WebhookServiceAsyncStub
        self.api_keys: ApiKeyServiceAsyncStub
        self.approvals: ApprovalServiceAsyncStub
        self.audit: AuditServiceAsyncStub
        self.agents: AgentServiceAsyncStub

    async def __aenter__(self) -> Self:
        channels = [
            await self._opened.enter_async_context(
                open_channel(
                    addresses, tls=self._security.peer(role), default_timeout_seconds=CALL_TIMEOUT_SECONDS, peer=peer
                )
            )
            for role, (peer, addresses) in self._addresses.items()
        ]
        self.checkpoint = CheckpointServiceStub(channels[0])
        self.coordinator = CoordinatorServiceStub(channels[1])
        self.leases = LeaseServiceStub(channels[1])
        self.schedules = ScheduleServiceStub(channels[0])
        self.tenants = TenantServiceStub(channels[0])
        self.tools = ToolServiceStub(channels[2])
        self.webhooks = WebhookServiceStub(channels[0])
        self.api_keys = ApiKeyServiceStub(channels[0])
        self.approvals = ApprovalServiceStub(channels[0])
        self.audit = AuditServiceStub(channels[0])
        self.agents = AgentServiceStub(channels[0])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    async def renewals(self, task_id: str) -> dict[str, Renewals]:
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
            listed = await CoordinatorServiceStub(channel).ListRenewals(ListRenewalsRequest(task_id=task_id))
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
    request = CheckpointServiceGetTaskRequest(task_id=task_id)
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
