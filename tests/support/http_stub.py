"""A server of another project, in this process: what it is asked, and what it answers, byte by byte if need be.

async with Stranger(lambda seen: page("hello")) as stranger: …stranger.url("/x")… stranger.seen, stranger.connections
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from tests.support.patience import PATIENCE_SECONDS


@dataclass(frozen=True)
class Seen:
    """One request. Headers by their names in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


Answering = Callable[[Seen], bytes | AsyncIterator[bytes]]


def page(body: bytes | str = b"", status: str = "200 OK", **headers: str) -> bytes:
    """A whole answer. Headers are named with underscores."""
    content = body.encode() if isinstance(body, str) else body
    values = {"content_type": "text/plain", "content_length": str(len(content)), "connection": "close", **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in values.items() if value)
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + content


class HttpStub:
    """Serves on 127.0.0.1 while its `async with` is open."""

    def __init__(self, answer: Answering, tls: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.seen: list[Seen] = []
        self.connections = 0
        self.left = asyncio.Event()
        self._tls, self._open = tls, set[asyncio.StreamWriter]()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._open:
            writer.transport.abort()
        await self._server.wait_closed()

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http{'s' if self._tls else ''}://{host}:{self.port}{path}"

    async def until_requested(self) -> None:
        """Returns when there was a request."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self.seen:
                await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        leaving = asyncio.ensure_future(self._carry(reader, writer))
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await leaving
        self._open.discard(writer)
        writer.close()
        self.left.set()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await self._carry_one(reader, writer):
            pass

    async def _carry_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether another request may follow."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        method, target, _ = head[0].split(" ")
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.seen.append(Seen(method, target, headers, body))
        answer = self.answer(self.seen[-1])
        if isinstance(answer, bytes):
            writer.write(answer)
            await writer.drain()
            return b"connection: keep-alive" in answer
        async for some in answer:
            writer.write(some)
            await writer.drain()
            if reader.at_eof():
                raise ConnectionResetError
        return False


async def never(_seen: Seen) -> AsyncIterator[bytes]:
    """Answers nothing, ever; leaves when the caller does."""
    while True:
        await asyncio.sleep(0.05)
        yield b""
