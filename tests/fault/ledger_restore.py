"""Lives of a ledger: a copy of its database is made while it is down, and put in its place later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
from psycopg import conninfo, sql

if TYPE_CHECKING:
    from tests.support.fix_coordinator import Fleet


async def back_up(fleet: Fleet) -> str:
    """A copy of the database as it is now; its name."""
    name = _name(fleet)
    copy = f"{name}_backup"
    await fleet.checkpoint.kill()
    await _execute(fleet, "create database {} template {}", copy, name)
    await fleet.checkpoint.start_again()
    return copy


async def put_back(fleet: Fleet, copy: str) -> None:
    """The copy instead of the present database. The service answers at its former address."""
    await fleet.checkpoint.kill()
    await _execute(fleet, "drop database {} with (force)", _name(fleet))
    await _execute(fleet, "alter database {} rename to {}", copy, _name(fleet))
    await fleet.checkpoint.start_again()


def _name(fleet: Fleet) -> str:
    return str(conninfo.conninfo_to_dict(fleet.dsn)["dbname"])


async def _execute(fleet: Fleet, statement: str, *names: str) -> None:
    dsn = conninfo.make_conninfo(fleet.dsn, dbname="postgres")
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))
