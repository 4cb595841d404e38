"""Ends connections of an address beyond its limit at the gRPC port: the library limits only all connections.

The library accepts them itself and does not name them. So this looks once a second which open files of the process are
connections of the port, and shuts those down that are too many. The library then sees that the client has gone.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from services.gateway.connection_limits import ConnectionLimits
from tenure.runtime.process import Duties, note_progress
from tenure.runtime.rpc.server import RpcServer

INTERVAL_SECONDS: Final = 1.0
_SILENCE_SECONDS: Final = 30.0
_AT_ONCE: Final = 200
"""How many open files are looked at before other work may run."""
_DESCRIPTORS: Final = Path("/dev/fd")


@asynccontextmanager
async def limited_connections(server: RpcServer, limits: ConnectionLimits) -> AsyncGenerator[GrpcConnections]:
    """Limits the connections of a server that has started, inside the block."""
    connections = GrpcConnections(server.port, limits)
    async with Duties() as duties:
        duties.start("limit connections", connections.run, silence_seconds=_SILENCE_SECONDS)
        yield connections


class GrpcConnections:
    """The open connections of the gRPC port, as the last look found them."""

    def __init__(self, port: int, limits: ConnectionLimits) -> None:
        self._port, self._limits = port, limits
        self._known = dict[int, tuple[int, Callable[[], None]]]()
        """By descriptor: the socket's inode, and what ends its count. A descriptor's number is used again."""

    async def run(self) -> None:
        """Looks every second."""
        while True:
            await self.look()
            note_progress()
            await asyncio.sleep(INTERVAL_SECONDS)

    async def look(self) -> None:
        """Counts the connections, and shuts down those beyond the limit: the newest of their address."""
        descriptors = {int(name) for name in os.listdir(_DESCRIPTORS)}  # noqa: PTH208  only their names
        for gone in self._known.keys() - descriptors:
            self._end(gone)
        for number, descriptor in enumerate(sorted(descriptors)):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            with suppress(OSError):  # closed meanwhile
                self._look_at(descriptor)

    def _look_at(self, descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        known = self._known.get(descriptor)
        if known is not None and known[0] == inode:
            return
        if known is not None:
            self._end(descriptor)
        end: Callable[[], None] | None = _nothing
        if (connection := self._connection_of(descriptor)) is not None:
            with connection:
                end = self._limits.begin(str(connection.getpeername()[0]))
                if end is None:
                    connection.shutdown(socket.SHUT_RDWR)
        self._known[descriptor] = inode, end or _nothing

    def _connection_of(self, descriptor: int) -> socket.socket | None:
        """Returns the connection of the port that the descriptor is, as a socket of its own. Raises OSError."""
        copy = os.dup(descriptor)
        try:
            connection = socket.socket(fileno=copy)
        except OSError:  # no socket
            os.close(copy)
            return None
        try:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getsockname()[1] == self._port:
                connection.getpeername()  # the listener has none
                return connection
        except BaseException:
            connection.close()
            raise
        connection.close()
        return None

    def _end(self, descriptor: int) -> None:
        _, end = self._known.pop(descriptor)
        end()


def _nothing() -> None:
    """Ends the count of a descriptor that has none."""
