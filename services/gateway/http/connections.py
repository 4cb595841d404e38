"""Accepts connections within their limits, which count a connection from its first packet: before the TLS handshake."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from services.gateway.connection_limits import ConnectionLimits

_log: Final = logging.getLogger(__name__)
HANDSHAKE_SECONDS: Final = 20.0
BACKLOG: Final = 2048
_PAUSE_SECONDS: Final = 1.0
"""After a failure to accept, for which mostly the process has too many open files."""


class Acceptor:
    """Accepts the connections of a listener until `close`. `context`: of TLS.

    A protocol calls its `on_lost` when its connection has ended.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], Any],
        context: ssl.SSLContext | None,
        limits: ConnectionLimits,
    ) -> None:
        self._listener, self._make_protocol, self._context, self._limits = listener, make_protocol, context, limits
        self._handshakes = set[asyncio.Task[None]]()
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        """Ends the listener and the handshakes that run. Open connections remain."""
        self._accepting.cancel()
        for handshake in self._handshakes:
            handshake.cancel()

    async def wait_closed(self) -> None:
        """Returns after `close`."""
        await asyncio.gather(self._accepting, *self._handshakes, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        with self._listener:
            while True:
                try:
                    connection, peer = await loop.sock_accept(self._listener)
                except ConnectionError:
                    continue  # the client has gone
                except OSError as error:
                    _log.error("a connection cannot be accepted", extra={"error": str(error)})
                    await asyncio.sleep(_PAUSE_SECONDS)
                    continue
                if (end := self._limits.begin(str(peer[0]))) is None:
                    connection.close()
                else:
                    handshake = asyncio.create_task(self._begin(connection, end))
                    self._handshakes.add(handshake)
                    handshake.add_done_callback(self._handshakes.discard)
                await asyncio.sleep(0)  # accepting at once does not suspend, and other work must run, too

    async def _begin(self, connection: socket.socket, end: Callable[[], None]) -> None:
        """Gives a connection its protocol, after the handshake."""
        protocol = self._make_protocol()
        protocol.on_lost = end
        seconds = None if self._context is None else HANDSHAKE_SECONDS
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol, connection, ssl=self._context, ssl_handshake_timeout=seconds
            )
        except OSError:  # no handshake, or none in time: the client's affair
            end()
        except BaseException:
            end()
            raise
