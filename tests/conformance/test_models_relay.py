"""The channels of a model runner to other replicas: their number is bounded, and none closes while a call uses it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from services.models import relay as relays
from services.models.relay import Relay
from services.models.rules import RelayCall
from tenure.runtime.security.process_security import NO_SECURITY
from tenure.v1 import model_service_pb2 as pb
from tenure.v1.model_service_pb2_grpc import ModelServiceServicer, add_ModelServiceServicer_to_server
from tests.support.patience import PATIENCE_SECONDS


class Replica(ModelServiceServicer):
    """Sends one part of each answer, and the other one when it may go on. Knows the connections of its callers."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.peers: list[str] = []

    async def Generate(self, _request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        self.peers.append(context.peer())
        yield pb.GenerateResponse()
        await self.goes_on.wait()
        yield pb.GenerateResponse()

    async def CancelGeneration(self, _request: Any, context: Any) -> pb.CancelGenerationResponse:
        self.peers.append(context.peer())
        return pb.CancelGenerationResponse()

    async def CountInputTokens(self, _request: Any, _context: Any) -> pb.CountInputTokensResponse:
        return pb.CountInputTokensResponse()


@asynccontextmanager
async def serving(replica: Replica) -> AsyncIterator[RelayCall]:
    server = grpc.aio.server()
    add_ModelServiceServicer_to_server(replica, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield RelayCall(uuid.uuid4(), f"127.0.0.1:{port}")
    finally:
        await server.stop(None)


@asynccontextmanager
async def relaying(first: Replica) -> AsyncIterator[tuple[Relay, RelayCall, RelayCall]]:
    """A relay, with calls to this replica and to another one."""
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        serving(first) as to_first,
        serving(Replica()) as to_other,
        Relay(NO_SECURITY) as relay,
    ):
        yield relay, to_first, to_other


async def test_a_used_channel_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "MAX_CHANNELS", 1)
    first = Replica()
    async with (
        relaying(first) as (relay, to_first, to_other),
        aclosing(relay.generate(to_first, pb.GenerateRequest())) as parts,
    ):
        await anext(parts)
        await relay.cancel(to_other, pb.CancelGenerationRequest())
        first.goes_on.set()
        assert [part async for part in parts] == [pb.GenerateResponse()]


async def test_an_unused_channel_beyond_the_bound_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call of that replica comes by a new connection."""
    monkeypatch.setattr(relays, "MAX_CHANNELS", 1)
    first = Replica()
    async with relaying(first) as (relay, to_first, to_other):
        for to in (to_first, to_first, to_other, to_first):
            await relay.cancel(to, pb.CancelGenerationRequest())
    assert [first.peers.index(peer) for peer in first.peers] == [0, 0, 2]
