"""What strangers answer takes neither the process's time nor its sockets."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any
from unittest.mock import AsyncMock, Mock

import httpcore2
import pytest
from h11 import _abnf, _readers

from services.tools.sending import failure_answer
from tenure.domain.outbound import EVERYWHERE, Networks, parse_url
from tenure.runtime.http.outbound_http import (
    MAX_READ_BYTES,
    MAX_TINY_PIECES,
    CheckedNetworkBackend,
    Closings,
    HttpResponse,
    Outgoing,
    UntrustedStream,
    http_tls_context,
)
from tests.support.http_stub import HttpStub, page
from tests.support.model_clients import model_client
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tcp_server import tcp_server

MAX_CPU_SECONDS = 4.0


@asynccontextmanager
async def outgoing(**settings: Any) -> AsyncGenerator[Any]:
    backend = CheckedNetworkBackend(Networks(EVERYWHERE), "tests", **settings)
    async with Outgoing(backend, most_connections=4) as connections:
        yield connections


async def test_header_of_blanks_is_read_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With h11 as it was shipped, until there is a backend for strangers."""
    monkeypatch.setattr(_readers, "header_field_re", re.compile(_abnf.header_field.encode("ascii")))
    answer = b"HTTP/1.1 200 OK\r\nx:" + b" " * 95_000 + b"\0\r\n\r\n"
    async with HttpStub(lambda _: answer) as stranger, outgoing() as connections:
        began = time.process_time()
        with pytest.raises(httpcore2.RemoteProtocolError):
            async with connections.send("GET", parse_url(stranger.url()), []):
                pass
        assert time.process_time() - began < MAX_CPU_SECONDS


async def test_sent_mark_follows_the_handshake() -> None:
    seen = []
    async with HttpStub(lambda _: page("hello")) as stranger, outgoing() as connections:
        url = parse_url(stranger.url())
        async with connections.send("POST", url, [], b"x", connect_seconds=60, going_out=lambda: seen.append(1)) as got:
            assert (await got.read(10)).content == b"hello"
    assert seen == [1]
    async with outgoing() as connections:
        with pytest.raises(httpcore2.ConnectError):
            async with connections.send("POST", url, [], connect_seconds=60, going_out=lambda: seen.append(2)):
                pass
    assert seen == [1]


class Keeping(httpcore2.AnyIOBackend):
    """No stream is closed by being forgotten."""

    def __init__(self) -> None:
        self.streams: list[Any] = []

    async def connect_tcp(self, *args: Any, **kwargs: Any) -> Any:
        self.streams.append(await super().connect_tcp(*args, **kwargs))
        return self.streams[-1]


@pytest.mark.parametrize("turns", range(1, 12))
async def test_a_cancelled_request_closes_all_that_expired(turns: int) -> None:
    """The pool closes the connections that were idle for too long when the next request begins."""
    open_connections, three_connected = 0, asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_connections
        open_connections += 1
        if open_connections == 3:
            three_connected.set()
        with suppress(ConnectionError):
            while await reader.readline():
                while (await reader.readline()).strip():
                    pass
                await three_connected.wait()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        open_connections -= 1

    backend = CheckedNetworkBackend(Networks(EVERYWHERE), "tests", dialer=Keeping())
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        tcp_server(serve) as port,
        Outgoing(backend, most_connections=4, kept_alive_seconds=0.01) as connections,
    ):

        async def ask() -> None:
            async with connections.send("GET", parse_url(f"http://127.0.0.1:{port}/"), []):
                pass

        await asyncio.gather(ask(), ask(), ask())
        await asyncio.sleep(0.02)
        fourth = asyncio.ensure_future(ask())
        for _ in range(turns):
            await asyncio.sleep(0)
        fourth.cancel()
        await asyncio.wait({fourth})
        while open_connections:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", ["cancelled", "late"])
