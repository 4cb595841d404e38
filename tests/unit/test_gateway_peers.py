"""What callers are told when a service behind the gateway does not answer."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import pytest

from services.gateway.peers import Peers, patiently
from tenure.domain.errors import Unavailable
from tenure.v1 import checkpoint_service_pb2 as checkpoint
from tenure.v1 import coordinator_service_pb2 as coordinator
from tenure.v1 import tool_service_pb2 as tools


async def test_a_silent_service_is_named_without_its_address() -> None:
    with ExitStack() as bound:
        ports = []
        for _ in range(3):
            closed = bound.enter_context(socket.socket())
            closed.bind(("127.0.0.1", 0))  # bound and not listening: refuses
            ports.append(closed.getsockname()[1])
        async with Peers(*([f"127.0.0.1:{port}"] for port in ports)) as peers:
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "the ledger": lambda: peers.checkpoint.ListQueues(checkpoint.CheckpointServiceListQueuesRequest()),
                "the coordinator": lambda: peers.coordinator.ListWorkers(
                    coordinator.CoordinatorServiceListWorkersRequest()
                ),
                "the tool service": lambda: peers.tools.ListSources(tools.ListSourcesRequest()),
            }
            for peer, call in calls.items():
                with pytest.raises(Unavailable) as refusal:
                    await patiently(call)
                assert refusal.value.message == f"{peer} does not answer just now"
                assert not refusal.value.metadata
