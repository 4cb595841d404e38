"""HTTP under a session: what fails there becomes the answer to the one message that it happened to.

Without it the first refused connection would end the whole session, and a gateway's error page would be taken for the
server's word. Bodies are bounded; streams of events are bounded by their reader.
"""

from __future__ import annotations

import asyncio
import json
from typing import Final

import httpx2
import mcp_types as types
from pydantic import ValidationError

from services.tools.mcp.fates import Fate, Lost, NothingDone, mark, words_of
from services.tools.mcp.lines import MOST_MESSAGE_BYTES, TOO_LONG

_SESSION: Final = "mcp-session-id"
_GOODBYE_SECONDS: Final = 2.0
_NEVER_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_UNKNOWN_SESSION: Final = {400, 404}  # 404 by the specification, 400 by its own TypeScript server

_ON_THE_WAY: Final = {408, 499}
"""What proxies say, besides every 5xx, of a server behind them that may have been asked."""


class Exchanges(httpx2.AsyncBaseTransport):
    """Wraps the transport that talks to the network. `ended` is set when the session turns out to be over."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, ended: asyncio.Event) -> None:
        self._inner, self._ended = inner, ended

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "DELETE":
            async with asyncio.timeout(_GOODBYE_SECONDS):
                return await self._inner.handle_async_request(request)
        if request.method != "POST":
            return await self._inner.handle_async_request(request)
        try:
            return await self._judged(request, await self._inner.handle_async_request(request))
        except _NEVER_SENT as error:
            self._ended.set()
            return _made_up(f"it cannot be reached ({words_of(error)})", NothingDone)
        except (httpx2.TransportError, OSError) as error:  # OSError: of TLS in the middle of an answer
            self._ended.set()
            return _made_up(f"the connection to it was lost ({words_of(error)})", Lost)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _judged(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        if response.is_success and not _is_json(response):
            return response
        body = await _bounded(response)
        if body is None:
            words = f"its answer is longer than {MOST_MESSAGE_BYTES} bytes and was not taken"
            return _error(types.ErrorData(code=TOO_LONG, message=words))
        if response.status_code in _UNKNOWN_SESSION and _SESSION in request.headers:
            self._ended.set()
            return _made_up("it does not know this session any more", NothingDone)
        if not response.is_error or _is_answer(body):
            return httpx2.Response(response.status_code, headers=_plain(response), content=body)
        words = f"it answered with HTTP {response.status_code}"
        if response.is_server_error or response.status_code in _ON_THE_WAY:
            return _made_up(words, Lost)
        return _error(types.ErrorData(code=types.INVALID_REQUEST, message=words))


async def _bounded(response: httpx2.Response) -> bytes | None:
    """The body, or None when it is too long."""
    body = bytearray()
    try:
        async for portion in response.aiter_bytes():
            body += portion
            if len(body) > MOST_MESSAGE_BYTES:
                return None
    finally:
        await response.aclose()
    return bytes(body)


def _plain(response: httpx2.Response) -> dict[str, str]:
    """The headers that say something about the message, not about how its bytes came."""
    kept = ("content-type", "location", _SESSION)
    return {name: response.headers[name] for name in kept if name in response.headers}


def _is_json(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").lower().startswith("application/json")


def _is_answer(body: bytes) -> bool:
    """Whether it is the MCP server's own error, and not one of what stands before it."""
    try:
        return isinstance(types.jsonrpc_message_adapter.validate_json(body, by_name=False), types.JSONRPCError)
    except ValidationError:
        return False


def _made_up(words: str, fate: Fate) -> httpx2.Response:
    return _error(types.ErrorData(code=types.INTERNAL_ERROR, message=words, data=mark(fate)))


def _error(error: types.ErrorData) -> httpx2.Response:
    """As a server would say it; the session puts the request's own id there."""
    body = {"jsonrpc": "2.0", "id": None, "error": error.model_dump(mode="json", exclude_none=True)}
    return httpx2.Response(502, headers={"content-type": "application/json"}, content=json.dumps(body).encode())
