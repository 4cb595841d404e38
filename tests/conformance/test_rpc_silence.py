"""Laws of silence: a peer that is frozen or cut off is noticed by both ends, soon, though no connection closes."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from tenure.domain import errors
from tenure.runtime.rpc.client import open_channel
from tenure.runtime.rpc.options import Keepalive, ServerLimits
from tenure.runtime.rpc.server import RpcServer
from tests.support.fix_proxy import MakeProxy
from tests.support.patience import PATIENCE_SECONDS

QUICK = Keepalive(interval_seconds=1.0, timeout_seconds=0.5)


class Session:
    """One stream that stays open; tells when it begins and how it ends."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()

    async def hold(self, _requests: Any, _context: Any) -> Any:
        try:
            yield b"welcome"
            self.begun.set()
            await asyncio.Event().wait()
        finally:
            self.ended.set()


def serve(session: Session, keepalive: Keepalive) -> RpcServer:
    limits = ServerLimits(min_ping_interval_seconds=0.1)
    server = RpcServer("127.0.0.1:0", keepalive=keepalive, limits=limits, grace_seconds=0.1)
    handler = grpc.method_handlers_generic_handler(
        "t.Session", {"Hold": grpc.stream_stream_rpc_method_handler(session.hold)}
    )
    server.add("t.Session", handler, lambda one, to: to.add_generic_rpc_handlers((one,)))
    return server


async def test_a_client_notices_a_server_that_fell_silent(tcp_proxy: MakeProxy) -> None:
    async with serve(Session(), Keepalive()) as server:
        proxy = await tcp_proxy("127.0.0.1", server.port)
        async with open_channel(proxy.address, keepalive=QUICK) as channel:
            call = channel.stream_stream("/t.Session/Hold")()
            assert await call.read() == b"welcome"
            proxy.deaf()
            async with asyncio.timeout(40):  # not the minute of gRPC's own ping timeout
                with pytest.raises(errors.Unavailable) as caught:
                    await call.read()
            assert caught.value.metadata == {"outcome": "unknown"}


async def test_a_server_notices_a_client_that_fell_silent(tcp_proxy: MakeProxy) -> None:
    session = Session()
    async with serve(session, QUICK) as server:
        proxy = await tcp_proxy("127.0.0.1", server.port)
        async with open_channel(proxy.address, keepalive=Keepalive()) as channel:
            call = channel.stream_stream("/t.Session/Hold")()
            assert await call.read() == b"welcome"
            await session.begun.wait()
            proxy.deaf()
            async with asyncio.timeout(40):
                await session.ended.wait()


async def test_a_client_that_pings_within_the_limit_stays_connected() -> None:
    """Its pings come faster than gRPC accepts by default; our limit allows them, and the connection stays."""
    async with serve(Session(), Keepalive()) as server:
        fast = Keepalive(interval_seconds=0.2, timeout_seconds=20.0)
        async with open_channel(server.address, keepalive=fast) as channel:
            call = channel.stream_stream("/t.Session/Hold")()
            assert await call.read() == b"welcome"
            reading = asyncio.create_task(call.read())
            done, _ = await asyncio.wait([reading], timeout=3.0)
            assert not done
            call.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def test_a_quiet_healthy_connection_is_kept() -> None:
    """A server strikes at the third ping that comes too soon: one that misreads our interval shows by the sixth."""
    async with (
        serve(Session(), Keepalive()) as server,
        open_channel(server.address, keepalive=Keepalive(interval_seconds=0.5, timeout_seconds=20.0)) as channel,
    ):
        call = channel.stream_stream("/t.Session/Hold")()
        assert await call.read() == b"welcome"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3.0):
                await call.read()


@pytest.mark.parametrize("how", ["read", "iterate"])
async def test_a_call_cancelled_by_another_task_is_unavailable(how: str) -> None:
    """grpc.aio raises CancelledError there, which a loop that reconnects takes for its own end."""
    async with serve(Session(), Keepalive()) as server, open_channel(server.address) as channel:
        call = channel.stream_stream("/t.Session/Hold")()

        async def read_to_the_end() -> None:
            if how == "read":
                while True:
                    await call.read()
            async for _ in call:
                pass

        reading = asyncio.create_task(read_to_the_end())
        await asyncio.wait([reading], timeout=0.2)
        call.cancel()
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(errors.Unavailable) as caught:
                await reading
        assert (caught.value.reason, caught.value.metadata) == ("CALL_CANCELLED", {"outcome": "unknown"})


async def test_a_reader_that_is_cancelled_itself_is_cancelled() -> None:
    async with serve(Session(), Keepalive()) as server, open_channel(server.address) as channel:
        call = channel.stream_stream("/t.Session/Hold")()
        assert await call.read() == b"welcome"
        reading = asyncio.create_task(call.read())
        await asyncio.wait([reading], timeout=0.05)
        reading.cancel()
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(asyncio.CancelledError):
                await reading
        second = channel.stream_stream("/t.Session/Hold")()
        assert await second.read() == b"welcome"
        with pytest.raises(TimeoutError):  # and a deadline is a deadline
            async with asyncio.timeout(0.05):
                await second.read()
