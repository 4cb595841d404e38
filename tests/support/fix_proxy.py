"""A TCP proxy between two parts, which a test can stop, make deaf (also one way), or let break its connections.

proxy = await tcp_proxy("127.0.0.1", port)
connect(proxy.address); proxy.deaf(); …; proxy.hear()
"""

from __future__ import annotations

import asyncio
import socket
import struct
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import pytest

from devstack.options import choose_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CHUNK_BYTES = 64 * 1024
HOST = "127.0.0.1"
_ABORT = struct.pack("ii", 1, 0)  # linger for 0 s: closing sends RST instead of FIN


class Lost(Enum):
    """The direction of a conversation that does not arrive, seen from the side that connects."""

    EVERYTHING = "everything"
    REQUESTS = "requests"
    ANSWERS = "answers"


class TcpProxy:
    """Listens on a port of its own, which stays the same through `stop` and `start`."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._port = 0
        self._server: asyncio.Server | None = None
        self._requests_pass, self._answers_pass = asyncio.Event(), asyncio.Event()
        self.observe()
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}

    @property
    def address(self) -> str:
        """The `host:port` to connect to."""
        return f"{HOST}:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def connection_count(self) -> int:
        """Returns the number of open connections."""
        return len(self._connections)

    async def start(self) -> None:
        """Accept connections (again)."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accepted, sock=await self._listen(self._port))
            self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Acts as if the other side were gone: connections end in order, new ones are refused."""
        await self._close_listener()
        await self._end_connections()

    def deaf(self, lost: Lost = Lost.EVERYTHING) -> None:
        """Acts like a cut cable or a frozen process: connections stay, and nothing gets through, or only one way."""
        if lost is not Lost.ANSWERS:
            self._requests_pass.clear()
        if lost is not Lost.REQUESTS:
            self._answers_pass.clear()

    def observe(self) -> None:
        """The end of `deaf`: what was said meanwhile arrives now."""
        self._requests_pass.set()
        self._answers_pass.set()

    async def reset(self) -> None:
        """Break the open connections by RST; new ones are accepted."""
        for writers in self._connections.values():
            for writer in writers:
                end = writer.get_extra_info("socket")
                if end.fileno() >= 0:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        await self._end_connections()

    async def _listen(self, port: int) -> socket.socket:
        """A socket that is bound; port 0: any that no connection is given while this proxy is stopped."""
        return socket.create_server((HOST, port or int(choose_address("proxy", usual=False).rpartition(":")[2])))

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self._target)

    async def _close_listener(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _end_connections(self) -> None:
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        writers = self._connections[task] = [writer]
        try:
            await self._requests_pass.wait()
            onward_reader, onward_writer = await self._dial()
            writers.append(onward_writer)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, onward_writer, self._requests_pass))
                both.create_task(self._pump(onward_reader, writer, self._answers_pass))
        except* (OSError, asyncio.CancelledError):
            pass  # either end went away, or the test ended it: a close tells the other end
        finally:
            for open_writer in writers:
                open_writer.transport.abort() if self._lingers(open_writer) else open_writer.close()
            del self._connections[task]

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, passing: asyncio.Event) -> None:
        while chunk := await source.read(CHUNK_BYTES):
            await passing.wait()
            sink.write(chunk)
            await sink.drain()
        await passing.wait()
        if sink.can_write_eof():
            sink.write_eof()

    @staticmethod
    def _lingers(writer: asyncio.StreamWriter) -> bool:
        end = writer.get_extra_info("socket")
        if end.fileno() < 0:  # broken by the other side just now
            return False
        return bool(end.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, len(_ABORT)) == _ABORT)


class MakeProxy(Protocol):
    """Starts a proxy to `host:port`."""

    async def __call__(self, host: str, port: int) -> TcpProxy: ...


@pytest.fixture
async def tcp_proxy() -> AsyncIterator[MakeProxy]:
    """Makes proxies for this test; they are stopped at its end."""
    made: list[TcpProxy] = []

    async def make(host: str, port: int) -> TcpProxy:
        proxy = TcpProxy(host, port)
        await proxy.start()
        made.append(proxy)
        return proxy

    yield make
    for proxy in made:
        await proxy.stop()
