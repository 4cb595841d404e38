"""A connection of its own for one loop that writes: made when it is needed, dropped when it is in doubt.

A pool asks a connection whether it is well before each use, which costs a writer a third of its time. Here the writes
themselves show it, and are repeated by whoever made them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Self

import psycopg
from psycopg.pq import TransactionStatus

from tenure.runtime.postgres import (
    BinaryCursor,
    BoundedConnection,
    Connection,
    PoolOptions,
    configure_session,
    connection_arguments,
    domain_errors,
    revealed,
)
from tenure.runtime.settings import Secret


class DedicatedConnection:
    """Not for use by two at once. Close it by its `async with`, or by `close`."""

    def __init__(
        self, dsn: str | Secret, *, service: str, schema: str | None = None, options: PoolOptions | None = None
    ) -> None:
        self._dsn, self._service, self._schema = dsn, service, schema
        self._options = options or PoolOptions()
        self._connection: Connection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Without effect when there is none; the next use makes a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):  # it is being given up, and mostly because it is broken
                await connection.close()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Connection]:
        """The connection, in autocommit. Raises domain errors; what was interrupted is never used again."""
        with domain_errors():
            connection = await self._connected()
            try:
                yield connection
            except BaseException:
                await self.close()
                raise
            if connection.info.transaction_status is not TransactionStatus.IDLE:
                await self.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A transaction whose statements are sent without waiting for each other; a fetch waits for all before it."""
        async with self.use() as connection, connection.pipeline(), connection.transaction():
            yield connection

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            arguments = connection_arguments(self._service, self._options.connect_timeout_seconds)
            fresh: Connection = await BoundedConnection.connect(
                revealed(self._dsn), cursor_factory=BinaryCursor, **arguments
            )
            self._connection = fresh
            await configure_session(fresh, self._options, self._schema)
        return self._connection
