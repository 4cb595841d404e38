"""Calls of one HTTP tool: sent through no proxy, redirected nowhere, read up to a bound."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Final, Self

import httpcore2

from services.tools.http_tools.answers import Response, read_response
from services.tools.http_tools.requests import Request, request_of
from services.tools.http_tools.settings import HttpToolSettings
from services.tools.sending import TELLING_SECONDS, AnswerLostError, Delivery, NotSentError, Sending
from services.tools.tool import Arguments, CallContext, Tool, ToolAnswer, ToolFailed
from tenure.domain.addresses import EVERYWHERE, Networks
from tenure.runtime.checked_network import AddressRefused, CheckedBackend
from tenure.runtime.outgoing import FAILURES, Outgoing

MOST_ANSWER_BYTES: Final = 4 * 1024 * 1024
_KEPT_ALIVE_SECONDS: Final = 4.0


def lane_of(name: str) -> str:
    """The places of a tool's calls are its own: a slow one holds up no other."""
    return f"http {name}"


class HttpTool:
    """One tool and its connections, while its `async with` is open."""

    def __init__(self, name: str, settings: HttpToolSettings) -> None:
        self._name, self._settings = name, settings
        self._who = f"The server of {name}"
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        ca_file = self._settings.ca_file
        # A connection that was kept may be ending while it is used, and then nobody knows whether the call arrived.
        kept_alive_seconds = _KEPT_ALIVE_SECONDS if self._settings.effect_class.may_run_again else 0.0
        opening = partial(
            Outgoing,
            CheckedBackend(Networks(EVERYWHERE if self._settings.allow_private else ()), "HTTP tools"),
            most_connections=self._settings.max_calls,
            kept_alive_seconds=kept_alive_seconds,
            ca_file=None if ca_file is None else str(ca_file),
        )
        self._outgoing = await self._open.enter_async_context(await asyncio.to_thread(opening))
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
            acts_elsewhere=True,
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
        except httpcore2.LocalProtocolError as error:  # it was no request, and nothing of it was written
            raise NotSentError(str(error)) from error
        except FAILURES as error:
            told = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise (AnswerLostError if sending.is_out else NotSentError)(told) from error
        return read_response(self._who, response, self._settings.effect_class)

    async def _exchange(self, request: Request, sending: Sending) -> Response:
        async with self._outgoing.send(
            request.method,
            request.url,
            request.headers,
            request.body,
            connect_seconds=min(self._settings.connect_seconds, sending.left_seconds),
            going_out=sending.go_out,
        ) as answer:
            # As it came: what is encoded though that was not asked for is described, and not unpacked.
            body = await replace(answer, headers={}).read(MOST_ANSWER_BYTES)
            return Response(answer.status, answer.headers, body.content, truncated=not body.is_whole)
