"""Calls of one HTTP tool: sent through no proxy, redirected nowhere, read up to a bound."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, Self

import httpcore2

from services.tools.http_tools.answers import Response, read_response
from services.tools.http_tools.requests import Request, request_of
from services.tools.http_tools.settings import HttpToolSettings
from services.tools.sending import TELLING_SECONDS, AnswerLostError, Delivery, NotSentError, Sending
from services.tools.tool import Arguments, CallContext, Tool, ToolAnswer, ToolFailed
from tenure.domain.addresses import EVERYWHERE, Networks
from tenure.runtime.checked_network import AddressRefused, CheckedBackend
from tenure.runtime.outgoing import FAILURES, trust

MOST_ANSWER_BYTES: Final = 4 * 1024 * 1024
_KEPT_ALIVE_SECONDS: Final = 4.0
_GOES_OUT: Final = "http11.send_request_headers.started"
_STAYED: Final = "http11.send_request_headers.failed"


def lane_of(name: str) -> str:
    """The places of a tool's calls are its own: a slow one holds up no other."""
    return f"http {name}"


class HttpTool:
    """One tool and its connections, while its `async with` is open."""

    def __init__(self, name: str, settings: HttpToolSettings) -> None:
        self._name, self._settings = name, settings
        self._who = f"The server of {name}"
        self._open = AsyncExitStack()
        self._backend = CheckedBackend(Networks(EVERYWHERE if settings.allow_private else ()), "HTTP tools")

    async def __aenter__(self) -> Self:
        self._open.callback(self._backend.close)
        # A connection that was kept may be ending while it is used, and then nobody knows whether the call arrived.
        ca_file = self._settings.ca_file
        kept = self._settings.max_calls if self._settings.effect_class.may_run_again else 0
        pool = httpcore2.AsyncConnectionPool(
            ssl_context=await asyncio.to_thread(trust, None if ca_file is None else str(ca_file)),
            max_connections=self._settings.max_calls,
            max_keepalive_connections=kept,
            keepalive_expiry=_KEPT_ALIVE_SECONDS,
            network_backend=self._backend,
        )
        self._connections = await self._open.enter_async_context(pool)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    @property
    def tool(self) -> Tool:
        """As it is run here."""
        return Tool(
            self._settings.definition(self._name),
            self._run,
            lane=lane_of(self._name),
            guard_seconds=TELLING_SECONDS,
            keeps_any_timeout=True,
        )

    async def _run(self, context: CallContext, arguments: Arguments) -> ToolAnswer:
        request = request_of(self._settings, context, arguments)
        delivery = Delivery(self._who, self._settings.effect_class, context, self._settings.connect_seconds)
        return await delivery.carry_out(partial(self._send, request))

    async def _send(self, request: Request, sending: Sending) -> ToolAnswer:
        try:
            response = await self._exchange(request, sending)
        except AddressRefused as refused:
            raise ToolFailed(f"{self._who} is where calls may not go: {refused}.", "ADDRESS_REFUSED") from refused
        except FAILURES as error:
            told = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise (AnswerLostError if sending.is_out else NotSentError)(told) from error
        return read_response(self._who, response)

    async def _exchange(self, request: Request, sending: Sending) -> Response:
        async def note(event: str, info: dict[str, Any]) -> None:
            if event == _GOES_OUT:
                sending.is_out = True
            if event == _STAYED and isinstance(info["exception"], httpcore2.LocalProtocolError):
                sending.is_out = False  # it was no request, and nothing of it was written

        url = request.url
        pieces = httpcore2.URL(
            scheme=url.scheme.encode(), host=url.host.encode(), port=url.port, target=url.target.encode()
        )
        phases = dict.fromkeys(("connect", "pool"), min(self._settings.connect_seconds, sending.left_seconds))
        async with self._connections.stream(
            request.method,
            pieces,
            headers=[("Host", url.authority), *request.headers],
            content=request.body,
            extensions={"timeout": phases, "trace": note},
        ) as response:
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
            body = b""
            async for some in response.aiter_stream():
                body += some
                if len(body) > MOST_ANSWER_BYTES:
                    break
            return Response(response.status, headers, body[:MOST_ANSWER_BYTES], len(body) > MOST_ANSWER_BYTES)
