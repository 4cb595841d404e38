"""The SQL statements of this service, and the settings of every connection that runs them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from services.checkpoint.rows import PARTS
from tenure.runtime.store.postgres import Connection, Pool, in_transaction
from tenure.runtime.store.sql import Migrations, Queries

P = ParamSpec("P")
T = TypeVar("T")

SCHEMA: Final = "ledger"
FIRST_ID: Final = "00000000-0000-0000-0000-000000000000"
"""Before all task ids."""
QUERIES: Final = Queries.load("services.checkpoint", parts=PARTS)
LISTS: Final = Queries.load("services.checkpoint", "sql/lists.sql")
FORKS: Final = Queries.load("services.checkpoint", "sql/forks.sql")
USAGE_REPORTS: Final = Queries.load("services.checkpoint", "sql/usage_reports.sql")
QUEUE: Final = Queries.load("services.checkpoint", "sql/queue.sql")
SUB_AGENTS: Final = Queries.load("services.checkpoint", "sql/sub_agents.sql")
DOUBTS: Final = Queries.load("services.checkpoint", "sql/doubts.sql")
RETENTION: Final = Queries.load("services.checkpoint", "sql/retention.sql")
UNDOS: Final = Queries.load("services.checkpoint", "sql/undos.sql")
SOURCE_LINES: Final = Queries.load("services.checkpoint", "sql/source_lines.sql")
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
    """Makes a function of a connection one of a pool: it runs in a transaction, as `in_transaction` says."""

    @wraps(work)
    def whole(pool: Pool, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        return in_transaction(pool, lambda connection: work(connection, *args, **kwargs))

    return whole


async def fetch_row(connection: Connection, statement: bytes, parameters: dict[str, Any]) -> tuple[Any, ...]:
    """Returns the row of a statement that always has one, such as a count."""
    row = await fetch_one(connection, statement, parameters)
    assert row is not None, "the statement has a row"
    return row


async def fetch_in_transaction(pool: Pool, statement: bytes, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Returns the rows of a statement that writes, in a transaction of its own."""
    return await in_transaction(pool, lambda connection: fetch_all(connection, statement, parameters))
