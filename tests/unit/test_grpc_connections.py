"""The connections of the gRPC port of a gateway: one address does not take them all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from ipaddress import ip_network

from services.gateway.connection_limits import ConnectionLimits
from services.gateway.grpc_connections import GrpcConnections
from tenure.runtime.rpc.server import RpcServer
from tests.support.patience import CALL_SECONDS

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
FRAME_HEAD_BYTES = 9
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def server_with_limit(most: int, *trusted: str) -> AsyncGenerator[tuple[int, GrpcConnections]]:
    """Serves gRPC. Yields the port and what limits its connections, which looks when the test says so."""
    async with RpcServer("127.0.0.1:0") as server:
        limits = ConnectionLimits("gRPC", server.max_connections, most, [ip_network(one) for one in trusted])
        yield server.port, GrpcConnections(server.port, limits)


async def connect(port: int) -> Connection:
    """Returns a connection that the server has accepted: it has greeted."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(PREFACE)
    async with asyncio.timeout(CALL_SECONDS):
        await reader.readexactly(FRAME_HEAD_BYTES)
    return reader, writer


async def is_open(connection: Connection) -> bool:
    """Whether the server answers a ping."""
    reader, writer = connection
    token = b"is it on"
    writer.write(b"\0\0\x08\6\0\0\0\0\0" + token)
    got = b""
    async with asyncio.timeout(CALL_SECONDS):
        while token not in got:
            try:
                part = await reader.read(1024)
            except ConnectionError:
                return False
            if not part:
                return False
            got += part
    return True


def close(connections: Iterable[Connection]) -> None:
    for _, writer in connections:
        writer.close()


async def test_an_address_has_a_limit_of_grpc_connections() -> None:
    """The newest end, those within the limit stay, and one that has ended leaves its place to another."""
    async with server_with_limit(2) as (port, connections):
        first, second = await connect(port), await connect(port)
        await connections.look()
        third = await connect(port)
        await connections.look()
        assert [await is_open(one) for one in (first, second, third)] == [True, True, False]
        close([second])
        async with asyncio.timeout(CALL_SECONDS):
            while True:
                fourth = await connect(port)
                await connections.look()
                if await is_open(fourth):
                    break
                close([fourth])
        assert await is_open(first)
        close([first, third, fourth])


async def test_a_trusted_proxy_has_no_limit_of_its_own() -> None:
    async with server_with_limit(1, "127.0.0.0/8") as (port, connections):
        held = [await connect(port) for _ in range(3)]
        await connections.look()
        assert [await is_open(one) for one in held] == [True, True, True]
        close(held)
