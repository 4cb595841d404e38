"""A TCP server of a test that leaves no connection open at its end.

`asyncio.start_server` ends neither the connections nor the handlers that have not begun. Their sockets then fail a
later test, when they are collected as garbage.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def tcp_server(serve: Serve, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Yields the free port of 127.0.0.1 on which it serves. Its connections end with `serve`, or with the block."""
    serving: set[asyncio.Future[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not server.is_serving():  # connected before the end, and accepted after it
            writer.close()
            return
        task = asyncio.ensure_future(serve(reader, writer))
        serving.add(task)
        task.add_done_callback(serving.discard)
        task.add_done_callback(lambda _: writer.close())  # also when it is cancelled before its first step

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await _accept_no_more(server)
        server.close()
        left = list(serving)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _accept_no_more(server: asyncio.Server) -> None:
    """Returns when each accepted connection is known to the server: asyncio forgets those that it meets when closed."""
    for listener in server.sockets:
        asyncio.get_running_loop().remove_reader(listener.fileno())
    for _ in range(2):  # what is accepted in this iteration of the loop begins in the next one
        await asyncio.sleep(0)
