"""A stream whose caller was revoked ends with the refusal, also for a reader that takes nothing meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from tenure.domain.access import Access, Permission, Principal
from tenure.domain.errors import Unauthenticated
from tenure.runtime.rpc.client import open_channel
from tenure.runtime.rpc.server import RpcServer
from tenure.runtime.security import access_control
from tenure.runtime.security.access_control import AccessControl
from tests.support.patience import CALL_SECONDS

SERVICE = "tenure.test.Stream"


@pytest.mark.parametrize("reader", ["slow", "quick"])
async def test_a_revoked_stream_ends_with_the_refusal(monkeypatch: pytest.MonkeyPatch, reader: str) -> None:
    monkeypatch.setattr(access_control, "READMIT_SECONDS", 0.01)
    is_revoked, ended, blocked = False, asyncio.Event(), asyncio.Event()

    async def authenticate(_context: object, _metadata: object) -> Principal:
        if is_revoked:
            raise Unauthenticated("the key is revoked", reason="API_KEY_INVALID")
        return Principal("reader", tenant="default", permissions=frozenset(Permission))

    async def stream(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 100_000
                blocked.set()
        finally:
            ended.set()

    def register(_servicer: object, server: grpc.aio.Server) -> None:
        handlers: Any = {"Read": grpc.unary_stream_rpc_method_handler(stream)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    rules = {"Read": Access(permission=Permission.READ)}
    access = AccessControl(lambda _service: rules, authenticate, serves_clients=True)
    security: Any = SimpleNamespace(access_control=lambda: access, server_credentials=lambda: None)
    server = RpcServer("127.0.0.1:0", security=security)
    server.add(SERVICE, object(), register)
    async with asyncio.timeout(CALL_SECONDS), server, open_channel(server.address) as channel:
        call = channel.unary_stream(f"/{SERVICE}/Read")(b"")
        assert await call.read()
        if reader == "slow":
            await blocked.wait()
            await asyncio.sleep(0.2)  # the buffers of the connection are full
        is_revoked = True
        if reader == "slow":
            await ended.wait()

        async def to_the_end() -> None:
            while await call.read():
                pass

        with pytest.raises(Unauthenticated, match="revoked"):
            await to_the_end()
        await ended.wait()
