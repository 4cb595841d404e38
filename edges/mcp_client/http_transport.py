"""Wraps the HTTP transport of a session: a failed request becomes the error answer to its one message.

Without this wrapper the first refused connection would end the whole session, and the error page of a proxy would count
as the server's answer. This wrapper bounds response bodies; the reader of event streams bounds those.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Final

import httpx2
import mcp_types as types
from pydantic import ValidationError

from edges.mcp_client.delivery_errors import AnswerLost, AnswerUnreadable, CallNotSent, DeliveryError, mark, message_of
from edges.mcp_client.stdio_framing import MAX_MESSAGE_BYTES, TOO_LONG
from services.tools.sending import leaves_open
from tenure.runtime.http.body_decoder import BadEncoding, BodyDecoder

_SESSION: Final = "mcp-session-id"
_DELETE_SECONDS: Final = 2.0
_NEVER_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_UNKNOWN_SESSION: Final = {400, 404}  # 404 by the specification, 400 by its own TypeScript server


class HttpTransport(httpx2.AsyncBaseTransport):
    """Wraps the transport that talks to the network. Sets `ended` when a failure shows that the session is over."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, ended: asyncio.Event) -> None:
        self._inner, self._ended = inner, ended

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"  # nothing bounds what a part of an encoded stream unpacks to
        if request.method == "DELETE":
            async with asyncio.timeout(_DELETE_SECONDS):
                return await self._inner.handle_async_request(request)
        if request.method != "POST":
            response = await self._inner.handle_async_request(request)
            return response if _is_plain(response) else await _unreadable_encoding(response)
        try:
            return await self._checked(request, await self._inner.handle_async_request(request))
        except _NEVER_SENT as error:
            self._ended.set()
            return _transport_error(f"the connection failed ({message_of(error)})", CallNotSent)
        except (httpx2.TransportError, OSError) as error:  # OSError: TLS raises it in the middle of an answer
            self._ended.set()
            return _transport_error(f"the connection was lost ({message_of(error)})", AnswerLost)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _checked(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        expects_answer = _expected_id(request) is not None
        if response.is_success and (_is_events(response) or not expects_answer):
            return response if _is_plain(response) else await _unreadable_encoding(response)
        try:
            body = await _bounded(response)
        except BadEncoding as error:
            return _transport_error(str(error), AnswerUnreadable)
        if response.is_error:
            return self._refused(request, response, body or b"")
        if response.is_redirect:
            return _passed_on(response, body or b"")
        if body is None:
            message = f"its answer is longer than {MAX_MESSAGE_BYTES} bytes and was discarded"
            return _error(types.ErrorData(code=TOO_LONG, message=message))
        if _message(body) is None:
            return _transport_error(
                f"it answered with HTTP {response.status_code} and no MCP message", AnswerUnreadable
            )
        return _passed_on(response, body)

    def _refused(self, request: httpx2.Request, response: httpx2.Response, body: bytes) -> httpx2.Response:
        """Returns the answer to a request that got an HTTP error status.

        Such a status says nothing about the call unless its body answers this very request: a proxy in front of the
        server may have sent it, or the server may have sent it after the effect happened.
        """
        status, text = response.status_code, _message(body)
        error = text if isinstance(text, types.JSONRPCError) else None
        if error is not None and error.id is not None and str(error.id) == _expected_id(request):
            return _passed_on(response, body)
        if status in _UNKNOWN_SESSION and _SESSION in request.headers:
            self._ended.set()
            # A 400 whose body is not an MCP message says nothing about the session.
            delivery_error = CallNotSent if status == HTTPStatus.NOT_FOUND or error is not None else AnswerLost
            return _transport_error("it no longer knows this session", delivery_error)
        message = f"it answered with HTTP {status}"
        if leaves_open(status):
            return _transport_error(message if error is None else f"{message}: {error.error.message}", AnswerLost)
        return _passed_on(response, body) if error is not None else _error(_refusal(message))


async def _bounded(response: httpx2.Response) -> bytes | None:
    """Reads and decodes the body. Returns None when the body is too long. Raises BadEncoding."""
    try:
        decoding = BodyDecoder(_encoding(response), MAX_MESSAGE_BYTES)
        async for portion in response.aiter_raw():
            decoding.add(portion)
            if decoding.is_full:
                return None
        decoding.end()
    finally:
        await response.aclose()
    return decoding.take()


def _encoding(response: httpx2.Response) -> str:
    return str(response.headers.get("content-encoding", ""))


def _is_plain(response: httpx2.Response) -> bool:
    return _encoding(response).strip().lower() in {"", "identity"}


async def _unreadable_encoding(response: httpx2.Response) -> httpx2.Response:
    await response.aclose()
    message = f"it sent an event stream with the encoding {_encoding(response)[:40]}, which was not accepted"
    return _transport_error(message, AnswerUnreadable)


def _message_headers(response: httpx2.Response) -> dict[str, str]:
    """Returns the headers that describe the message, without those that describe the transfer."""
    kept = ("content-type", "location", _SESSION)
    return {name: response.headers[name] for name in kept if name in response.headers}


def _passed_on(response: httpx2.Response, body: bytes) -> httpx2.Response:
    return httpx2.Response(response.status_code, headers=_message_headers(response), content=body)


def _is_events(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").lower().startswith("text/event-stream")


def _message(body: bytes) -> types.JSONRPCMessage | None:
    """Parses a message. Returns None when the body is not a JSON-RPC message."""
    try:
        return types.jsonrpc_message_adapter.validate_json(body, by_name=False)
    except ValidationError:
        return None


def _expected_id(request: httpx2.Request) -> str | None:
    """Returns the id of the message that was sent, or None when the message expects no answer."""
    sent = _message(request.content)
    return str(sent.id) if isinstance(sent, types.JSONRPCRequest) else None


def _refusal(message: str) -> types.ErrorData:
    return types.ErrorData(code=types.INVALID_REQUEST, message=message)


def _transport_error(message: str, delivery_error: DeliveryError) -> httpx2.Response:
    return _error(types.ErrorData(code=types.INTERNAL_ERROR, message=message, data=mark(delivery_error)))


def _error(error: types.ErrorData) -> httpx2.Response:
    """Returns an error in the form of a server's answer. The session replaces the null id by the request's id."""
    body = {"jsonrpc": "2.0", "id": None, "error": error.model_dump(mode="json", exclude_none=True)}
    return httpx2.Response(502, headers={"content-type": "application/json"}, content=json.dumps(body).encode())
