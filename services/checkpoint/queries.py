"""The SQL statements of this service, and the settings of every connection that runs them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from psycopg.types.numeric import Int8BinaryDumper

from services.checkpoint.rows import PARTS
from tenure.runtime.store.postgres import BoundedConnection, Connection, Pool, connection, in_transaction
from tenure.runtime.store.sql import Migrations, Queries

P = ParamSpec("P")
T = TypeVar("T")

SCHEMA: Final = "ledger"
QUERIES: Final = Queries.load("services.checkpoint", parts=PARTS)
LISTS: Final = Queries.load("services.checkpoint", "sql/lists.sql")
FORKS: Final = Queries.load("services.checkpoint", "sql/forks.sql")
USAGE_REPORTS: Final = Queries.load("services.checkpoint", "sql/usage_reports.sql")
QUEUE: Final = Queries.load("services.checkpoint", "sql/queue.sql")
SUB_AGENTS: Final = Queries.load("services.checkpoint", "sql/sub_agents.sql")
DOUBTS: Final = Queries.load("services.checkpoint", "sql/doubts.sql")
RETENTION: Final = Queries.load("services.checkpoint", "sql/retention.sql")
UNDOS: Final = Queries.load("services.checkpoint", "sql/undos.sql")
OUTPUTS: Final = Queries.load("services.checkpoint", "sql/outputs.sql")
MIGRATIONS: Final = Migrations.of("services.checkpoint", schema=SCHEMA)

# Every statement has its index. Postgres plans once, maybe while tables are empty, when a scan would look cheap.
SESSION_SETTINGS: Final = (("enable_seqscan", "off"),)


def session_settings(clock_schema: str) -> tuple[tuple[str, str], ...]:
    """Returns the settings of the connections that read the time. `clock_schema`: its functions come first, if named.

    All statements take the time from now() and clock_timestamp(), so such a schema replaces the clock of the ledger.
    """
    shifted = (("search_path", f"{clock_schema}, pg_catalog, {SCHEMA}, public"),) if clock_schema else ()
    return (*SESSION_SETTINGS, *shifted)


def prepare_connection(connection: BoundedConnection) -> None:
    """Sends every int as int8. By value psycopg would choose among three types, each with its own prepared
    statement.
    """
    connection.adapters.register_dumper(int, Int8BinaryDumper)


async def fetch_all(connection: Connection, statement: bytes, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Returns the rows of a statement."""
    return await (await connection.execute(statement, parameters)).fetchall()


async def fetch_one(connection: Connection, statement: bytes, parameters: dict[str, Any]) -> tuple[Any, ...] | None:
    """Returns the row of a statement, or None."""
    row: tuple[Any, ...] | None = await (await connection.execute(statement, parameters)).fetchone()
    return row


def ledger_transaction(
    work: Callable[Concatenate[Connection, P], Awaitable[T]],
) -> Callable[Concatenate[Pool, P], Awaitable[T]]:
    """Makes a function of a connection one of a pool: it runs in a transaction, as `in_ledger_transaction` says."""

    @wraps(work)
    def whole(pool: Pool, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        return in_ledger_transaction(pool, lambda connection: work(connection, *args, **kwargs))

    return whole


async def fetch_row(connection: Connection, statement: bytes, parameters: dict[str, Any]) -> tuple[Any, ...]:
    """Returns the row of a statement that always has one, such as a count."""
    row = await fetch_one(connection, statement, parameters)
    assert row is not None, "the statement has a row"
    return row


async def in_ledger_transaction(pool: Pool, work: Callable[[Connection], Awaitable[T]]) -> T:
    """Runs `work` in a transaction, again after a conflict. Raises domain errors."""
    return await in_transaction(pool, work, prepare=prepare_connection)


async def fetch_in_transaction(pool: Pool, statement: bytes, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Returns the rows of a statement that writes, in a transaction of its own."""
    return await in_ledger_transaction(pool, lambda connection: fetch_all(connection, statement, parameters))


@asynccontextmanager
async def ledger_connection(pool: Pool) -> AsyncIterator[BoundedConnection]:
    """Yields a connection for reads, in autocommit."""
    async with connection(pool) as postgres:
        prepare_connection(postgres)
        yield postgres
