"""Transactions whose statements travel together.

    async with pipelined_transaction(connection) as transaction:
        rows = await (await transaction.execute(LOCK, {"ids": ids})).fetchall()  # one round trip: BEGIN, LOCK
        await transaction.execute(UPDATE, {...})
        await transaction.execute(INSERT, {...})
    # one round trip: UPDATE, INSERT, COMMIT

psycopg waits for BEGIN, each statement and COMMIT, and its own pipeline mode costs as much processor time as these
waits. Here a statement waits until rows are fetched or the transaction ends. Its error is raised then, too.

Each round trip ends with a Sync. Between two of them Postgres sees the session as idle in transaction, so that
`idle_in_transaction_session_timeout` ends the locks of a client that falls silent.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import errors
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.waiting import Ready, Wait

from tenure.runtime.eager import begin_now
from tenure.runtime.store.sql_arrays import Column

if TYPE_CHECKING:
    from psycopg import abc
    from psycopg.pq.abc import PGconn, PGresult

    from tenure.runtime.store.postgres import BoundedConnection

_PLACEHOLDER: Final = re.compile(rb"%(?:\((?P<name>\w+)\)b|(?P<percent>%)|(?P<other>.?))")
_COMPLETED: Final = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)
_OPEN: Final = (TransactionStatus.INTRANS, TransactionStatus.INERROR)
_ENCODING: Final = "utf-8"


@asynccontextmanager
async def pipelined_transaction(connection: BoundedConnection) -> AsyncIterator[PipelinedTransaction]:
    """Opens a transaction on an idle connection: committed at the end of the block, rolled back by an exception.

    Raises psycopg's errors.
    """
    transaction = PipelinedTransaction(connection.prepared_statements)
    try:
        yield transaction
    except BaseException:
        await transaction.roll_back()
        raise
    await transaction.commit()


async def to_the_end(commit: Coroutine[Any, Any, None]) -> None:
    """Awaits what commits. A cancellation is raised after its end.

    psycopg would pass a cancellation on to Postgres, which ends the wait for a synchronous standby and keeps the
    commit. A repeat of the request would find it and be acknowledged, although the standby does not have it.
    """
    committing, cancelled = begin_now(commit, name="commit"), False
    while not committing.done():
        try:
            await asyncio.wait({committing})
        except asyncio.CancelledError:
            cancelled = True
    committing.result()
    if cancelled:
        raise asyncio.CancelledError


class SingleStatements:
    """Runs each statement in a transaction of its own, in one round trip. For one coroutine at a time.

    It costs less processor time than psycopg's `execute`.
    """

    def __init__(self, connection: BoundedConnection) -> None:
        self._statements = connection.prepared_statements

    @property
    def backend_pid(self) -> int:
        """The process id of the session at the server."""
        return self._statements.pgconn.backend_pid

    async def execute(self, query: bytes, params: Mapping[str, Any] | None = None) -> Rows:
        """Runs a statement with placeholders `%(name)b`. Raises psycopg's errors."""
        rows = Rows(self._statements.transformer)
        await to_the_end(self._statements.run([_Queued(*self._statements.bound(query, params or {}), rows)]))
        return rows


