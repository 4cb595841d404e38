"""What callers are told when a service behind the gateway does not answer."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from services.gateway.peers import Peers, out_of_reach, with_retries
from services.gateway.tool_names import earlier_result
from tenure.cli.error_texts import explain
from tenure.domain.errors import InvalidRequest, Unavailable
from tenure.runtime.rpc.client import PEER
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import checkpoint_service_pb2 as checkpoint


async def test_a_silent_service_is_named_without_its_address() -> None:
    with ExitStack() as bound:
        ports = []
        for _ in range(3):
            closed = bound.enter_context(socket.socket())
            closed.bind(("127.0.0.1", 0))  # bound and not listening: refuses
            ports.append(closed.getsockname()[1])
        ledger, coordinator_, tools_ = ([f"127.0.0.1:{port}"] for port in ports)
        async with Peers(ledger, coordinator_, tools_) as peers:
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "the ledger": lambda: peers.checkpoint.ListQueues(admin_pb.ListQueuesRequest()),
                "the coordinator": lambda: peers.coordinator.ListWorkers(admin_pb.ListWorkersRequest()),
                "the tool service": lambda: peers.tools.ListToolSources(admin_pb.ListToolSourcesRequest()),
            }
            for peer, call in calls.items():
                with pytest.raises(Unavailable) as refusal:
                    await with_retries(call)
                assert refusal.value.message == f"{peer} does not answer just now"
                assert not refusal.value.metadata


def test_full_disk_has_its_own_error() -> None:
    """It does not pass by itself: "try again" would send the caller round in circles."""
    full = Unavailable("could not extend file /var/lib/…", reason="STORAGE_FULL", metadata={PEER: "the ledger"})
    told = out_of_reach(full)
    assert (told.message, told.reason) == (
        "the ledger refuses to write: its disk is full; an operator has to make room",
        "STORAGE_FULL",
    )
    assert explain(told, "127.0.0.1:8470") == told.message


async def test_an_older_ledger_leaves_the_refusal_as_it_is() -> None:
    """It does not have FindRepeat, so a repeat is refused there as before."""

    async def refuse() -> None:
        raise InvalidRequest(violations=[("agent.tools.names", "there is no tool 'a'")])

    async def find_repeat(_request: checkpoint.FindRepeatRequest) -> checkpoint.FindRepeatResponse:
        raise PeerFailed(failure, "no such method")

    peers: Any = SimpleNamespace(checkpoint=SimpleNamespace(FindRepeat=find_repeat))
    request = checkpoint.FindRepeatRequest(create_task=checkpoint.CreateTaskRequest(request_id="r"))
    failure = grpc.StatusCode.UNIMPLEMENTED
    with pytest.raises(InvalidRequest, match="no tool"):
        await earlier_result(peers, refuse(), request)
    failure = grpc.StatusCode.INTERNAL
    with pytest.raises(PeerFailed):
        await earlier_result(peers, refuse(), request)
