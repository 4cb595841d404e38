"""A connection to a stranger that takes no more than its share of the process: the event loop's time, and sockets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import httpcore2

if TYPE_CHECKING:
    import ssl

MOST_READ_BYTES: Final = 16 * 1024
"""At once. A stranger may cut them into thousands of pieces, which are all taken apart in one turn of the loop."""


class StrangerStream(httpcore2.AsyncNetworkStream):
    """Wraps one that was just connected."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream) -> None:
        self._inner = inner

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """A part of what came, in a turn of its own: what TLS holds ready would be handed out without one."""
        await asyncio.sleep(0)
        return await self._inner.read(min(max_bytes, MOST_READ_BYTES), timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """As the one within."""
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        """As the one within."""
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        """The socket is closed when it does not come to that, also when nobody waits for it any more: the one within
        closes it on failures only, and whoever asked for TLS does not have it yet.
        """
        try:
            secured = await self._inner.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            await self._inner.aclose()
            raise
        return StrangerStream(secured)

    def get_extra_info(self, info: str) -> Any:
        """As the one within."""
        return self._inner.get_extra_info(info)