class PipelinedTransaction:
    """A transaction in which statements wait for the next fetch. For one coroutine at a time."""

    def __init__(self, statements: PreparedStatements) -> None:
        self._statements = statements
        self._queued: list[_Queued] = []
        self._has_begun = False

    @property
    def backend_pid(self) -> int:
        """The process id of the session at the server."""
        return self._statements.pgconn.backend_pid

    async def execute(self, query: bytes, params: Mapping[str, Any] | None = None) -> Rows:
        """Queues a statement with placeholders `%(name)b`."""
        rows = Rows(self._statements.transformer, self)
        self._queued.append(_Queued(*self._statements.bound(query, params or {}), rows))
        return rows

    async def flush(self) -> None:
        """Runs the queued statements. Raises the error of the first that failed; Postgres skipped those after it."""
        if not self._has_begun:
            self._queued.insert(0, self._plain(b"BEGIN"))
            self._has_begun = True
        queued, self._queued = self._queued, []
        await self._statements.run(queued)

    async def commit(self) -> None:
        """Runs the queued statements and commits. Raises InFailedSqlTransaction if Postgres rolled back instead."""
        if not self._has_begun and not self._queued:
            return
        end = self._plain(b"COMMIT")
        self._queued.append(end)
        try:
            await to_the_end(self.flush())
        except psycopg.Error:
            await self.roll_back()
            raise
        if end.rows.command != b"COMMIT":
            raise errors.InFailedSqlTransaction("the transaction was rolled back, because a statement had failed")

    async def roll_back(self) -> None:
        """Drops the queued statements and rolls back what was sent. Does nothing on a broken connection, or while an
        interrupted statement still runs.
        """
        self._queued = []
        if self._has_begun and self._statements.pgconn.transaction_status in _OPEN:
            self._queued = [self._plain(b"ROLLBACK")]
            await self.flush()

    def _plain(self, command: bytes) -> _Queued:
        return _Queued(*self._statements.bound(command, {}), Rows(self._statements.transformer, self))


class Rows:
    """The rows of one statement. `transaction`: in which the statement may still wait."""

    __slots__ = ("_result", "_transaction", "_transformer")

    def __init__(self, transformer: abc.Transformer, transaction: PipelinedTransaction | None = None) -> None:
        self._transaction, self._transformer = transaction, transformer
        self._result: PGresult | None = None

    @property
    def command(self) -> bytes | None:
        """The command that Postgres carried out, such as `INSERT 0 1`; None before it ran."""
        return None if self._result is None else self._result.command_status

    async def fetchall(self) -> list[Any]:
        """Returns all rows as tuples. Runs the queued statements first."""
        if self._result is None and self._transaction is not None:
            await self._transaction.flush()
        result = self._result
        assert result is not None, "the flush ran the statement"
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    async def fetchone(self) -> Any:
        """Returns the first row as a tuple, or None."""
        rows = await self.fetchall()
        return rows[0] if rows else None

    def receive(self, result: PGresult) -> None:
        """Takes the result of the statement."""
        self._result = result


@dataclass(frozen=True, slots=True)
class _Queued:
    """A statement to run with its parameters, and the receiver of its rows."""

    text: bytes
    types: tuple[int, ...]
    values: Sequence[Any]
    formats: Sequence[Format]
    rows: Rows


