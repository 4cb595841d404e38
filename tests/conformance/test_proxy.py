"""Laws of the proxy that fault tests put between parts: the instrument has to be right too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.fix_proxy import MakeProxy
from tests.support.patience import PATIENCE_SECONDS


@asynccontextmanager
async def echo() -> AsyncGenerator[Any]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(1024):
            writer.write(chunk)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def talking_to(port: int) -> AsyncGenerator[Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def test_the_proxy_passes_bytes_in_both_directions(tcp_proxy: MakeProxy) -> None:
    async with echo() as port, asyncio.timeout(PATIENCE_SECONDS):
        proxy = await tcp_proxy("127.0.0.1", port)
        async with talking_to(proxy.port) as (reader, writer):
            writer.write(b"x" * 1_000_000)
            writer.write_eof()
            assert await reader.read(-1) == b"x" * 1_000_000


async def test_a_deaf_proxy_keeps_connections_and_passes_nothing(tcp_proxy: MakeProxy) -> None:
    async with echo() as port, asyncio.timeout(PATIENCE_SECONDS):
        proxy = await tcp_proxy("127.0.0.1", port)
        async with talking_to(proxy.port) as (reader, writer):
            proxy.deaf()
            writer.write(b"hello")
            reading = asyncio.create_task(reader.read(5))
            done, _ = await asyncio.wait([reading], timeout=0.1)
            assert not done
            assert proxy.connection_count == 1
            proxy.observe()
            assert await reading == b"hello"


async def test_a_reset_proxy_breaks_connections_and_accepts_new_ones(tcp_proxy: MakeProxy) -> None:
    async with echo() as port, asyncio.timeout(PATIENCE_SECONDS):
        proxy = await tcp_proxy("127.0.0.1", port)
        async with talking_to(proxy.port) as (reader, writer):
            writer.write(b"hello")
            assert await reader.read(5) == b"hello"
            await proxy.reset()
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
        async with talking_to(proxy.port) as (reader, writer):
            writer.write(b"again")
            assert await reader.read(5) == b"again"


async def test_a_restarted_proxy_accepts_at_the_same_address(tcp_proxy: MakeProxy) -> None:
    async with echo() as port, asyncio.timeout(PATIENCE_SECONDS):
        proxy = await tcp_proxy("127.0.0.1", port)
        address = proxy.address
        async with talking_to(proxy.port) as (reader, writer):
            writer.write(b"hello")
            assert await reader.read(5) == b"hello"
            await proxy.stop()
            assert await reader.read(1) == b""
        with pytest.raises(ConnectionRefusedError):
            async with talking_to(proxy.port):
                pytest.fail("it still accepts")
        await proxy.start()
        assert proxy.address == address
        async with talking_to(proxy.port) as (reader, writer):
            writer.write(b"again")
            assert await reader.read(5) == b"again"
