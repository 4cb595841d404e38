"""The statements of this service, and what every connection that runs them needs."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.types.numeric import Int8BinaryDumper

from services.checkpoint.sql_arrays import register_columns
from tenure.domain.errors import InvalidRequest
from tenure.runtime.postgres import connection, in_transaction
from tenure.runtime.sql import Migrations, Queries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from typing import TypeVar

    from tenure.runtime.postgres import Connection, Pool

    T = TypeVar("T")

SCHEMA: Final = "ledger"
QUERIES: Final = Queries.load("services.checkpoint")
FORKS: Final = Queries.load("services.checkpoint", "sql/forks.sql")
USAGE_REPORTS: Final = Queries.load("services.checkpoint", "sql/usage_reports.sql")
QUEUE: Final = Queries.load("services.checkpoint", "sql/queue.sql")
SUB_AGENTS: Final = Queries.load("services.checkpoint", "sql/sub_agents.sql")
DOUBTS: Final = Queries.load("services.checkpoint", "sql/doubts.sql")
RETENTION: Final = Queries.load("services.checkpoint", "sql/retention.sql")
MIGRATIONS: Final = Migrations.of("services.checkpoint", schema=SCHEMA)

# Every statement here has its index. Plans are made once, while tables may still be empty, where a scan looks cheap.
SESSION_SETTINGS: Final = (("enable_seqscan", "off"),)


def prepare_connection(connection: Connection) -> None:
    """Send every int as int8: by their values psycopg would choose among three types, each a statement to prepare."""
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    register_columns(connection.adapters)


async def fetch_all(connection: Connection, statement: bytes, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The rows of a statement."""
    return await (await connection.execute(statement, parameters)).fetchall()


async def fetch_one(connection: Connection, statement: bytes, parameters: dict[str, Any]) -> tuple[Any, ...] | None:
    """The row of a statement, None when there is none."""
    return await (await connection.execute(statement, parameters)).fetchone()


async def in_ledger_transaction(pool: Pool, work: Callable[[Connection], Awaitable[T]]) -> T:
    """Run `work` in a transaction, again after a conflict. Text that Postgres cannot keep is the caller's mistake."""

    async def prepared(connection: Connection) -> T:
        prepare_connection(connection)
        return await work(connection)

    with refusing_unfit_text():
        return await in_transaction(pool, prepared)


@asynccontextmanager
async def ledger_connection(pool: Pool) -> AsyncIterator[Connection]:
    """A connection for reads, in autocommit."""
    with refusing_unfit_text():
        async with connection(pool) as postgres:
            prepare_connection(postgres)
            yield postgres


class refusing_unfit_text:  # noqa: N801  read as a statement: `with refusing_unfit_text():`
    """Raises InvalidRequest for what Postgres cannot hold, such as a NUL in a text."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, psycopg.errors.DataError):
            raise InvalidRequest("a text holds characters that cannot be kept", reason="INVALID_TEXT") from error
