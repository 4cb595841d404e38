"""Puts the client's own address in place of a trusted proxy's, for all limits and records of the gateway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from services.gateway.client_addresses import Network, client_address, is_trusted

_FORWARDED_FOR: Final = "x-forwarded-for"
_FORWARDED_SCHEME: Final = "x-forwarded-proto"


class Forwarded:
    """Believes X-Forwarded-For and X-Forwarded-Proto of the trusted proxies."""

    def __init__(self, app: ASGIApp, trusted: Sequence[Network]) -> None:
        self._app, self._trusted = app, trusted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request (ASGI)."""
        peer = scope.get("client")
        if peer is not None and is_trusted(peer[0], self._trusted):
            headers = Headers(scope=scope)
            scope["client"] = (client_address(peer[0], headers.getlist(_FORWARDED_FOR), self._trusted), 0)
            schemes = headers.getlist(_FORWARDED_SCHEME)
            if schemes and schemes[-1].rpartition(",")[2].strip().lower() == "https":
                scope["scheme"] = "https"
        await self._app(scope, receive, send)
