"""A dedicated Postgres connection for one loop: opened when needed, closed after an error.

A pool checks a connection before each use, which costs a writer a third of its time. Here a failed write shows that the
connection is broken, and the writing loop repeats the write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Generic, Self, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from tenure.domain.errors import TenureError, Unavailable
from tenure.runtime.settings import Secret
from tenure.runtime.store.pipelined_transaction import PipelinedTransaction, SingleStatements
from tenure.runtime.store.postgres import (
    BinaryCursor,
    BoundedConnection,
    PoolOptions,
    configure_session,
    connection_arguments,
    domain_errors,
    revealed,
    unwritable,
)

_Used = TypeVar("_Used")


class DedicatedConnection:
    """A connection for one user at a time. Close it by its `async with`, or by `close`.

    `keep_after_errors`: a domain error that leaves no transaction open leaves the connection open, too. Then the user
    closes a connection to a server that it should leave, such as a standby. Any other error may mean that the session
    itself is wrong.
    """

    def __init__(
        self,
        dsn: str | Secret,
        *,
        service: str,
        schema: str | None = None,
        options: PoolOptions | None = None,
        keep_after_errors: bool = False,
    ) -> None:
        self._dsn, self._service, self._schema = dsn, service, schema
        self._options = options or PoolOptions()
        self._keep_after_errors = keep_after_errors
        self._connection: BoundedConnection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection, if there is one. The next use opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):  # a broken connection may fail to close
                await connection.close()

    async def open(self) -> None:
        """Opens the connection now. Raises domain errors."""
        await self.connected()

    def use(self) -> AbstractAsyncContextManager[BoundedConnection]:
        """Yields the connection, in autocommit. Raises domain errors. Closes a connection whose use was interrupted."""
        return _Use(self, lambda connection: connection)

    def statements(self) -> AbstractAsyncContextManager[SingleStatements]:
        """Yields what runs each statement in a transaction of its own. Raises domain errors, as `use`."""
        return _Use(self, SingleStatements)

    def transaction(self) -> AbstractAsyncContextManager[PipelinedTransaction]:
        """Opens a transaction whose statements wait for the next fetch or the end. Raises domain errors, as `use`."""
        return _Use(self, lambda connection: PipelinedTransaction(connection.prepared_statements))

    async def connected(self) -> BoundedConnection:
        """Returns the open connection; opens it if necessary. Raises domain errors."""
        if self._connection is None or self._connection.closed:
            self._connection = await self._connect()
        return self._connection

    def is_kept_after(self, error: BaseException) -> bool:
        """Whether the connection stays open after an error of its user, if no transaction is open."""
        return self._keep_after_errors and isinstance(error, TenureError)

    async def _connect(self) -> BoundedConnection:
        """Returns a new connection once it is configured. Raises Unavailable, without an unknown outcome: no statement
        of the user ran.
        """
        arguments = connection_arguments(self._service, self._options.connect_timeout_seconds)
        try:
            with domain_errors():
                postgres: BoundedConnection = await BoundedConnection.connect(
                    revealed(self._dsn), cursor_factory=BinaryCursor, **arguments
                )
                try:
                    await configure_session(postgres, self._options, self._schema)
                except BaseException:
                    await postgres.close()
                    raise
        except Unavailable as error:
            raise Unavailable(f"no connection to Postgres: {error.message}", reason="POSTGRES_UNAVAILABLE") from error
        return postgres


class _Use(Generic[_Used]):
    """One use of the connection. Each transaction has one: nested generators would take several times as long."""

    def __init__(self, owner: DedicatedConnection, begin: Callable[[BoundedConnection], _Used]) -> None:
        self._owner, self._begin = owner, begin

    async def __aenter__(self) -> _Used:
        self._connection = await self._owner.connected()
        self._used = self._begin(self._connection)
        return self._used

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        try:
            try:
                await self._end(error)
            except psycopg.Error:
                with _refusals(), domain_errors():  # entered only here: nearly every use ends without an error
                    raise
        except BaseException as failure:
            if not self._owner.is_kept_after(failure):
                await self._owner.close()
            raise
        finally:
            if self._connection.pgconn.transaction_status != TransactionStatus.IDLE:
                await self._owner.close()

    async def _end(self, error: BaseException | None) -> None:
        """Commits what was used, or rolls it back after an error and raises that."""
        transaction = self._used if isinstance(self._used, PipelinedTransaction) else None
        if error is None:
            if transaction is not None:
                await transaction.commit()
            return
        if transaction is not None:
            await transaction.roll_back()
        raise error


@contextmanager
def _refusals() -> Iterator[None]:
    """Converts an error whose cause is a value into InvalidRequest (UNWRITABLE)."""
    try:
        yield
    except psycopg.Error as error:
        if (refusal := unwritable(error)) is None:
            raise
        raise refusal from error
