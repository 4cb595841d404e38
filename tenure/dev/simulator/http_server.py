"""An HTTP/1.1 server that notices at once when its client goes away: the handler is cancelled then."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Self

from tenure.dev.simulator.http_messages import MalformedRequest, Request, chunk, parse_head, response_head

if TYPE_CHECKING:
    from types import TracebackType

LOGGER = logging.getLogger(__name__)
MAX_HEAD_BYTES = 64 * 1024
MAX_CONNECTIONS = 4096
BACKLOG = 1024
# A refused body is still read for so long: closing at once would reset the connection before its answer is read.
DISCARD_SECONDS = 5.0

TYPE_JSON = {"content-type": "application/json"}


class Reply:
    """The answer to one request: `send` it whole, or `begin`, `write` … `end` it. `drain` waits for a slow reader."""

    def __init__(self, connection: _Connection, *, keeps_alive: bool) -> None:
        self._connection = connection
        self._keeps_alive = keeps_alive
        self.begun = False
        self.complete = False

    def send(self, status: int, body: bytes, headers: Mapping[str, str] = TYPE_JSON) -> None:
        self._begin(status, {**headers, "content-length": str(len(body))}, body)
        self._complete()

    def send_json(self, status: int, value: object, headers: Mapping[str, str] | None = None) -> None:
        self.send(status, json.dumps(value).encode(), {**TYPE_JSON, **(headers or {})})

    def begin(self, status: int, headers: Mapping[str, str], *, length: int | None = None) -> None:
        """Start a body of `length` bytes, or of any length when it is None."""
        framing = {"transfer-encoding": "chunked"} if length is None else {"content-length": str(length)}
        self._chunked = length is None
        self._begin(status, {**headers, **framing}, b"")

    def write(self, data: bytes) -> None:
        if data:
            self._connection.write(chunk(data) if self._chunked else data)

    def end(self) -> None:
        if self._chunked:
            self._connection.write(chunk(b""))
        self._complete()

    def cut(self) -> None:
        """Close the connection where it stands, as a provider's proxy does in the middle of a stream."""
        self._connection.close()

    async def drain(self) -> None:
        await self._connection.drain()

    def _begin(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.begun = True
        closing = {} if self._keeps_alive else {"connection": "close"}
        self._connection.write(response_head(status, {**headers, **closing}) + body)

    def _complete(self) -> None:
        self.complete = True
        if not self._keeps_alive:
            self._connection.close()


Handler = Callable[[Request, Reply], Awaitable[None]]
RefusalBody = Callable[[int, str], bytes]


def plain_refusal(_status: int, message: str) -> bytes:
    return json.dumps({"error": message}).encode()


class HttpServer:
    """Serves `handler` on one address; one task per request, requests of one connection after one another.

    A client that disconnects cancels the task of its request. `refusal` words what is refused before a handler sees it.
    """

    def __init__(
        self, handler: Handler, *, max_body_bytes: int = 1024 * 1024, refusal: RefusalBody = plain_refusal
    ) -> None:
        self.handler = handler
        self.refusal = refusal
        self.max_body_bytes = max_body_bytes
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        assert self._server is not None, "not started"
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> Self:
        """Listen. Port 0 takes a free one. Raises OSError when the address is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), host, port, backlog=BACKLOG)
        return self

    async def stop(self) -> None:
        """Stop listening, cancel what is being answered, wait for its end. May be repeated."""
        if self._server is None:
            return
        self._server.close()
        tasks = [task for connection in list(self.connections) if (task := connection.abort()) is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def __aenter__(self) -> Self:
        return self if self._server is not None else await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.stop()


class _Connection(asyncio.Protocol):
    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._pending: tuple[Request, int] | None = None  # a head that waits for its body
        self._task: asyncio.Task[None] | None = None
        self._discarding = False
        self._may_write = asyncio.Event()
        self._may_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections.add(self)
        if len(self._server.connections) > MAX_CONNECTIONS:
            transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        self._server.connections.discard(self)
        self._may_write.set()
        if self._task is not None:
            self._task.cancel()

    def eof_received(self) -> bool:
        return False  # a client that sends no more wants no more: close, and so cancel

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        self._buffer += data
        if self._task is None:
            self._advance()
        elif len(self._buffer) > MAX_HEAD_BYTES + self._server.max_body_bytes:
            self._transport.abort()

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def close(self) -> None:
        self._discarding = True
        self._transport.close()

    def abort(self) -> asyncio.Task[None] | None:
        self._transport.abort()
        if self._task is not None:
            self._task.cancel()
        return self._task

    async def drain(self) -> None:
        await self._may_write.wait()

    def _advance(self) -> None:
        """Begin the next request if the buffer holds it whole."""
        try:
            request = self._next_request()
        except MalformedRequest as error:
            self._refuse(error)
            return
        if request is not None:
            self._task = asyncio.get_running_loop().create_task(self._serve(request))
            self._task.add_done_callback(self._served)

    def _next_request(self) -> Request | None:
        if self._pending is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0 and len(self._buffer) <= MAX_HEAD_BYTES:
                return None
            if not 0 <= end <= MAX_HEAD_BYTES:
                raise MalformedRequest(431, f"The headers exceed {MAX_HEAD_BYTES} bytes")
            self._pending = parse_head(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
            self._greet(*self._pending)
        head, length = self._pending
        if len(self._buffer) < length:
            return None
        request = dataclasses.replace(head, body=bytes(self._buffer[:length]))
        del self._buffer[:length]
        self._pending = None
        return request

    def _greet(self, head: Request, length: int) -> None:
        if length > self._server.max_body_bytes:
            raise MalformedRequest(413, "Request exceeds the maximum size")
        if head.headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _refuse(self, error: MalformedRequest) -> None:
        body = self._server.refusal(error.status, str(error))
        headers = {**TYPE_JSON, "content-length": str(len(body)), "connection": "close"}
        self.write(response_head(error.status, headers) + body)
        self._discarding = True
        asyncio.get_running_loop().call_later(DISCARD_SECONDS, self._transport.close)

    async def _serve(self, request: Request) -> None:
        reply = Reply(self, keeps_alive=request.keeps_alive)
        try:
            await self._server.handler(request, reply)
        except Exception:
            LOGGER.exception("%s %s failed", request.method, request.path)
            if not reply.begun:
                reply.send(500, self._server.refusal(500, "Internal server error"))
        if not reply.complete:
            self.close()

    def _served(self, _task: asyncio.Task[None]) -> None:
        self._task = None
        if not self._discarding and not self._transport.is_closing():
            self._advance()
