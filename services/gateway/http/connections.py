"""Accepts connections within their limits, which count a connection from its first packet: before the TLS handshake."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Final, Protocol

from services.gateway.client_addresses import Network, is_trusted, limited_place

_log: Final = logging.getLogger(__name__)
HANDSHAKE_SECONDS: Final = 20.0
BACKLOG: Final = 2048
_PAUSE_SECONDS: Final = 1.0
"""After a failure to accept, for which mostly the process has too many open files."""
_SILENT_SECONDS: Final = 60.0
"""Between two log lines about refused connections."""


class ConnectionLimits:
    """The open connections, of all and of each address. Those of trusted proxies, which many share, only count as all.

    Half of the open files that the process may have is the most.
    """

    def __init__(self, most: int, most_of_address: int, trusted: Sequence[Network]) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = most if soft == resource.RLIM_INFINITY else min(most, max(1, soft // 2))
        self._most_of_address, self._trusted = most_of_address, trusted
        self._all, self._places = 0, Counter[str]()
        self._refused, self._logged_at_seconds = 0, float("-inf")

    def begin(self, address: str) -> Callable[[], None] | None:
        """Counts a connection. Returns what ends it, once, or None for one that is refused."""
        place = "" if is_trusted(address, self._trusted) else limited_place(address)
        if self._all >= self._most or (place and self._places[place] >= self._most_of_address):
            self._refuse(address)
            return None
        self._all += 1
        self._places[place] += 1
        is_open = True

        def end() -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                self._all -= 1
                self._places[place] -= 1
                if not self._places[place]:
                    del self._places[place]

        return end

    def _refuse(self, address: str) -> None:
        self._refused += 1
        now_seconds = monotonic()
        if now_seconds - self._logged_at_seconds >= _SILENT_SECONDS:
            self._logged_at_seconds = now_seconds
            fields = {"address": address, "refused": self._refused, "open": self._all}
            _log.warning("connections beyond the limits of the HTTP port are refused", extra=fields)


class CountedProtocol(Protocol):
    """A protocol (asyncio) that calls `on_lost` when its connection has ended."""

    on_lost: Callable[[], None]


class Acceptor:
    """Accepts the connections of a listener until `close`. `context`: of TLS. The protocols are CountedProtocols."""

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
