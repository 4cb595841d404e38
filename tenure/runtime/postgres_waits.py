"""Connections to Postgres on which nothing is waited for without end.

`statement_timeout` is kept by Postgres itself, and keepalives are answered by its kernel: a Postgres that is frozen, or
a proxy in between that says nothing, does neither break the connection nor end a statement. So the client has a
deadline of its own for every wait, a little after Postgres's.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Final

import psycopg
from psycopg.rows import TupleRow

from tenure.runtime.duties import note_progress

WAIT_MARGIN_SECONDS: Final = 10.0
LISTEN_SECONDS: Final = 10.0
"""After so long without a notification it is asked whether Postgres still answers."""


class BoundedConnection(psycopg.AsyncConnection[TupleRow]):
    """Its socket is shut down when Postgres says nothing for too long: whoever waits gets psycopg's OperationalError.

    Not a timeout of asyncio: psycopg takes up to ten seconds more to cancel a statement that is not answered.
    """

    longest_wait_seconds: float = 10.0 + WAIT_MARGIN_SECONDS

    async def wait(self, *args: Any, **options: Any) -> Any:
        """As psycopg's, by which everything here waits for Postgres; but not for ever."""
        cutting = asyncio.get_running_loop().call_later(self.longest_wait_seconds, self._cut)
        try:
            return await super().wait(*args, **options)
        finally:
            cutting.cancel()

    def _cut(self) -> None:
        # An error means that it is broken already, which is what is wanted.
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self.pgconn.socket)) as line:
            line.shutdown(socket.SHUT_RDWR)


async def notifications(connection: BoundedConnection) -> AsyncGenerator[psycopg.Notify, None]:
    """What is notified, for ever. Raises psycopg's OperationalError when Postgres does not answer any more."""
    while True:
        note_progress()
        async for notification in connection.notifies(timeout=LISTEN_SECONDS):
            yield notification
            note_progress()
        await connection.execute("select 1")
