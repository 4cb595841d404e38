"""The HTTP server under the simulator, byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from devstack.simulator.http_server import HttpServer
from tests.support.patience import PATIENCE_SECONDS

HEAD = b"POST /x HTTP/1.1\r\nHost: a\r\n"


class Echo:
    """Answers with the body it got; /wait never answers, /crash fails."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self, request: Any, reply: Any) -> None:
        if request.path == "/crash":
            raise RuntimeError("as ordered")
        if request.path == "/wait":
            self.waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        reply.send(200, request.body)


@pytest.fixture
async def echo() -> Any:
    return Echo()


@pytest.fixture
async def server(echo: Any) -> AsyncIterator[Any]:
    async with HttpServer(echo, max_body_bytes=1000) as server:
        yield server


@pytest.fixture
async def connection(server: Any) -> AsyncIterator[Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    async with asyncio.timeout(PATIENCE_SECONDS):
        yield reader, writer
    writer.close()
    await writer.wait_closed()


async def answer(reader: Any) -> Any:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next((int(line.split(":")[1]) for line in head.splitlines() if line.startswith("content-length")), 0)
    return int(head.split()[1]), await reader.readexactly(length)


async def test_requests_sent_at_once_are_answered_in_order(connection: Any) -> None:
    reader, writer = connection
    writer.write(b"".join(HEAD + b"Content-Length: 3\r\n\r\n" + body for body in (b"one", b"two", b"six")))
    assert [await answer(reader) for _ in range(3)] == [(200, b"one"), (200, b"two"), (200, b"six")]


async def test_a_request_may_come_in_single_bytes(connection: Any) -> None:
    reader, writer = connection
    for byte in HEAD + b"Content-Length: 2\r\n\r\nok":
        writer.write(bytes([byte]))
        await writer.drain()
    assert await answer(reader) == (200, b"ok")


async def test_expect_100_is_answered(connection: Any) -> None:
    reader, writer = connection
    writer.write(HEAD + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert await answer(reader) == (100, b"")
    writer.write(b"ok")
    assert await answer(reader) == (200, b"ok")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET\r\n\r\n", 400),
        (b"GET http://[x HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\n\r\n", 505),
        (HEAD + b"no colon\r\n\r\n", 400),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", 411),
        (HEAD + b"Content-Length: 1001\r\n\r\n" + b"x" * 1001, 413),
        (HEAD + b"X: " + b"x" * 70_000, 431),
    ],
)
async def test_unreadable_request_ends_the_connection(connection: Any, request_bytes: Any, status: int) -> None:
    reader, writer = connection
    writer.write(request_bytes)
    results, body = await answer(reader)
    assert (results, body.startswith(b'{"error"')) == (status, True)
    writer.write_eof()
    assert await reader.read() == b""


async def test_failing_handler_is_500(connection: Any) -> None:
    reader, writer = connection
    writer.write(b"GET /crash HTTP/1.1\r\n\r\n")
    assert await answer(reader) == (500, b'{"error": "Internal server error"}')


async def test_a_client_that_leaves_cancels_its_request(server: Any, echo: Any) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /wait HTTP/1.1\r\n\r\n")
        await echo.waiting.wait()
        writer.close()
        await echo.cancelled.wait()
        await writer.wait_closed()


async def test_stop_cancels_open_requests(server: Any, echo: Any, connection: Any) -> None:
    reader, writer = connection
    writer.write(b"GET /wait HTTP/1.1\r\n\r\n")
    await echo.waiting.wait()
    await server.stop()
    assert echo.cancelled.is_set()
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
