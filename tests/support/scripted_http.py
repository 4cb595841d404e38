"""An HTTP server that does to each request what its test says, and keeps what it was asked.

The kernel gives a free port again at once: a client that repeats its request to a server of an earlier test may
arrive here. Each server's URL therefore begins with a path of its own, and a request elsewhere is not its test's.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.support.tcp_server import tcp_server


@dataclass(frozen=True)
class ReceivedRequest:
    """One request, without the server's own path; header names in lower case."""

    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class ScriptedHttp:
    """`script`: an answer for each request, as raw bytes; the last one again and again. None: the connection breaks.

    `heard` is set when there was a request, `left` when one who waited for a server that hangs has gone.
    """

    script: list[bytes | None]
    port: int = 0
    requests: list[ReceivedRequest] = field(default_factory=list)
    connections: int = 0
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    hangs: bool = False
    scheme: str = "http"
    own_path: str = field(default_factory=lambda: f"/{secrets.token_hex(8)}")

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}{self.own_path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in head[1:-2])}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                if f" {self.own_path}" not in head[0]:
                    return  # another test's client
                method, target, version = head[0].split(" ")
                line = f"{method} {target.removeprefix(self.own_path) or '/'} {version}"
                self.requests.append(ReceivedRequest(line, headers, body))
                self.heard.set()
                if self.hangs:
                    await reader.read()
                    self.left.set()
                answer = self.script[min(len(self.requests), len(self.script)) - 1]
                if answer is None:
                    return
                writer.write(answer)
                await writer.drain()
                if b"connection: close" in answer:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the client has gone


def answer(status: int, body: str | bytes = "", **headers: str) -> bytes:
    """A whole response. Underscores in header names are hyphens."""
    content = body.encode() if isinstance(body, str) else body
    named = {"content-type": "text/plain", **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = [f"HTTP/1.1 {status} Whatever", f"content-length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in named.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


@asynccontextmanager
async def scripted_http(
    *script: bytes | None, hangs: bool = False, tls: ssl.SSLContext | None = None
) -> AsyncIterator[ScriptedHttp]:
    """Serves while it is open."""
    http = ScriptedHttp(list(script), hangs=hangs, scheme="https" if tls else "http")
    async with tcp_server(http.serve, tls=tls) as http.port:
        yield http
