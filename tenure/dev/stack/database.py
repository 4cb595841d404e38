"""The database of the stack, inside the embedded server."""

from __future__ import annotations

import psycopg
from psycopg import sql


async def ensure_database(server_dsn: str, name: str) -> None:
    """Makes the database when it is not there yet."""
    async with await psycopg.AsyncConnection.connect(server_dsn, autocommit=True) as postgres:
        found = await postgres.execute("select 1 from pg_database where datname = %s", [name])
        if await found.fetchone() is None:
            await postgres.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
