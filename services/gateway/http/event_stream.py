"""Server-sent events (the HTML standard, "Server-sent events")."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.gateway.http.call import until_disconnected
from services.gateway.http.json_text import json_text
from tenure.domain.errors import TenureError
from tenure.runtime.rpc.status import PeerFailed

_log: Final = logging.getLogger(__name__)

RETRY_MILLISECONDS: Final = 1000
BEGINNING: Final = f"retry: {RETRY_MILLISECONDS}\n\n".encode()
"""How soon a browser connects again after the connection broke."""
COMMENT: Final = b":\n\n"
"""Nothing new: keeps proxies from taking the connection for dead."""


def event_bytes(kind: str, data: Any, event_id: str | int | None = None) -> bytes:
    """Returns one event. `event_id`: what a client sends to continue after it; None: it cannot continue there."""
    identity = "" if event_id is None else f"id: {event_id}\n"
    return f"{identity}event: {kind}\ndata: {json_text(data)}\n\n".encode(errors="replace")


class EventResponse(Response):
    """An answer that sends what a generator yields, until the generator or the connection ends.

    The next part is asked for when the client has taken the last ones: a slow reader needs no memory here.
    """

    media_type = "text/event-stream"

    def __init__(self, parts: AsyncGenerator[bytes], headers: Mapping[str, str] | None = None) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._parts = parts

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the answer (ASGI)."""
        sending = asyncio.create_task(self._send_all(send))
        disconnect = asyncio.create_task(until_disconnected(receive))
        try:
            await asyncio.wait({sending, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        except TenureError as error:  # there is no way to say it: the connection breaks, and the client asks again
            _log.info("a stream was cut", extra={"error": str(error)})
            raise
        except PeerFailed:
            _log.exception("a stream was cut")
            raise
        finally:
            for task in (sending, disconnect):
                task.cancel()
            await asyncio.gather(sending, disconnect, return_exceptions=True)

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._parts) as parts:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
