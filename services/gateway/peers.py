"""Holds the stubs of the services behind the gateway, and the retries of calls to them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, Self, TypeVar

from tenure.domain.errors import TryLater, Unavailable
from tenure.domain.retry import RetryPolicy
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc_client import PEER, open_channel
from tenure.v1 import task_pb2
from tenure.v1.checkpoint_service_pb2 import CheckpointServiceGetTaskRequest
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.v1.coordinator_service_pb2_grpc import CoordinatorServiceStub
from tenure.v1.lease_service_pb2_grpc import LeaseServiceStub
from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from tenure.v1.tenant_service_pb2_grpc import TenantServiceStub
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub
from tenure.v1.webhook_service_pb2_grpc import WebhookServiceStub

if TYPE_CHECKING:  # these names exist for type checkers only
    from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceAsyncStub
    from tenure.v1.coordinator_service_pb2_grpc import CoordinatorServiceAsyncStub
    from tenure.v1.lease_service_pb2_grpc import LeaseServiceAsyncStub
    from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceAsyncStub
    from tenure.v1.tenant_service_pb2_grpc import TenantServiceAsyncStub
    from tenure.v1.tool_service_pb2_grpc import ToolServiceAsyncStub
    from tenure.v1.webhook_service_pb2_grpc import WebhookServiceAsyncStub

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)
CALL_TIMEOUT_SECONDS: Final = 10.0
RETRY_AFTER_SECONDS: Final = 1.0
PATIENCE: Final = RetryPolicy(max_attempts=4, initial_seconds=0.1, factor=3.0, cap_seconds=1.0)
"""The retries of a call. They hide the restart of a replica; after a few seconds the caller gets an error."""


class Peers:
    """The stubs of the services, on channels of this process."""

    def __init__(self, checkpoint: Sequence[str], coordinator: Sequence[str], tools: Sequence[str]) -> None:
        self._addresses = {"the ledger": checkpoint, "the coordinator": coordinator, "the tool service": tools}
        self._opened = AsyncExitStack()
        self.checkpoint: CheckpointServiceAsyncStub
        self.coordinator: CoordinatorServiceAsyncStub
        self.leases: LeaseServiceAsyncStub
        self.schedules: ScheduleServiceAsyncStub
        self.tenants: TenantServiceAsyncStub
        self.tools: ToolServiceAsyncStub
        self.webhooks: WebhookServiceAsyncStub

    async def __aenter__(self) -> Self:
        channels = [
            await self._opened.enter_async_context(
                open_channel(addresses, default_timeout_seconds=CALL_TIMEOUT_SECONDS, peer=peer)
            )
            for peer, addresses in self._addresses.items()
        ]
        self.checkpoint = CheckpointServiceStub(channels[0])
        self.coordinator = CoordinatorServiceStub(channels[1])
        self.leases = LeaseServiceStub(channels[1])
        self.schedules = ScheduleServiceStub(channels[0])
        self.tenants = TenantServiceStub(channels[0])
        self.tools = ToolServiceStub(channels[2])
        self.webhooks = WebhookServiceStub(channels[0])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()


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
    return Unavailable(
        f"{peer} does not answer just now",
        retry_after_seconds=error.retry_after_seconds or RETRY_AFTER_SECONDS,
    )
