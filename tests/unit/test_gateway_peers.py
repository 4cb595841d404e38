"""The errors that callers get when a service behind the gateway does not answer."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import pytest

from services.gateway.peers import Peers, out_of_reach, with_retries
from tenure.cli.error_texts import explain
from tenure.domain.errors import Unavailable
from tenure.runtime.rpc.client import PEER
from tenure.v1 import admin_service_pb2 as admin_pb


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
