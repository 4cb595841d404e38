"""The Postgres of the stack, as a client sees it."""

from __future__ import annotations

import psycopg
from psycopg import sql

from tenure.dev.stack.errors import StackError

CONNECT_SECONDS = 60


async def ensure_database(server_dsn: str, name: str) -> None:
    """Makes the database when it is not there yet."""
    async with await psycopg.AsyncConnection.connect(
        server_dsn, autocommit=True, connect_timeout=CONNECT_SECONDS
    ) as postgres:
        found = await postgres.execute("select 1 from pg_database where datname = %s", [name])
        if await found.fetchone() is None:
            await postgres.execute(sql.SQL("create database {}").format(sql.Identifier(name)))


async def server_version(dsn: str) -> str:
    """Such as `17.2`. Raises StackError when nothing useful answers."""
    try:
        async with await psycopg.AsyncConnection.connect(dsn, connect_timeout=CONNECT_SECONDS) as postgres:
            return str(postgres.info.parameter_status("server_version") or "?").split(" ", maxsplit=1)[0]
    except psycopg.Error as error:
        reason = " ".join(str(error).split())
        raise StackError(f"the Postgres that --postgres names does not take us in: {reason}") from error
