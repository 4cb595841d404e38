"""An HTTP/1.1 server that cancels the handler of a request as soon as the client disconnects."""

from __future__ import annotations

import asyncio
import dataclasses
import http
import json
import logging
import secrets
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import parse_qsl, urlsplit

from tenure.domain.budget import SIMULATED_REQUEST_PREFIX

# HTTP/1.1 heads: parsing those of requests, formatting those of responses. No I/O.

REASONS = {status.value: status.phrase for status in http.HTTPStatus} | {529: "Site Overloaded"}


class MalformedRequest(Exception):  # noqa: N818  the request is malformed
    """The bytes are not a request that this server accepts. `status`: the HTTP status of the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class HttpRequest:
    """One complete request. Header names are lower case; the last of a repeated header counts."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def keeps_alive(self) -> bool:
        return self.headers.get("connection", "").lower() != "close"


def parse_head(head: bytes) -> tuple[HttpRequest, int]:
    """Returns the request without its body, and the length of the body in bytes. Raises MalformedRequest."""
    request_line, *header_lines = head.decode("latin-1").split("\r\n")
    try:
        method, target, version = request_line.split(" ")
    except ValueError as error:
        raise MalformedRequest(400, "The request line is malformed") from error
    if version != "HTTP/1.1":
        raise MalformedRequest(505, f"This server supports HTTP/1.1 only, not {version}")
    headers = dict(_parse_header(line) for line in header_lines)
    if "transfer-encoding" in headers:
        raise MalformedRequest(411, "A request body needs a Content-Length")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise MalformedRequest(400, "Content-Length is not a number")
    try:
        parts = urlsplit(target)
    except ValueError as error:
        raise MalformedRequest(400, "The request target is malformed") from error
    return HttpRequest(method, parts.path, dict(parse_qsl(parts.query)), headers), int(length)


def _parse_header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or name != name.strip():
        raise MalformedRequest(400, "A header line is malformed")
    return name.lower(), value.strip()


def response_head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def chunk(data: bytes) -> bytes:
    """Returns one chunk of a body of unknown length (RFC 9112, 7.1). An empty chunk ends the body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


# The provider's errors: status, type and message in the format of its API.

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
DEFAULT_WORDS = {
    400: "The request is invalid (fault)",
    401: "invalid x-api-key",
    402: "Your credit balance is too low to access the API",
    403: "Your API key does not have permission to use the specified resource",
    404: "The requested resource could not be found",
    413: "Request exceeds the maximum size",
    429: "This request would exceed your organization's rate limit",
    500: "Internal server error",
    504: "Request timed out",
    529: "Overloaded",
}


class ApiError(Exception):
    """A request gets an error: the HTTP status, the provider's message, and further headers."""

    def __init__(self, status: int, message: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.message = message or DEFAULT_WORDS.get(status, "Request failed")
        self.headers = dict(headers or {})
        super().__init__(self.message)


def error_value(status: int, message: str, request_id: str) -> dict[str, object]:
    kind = ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def error_body(status: int, message: str) -> bytes:
    """Returns the error body for a request that is refused before it is read."""
    return json.dumps(error_value(status, message, new_request_id())).encode()


def new_request_id() -> str:
    return f"{SIMULATED_REQUEST_PREFIX}{secrets.token_hex(12)}"


def request_ids(request_id: str) -> dict[str, str]:
    """Returns the headers with the id of a request: each API has its own."""
    return {"request-id": request_id, "x-request-id": request_id}


LOGGER = logging.getLogger(__name__)
MAX_HEAD_BYTES = 64 * 1024
MAX_CONNECTIONS = 16_384
BACKLOG = 1024
# How long the body of a refused request is still read: an immediate close would reset the connection before the client
# has read the answer.
DISCARD_SECONDS = 5.0

TYPE_JSON = {"content-type": "application/json"}


class Reply:
    """The answer to one request: `send` a whole one, or `begin`, `write` … `end`. `drain` waits for a slow reader."""

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
        """Starts a body of `length` bytes, or of any length for None."""
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
        """Closes the connection without an end of the body, as a provider's proxy may do within a stream."""
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


Handler = Callable[[HttpRequest, Reply], Awaitable[None]]
RefusalBody = Callable[[int, str], bytes]


def plain_refusal(_status: int, message: str) -> bytes:
    return json.dumps({"error": message}).encode()


class HttpServer:
    """Serves `handler` on one address. Each request has its own asyncio task; a connection has one request at a time.

    When a client disconnects, the task of its request is cancelled. `refusal` makes the body of an answer to a request
    that is refused before the handler gets it.
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
        """Listens. Port 0 takes a free one. Raises OSError if the address is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), host, port, backlog=BACKLOG)
        return self

    async def stop(self) -> None:
        """Stops listening, cancels the running requests and waits for their end. Repeatable."""
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
        self._pending: tuple[HttpRequest, int] | None = None  # a request whose body is incomplete
        self._task: asyncio.Task[None] | None = None
        self._discarding = False
        self._may_write = asyncio.Event()
        self._may_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections.add(self)
        if len(self._server.connections) > MAX_CONNECTIONS:
            sys.stderr.write(f"model simulator: refused a connection, because it has {MAX_CONNECTIONS} already\n")
            transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        self._server.connections.discard(self)
        self._may_write.set()
        if self._task is not None:
            self._task.cancel()

    def eof_received(self) -> bool:
        return False  # a client that closed its side is gone: close, which cancels the request

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
        """Starts the next request if the buffer has all of it."""
        try:
            request = self._next_request()
        except MalformedRequest as error:
            self._refuse(error)
            return
        if request is not None:
            self._task = asyncio.get_running_loop().create_task(self._serve(request))
            self._task.add_done_callback(self._served)

    def _next_request(self) -> HttpRequest | None:
        if self._pending is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0 and len(self._buffer) <= MAX_HEAD_BYTES:
                return None
            if not 0 <= end <= MAX_HEAD_BYTES:
                raise MalformedRequest(431, f"The headers exceed {MAX_HEAD_BYTES} bytes")
            self._pending = parse_head(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
            self._accept_body(*self._pending)
        head, length = self._pending
        if len(self._buffer) < length:
            return None
        request = dataclasses.replace(head, body=bytes(self._buffer[:length]))
        del self._buffer[:length]
        self._pending = None
        return request

    def _accept_body(self, head: HttpRequest, length: int) -> None:
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

    async def _serve(self, request: HttpRequest) -> None:
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