@dataclass(slots=True)
class PreparedStatements:
    """The statements that one session of Postgres has prepared, by text and types of the parameters.

    The session may lose them: psycopg sends DEALLOCATE ALL after its own ROLLBACK, and a pooler may change the session.
    The next run then fails with InvalidSqlStatementName, which is a conflict to be tried again, and prepares anew.
    """

    connection: BoundedConnection
    transformer: abc.Transformer = field(init=False)
    _names: dict[tuple[bytes, tuple[int, ...]], bytes] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.transformer = Transformer(self.connection)

    @property
    def pgconn(self) -> PGconn:
        return self.connection.pgconn

    def bound(
        self, query: bytes, params: Mapping[str, Any]
    ) -> tuple[bytes, tuple[int, ...], Sequence[Any], Sequence[Format]]:
        """Returns text, types, values and formats as Postgres takes them."""
        text, names, wanted = _parsed(query)
        if not names:
            return text, (), (), ()
        values: list[Any] = []
        types: list[int] = []
        formats: list[Format] = [Format.BINARY] * len(names)
        plain: list[int] = []
        for place, name in enumerate(names):
            value = params[name]
            if isinstance(value, Column):
                values.append(value.packed())
                types.append(value.array_oid)
            else:
                values.append(value)
                types.append(0)
                plain.append(place)
        if plain:
            transformer = self.transformer
            dumped = transformer.dump_sequence([values[place] for place in plain], wanted[: len(plain)])
            known = transformer.types or (), transformer.formats or ()  # an empty list is text
            for place, value, oid, form in zip(plain, dumped, *known, strict=True):
                values[place], types[place], formats[place] = value, oid, form
        return text, tuple(types), values, formats

    async def run(self, queued: Sequence[_Queued]) -> None:
        """Runs statements in one round trip. Raises the error of the first that failed; those after it did not run."""
        try:
            await self.connection.wait(self._exchange(queued))
        except errors.InvalidSqlStatementName:
            self._names.clear()
            raise

    def _exchange(self, queued: Sequence[_Queued]) -> Generator[Wait, Ready, None]:
        """Sends the statements, then receives their results. Leaves the pipeline mode, in which psycopg cannot work."""
        pgconn = self.pgconn
        pgconn.enter_pipeline_mode()
        prepared = self._send(pgconn, queued)
        while pgconn.flush():
            if (yield Wait.RW) & Ready.R:
                pgconn.consume_input()
        results: list[PGresult | None] = []
        try:
            yield from _receive(pgconn, results, len(queued) + len(prepared))
        except psycopg.DatabaseError:
            self._take(queued, prepared, results)  # an error that Postgres gave before it closed the connection
            raise
        pgconn.exit_pipeline_mode()
        self._take(queued, prepared, results)

    def _take(
        self, queued: Sequence[_Queued], prepared: Mapping[int, bytes], results: Sequence[PGresult | None]
    ) -> None:
        """Passes results on, as many as there are. libpq ends each with a missing one. Raises the first error."""
        received, error = iter(results[::2]), None
        for index, one in enumerate(queued):
            for is_preparation in (True, False) if index in prepared else (False,):
                result = next(received, None)
                if result is None:
                    break
                if result.status == ExecStatus.FATAL_ERROR:  # one that was skipped has another status
                    error = error or result
                elif is_preparation and result.status in _COMPLETED:
                    self._names[one.text, one.types] = prepared[index]
                if not is_preparation:
                    one.rows.receive(result)
        if error is not None:
            raise errors.error_from_result(error, encoding=_ENCODING)

    def _send(self, pgconn: PGconn, queued: Sequence[_Queued]) -> dict[int, bytes]:
        """Sends statements and a Sync. Returns the new names of those that it also prepares, by their place."""
        prepared: dict[int, bytes] = {}
        fresh: dict[tuple[bytes, tuple[int, ...]], bytes] = {}
        for index, one in enumerate(queued):
            key = (one.text, one.types)
            name = self._names.get(key) or fresh.get(key)
            if name is None:
                name = b"tenure_%d" % next(self._numbers)  # never twice: a lost statement may exist after all
                fresh[key] = prepared[index] = name
                pgconn.send_prepare(name, one.text, one.types)
            pgconn.send_query_prepared(name, one.values, one.formats, Format.BINARY)
        pgconn.pipeline_sync()
        return prepared


def _receive(pgconn: PGconn, results: list[PGresult | None], commands: int) -> Generator[Wait, Ready, None]:
    """Receives the result of each command, each followed by a missing one, and that of the Sync."""
    for place in range(2 * commands + 1):
        while pgconn.is_busy():
            while not (yield Wait.R):
                continue
            pgconn.consume_input()
        results.append(pgconn.get_result())
        if (results[-1] is None) != place % 2:
            raise errors.InternalError("Postgres returned another number of results than there were statements")


@lru_cache(maxsize=1024)
def _parsed(query: bytes) -> tuple[bytes, tuple[str, ...], tuple[PyFormat, ...]]:
    """Returns a statement with `$1` for each name, the names in this order, and their formats.

    Raises ProgrammingError for another kind of placeholder.
    """
    names: dict[str, int] = {}

    def replaced(match: re.Match[bytes]) -> bytes:
        if match["percent"]:
            return b"%"
        if match["name"] is None:
            raise errors.ProgrammingError(f"a placeholder is not %(name)b: {match[0].decode()}")
        return b"$%d" % names.setdefault(match["name"].decode(), len(names) + 1)

    text = _PLACEHOLDER.sub(replaced, query)
    return text, tuple(names), (PyFormat.BINARY,) * len(names)