async def test_unanswered_handshake_closes_its_socket(how: str) -> None:
    greeted, ended = asyncio.Event(), asyncio.Event()

    async def never_answer(reader: Any, writer: Any) -> None:
        await reader.read(1)
        greeted.set()
        while await reader.read(1000):
            pass
        writer.close()
        ended.set()

    async def ask(connections: Any, port: Any) -> None:
        seconds = 0.5 if how == "late" else None
        async with connections.send("GET", parse_url(f"https://127.0.0.1:{port}/"), [], connect_seconds=seconds):
            pass

    async with asyncio.timeout(PATIENCE_SECONDS), outgoing(dialer=Keeping()) as connections:
        server = await asyncio.start_server(never_answer, "127.0.0.1", 0)
        asking = asyncio.ensure_future(ask(connections, server.sockets[0].getsockname()[1]))
        await greeted.wait()
        if how == "cancelled":
            asking.cancel()
        with pytest.raises((asyncio.CancelledError, httpcore2.ConnectTimeout)):
            await asking
        await ended.wait()
        server.close()


async def test_a_body_in_tiny_pieces_is_bounded_and_yields() -> None:
    given = turns = 0

    async def endless() -> AsyncGenerator[Any]:
        nonlocal given
        while True:
            given += 1
            yield b"x"

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    body = await HttpResponse(200, {}, httpcore2.Response(200, content=endless())).read(1 << 20)
    counting.cancel()
    assert not body.is_whole
    assert 0 < len(body.content) == given <= MAX_TINY_PIECES * 2
    assert turns > 20


async def test_a_body_in_small_pieces_is_read_to_its_end() -> None:
    async def lines() -> AsyncGenerator[Any]:
        for _ in range(20_000):
            yield b"a line of forty bytes or so, as it comes\n"

    body = await HttpResponse(200, {}, httpcore2.Response(200, content=lines())).read(1 << 20)
    assert body.is_whole


async def test_reads_are_bounded_per_turn_of_the_loop() -> None:
    async with HttpStub(lambda _: page(b"x" * (1 << 20))) as stranger:
        stream = await CheckedNetworkBackend(Networks(EVERYWHERE), "tests").connect_tcp("127.0.0.1", stranger.port)
        await stream.write(b"GET / HTTP/1.1\r\n\r\n")
        while some := await stream.read(1 << 20):
            assert len(some) <= MAX_READ_BYTES
        await stream.aclose()


async def test_other_tasks_run_while_an_answer_is_read() -> None:
    turns, stream = 0, UntrustedStream(Mock(read=AsyncMock(return_value=b"x")), Closings())

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    for _ in range(20):
        await stream.read(1)
    counting.cancel()
    assert turns >= 19


def test_only_a_failed_handshake_proves_nothing_was_sent() -> None:
    broken = ssl.SSLError(1, "bad record")
    after = failure_answer(broken, "The host", 5)
    assert (after.detail, "Nothing was sent" in after.message) == ("CONNECTION_LOST", False)
    handshake = httpcore2.ConnectError("no")
    handshake.__cause__ = broken
    before = failure_answer(handshake, "The host", 5)
    assert (before.detail, "Nothing was sent" in before.message) == ("TLS_FAILED", True)
    assert failure_answer(httpcore2.ReadError(), "The host", 5).detail == "CONNECTION_LOST"
    assert failure_answer(httpcore2.ConnectError(), "The host", 5).detail == "UNREACHABLE"


async def test_connections_of_a_process_share_the_tls_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's authorities take 20 ms to load, in which the process does nothing else."""
    http_tls_context()

    def load_again(**_: bool) -> None:
        raise AssertionError("the authorities are loaded again")

    monkeypatch.setattr(httpcore2, "default_ssl_context", load_again)
    backend = CheckedNetworkBackend(Networks(EVERYWHERE), "tests")
    async with model_client("http://127.0.0.1:1"), Outgoing(backend, most_connections=1):
        pass
