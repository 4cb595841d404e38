"""The statements of the previous release run on the schema of this one, and return the same columns."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tenure.runtime.postgres import BoundedConnection, PoolOptions, configure_session
from tests.support.fix_postgres import FreshDatabase
from tests.upgrade.previous_release import STORES, Store

pytestmark = [pytest.mark.server, pytest.mark.nightly]
Types = tuple[list[str], list[str]]
AT_LEAST = {"checkpoint": 150, "tools": 30}
"""So many statements are known to be there: a check of nothing would succeed."""


async def prepared(dsn: str, store: Store) -> dict[str, Types]:
    """The types of the parameters and of the result of each statement, as Postgres plans it."""
    async with await BoundedConnection.connect(dsn, autocommit=True) as connection:
        await configure_session(connection, PoolOptions(settings=store.settings), store.schema)
        return {
            name: await types_of(connection, name, numbered(statement))
            for name, statement in store.statements_of_before().items()
        }


async def types_of(connection: psycopg.AsyncConnection[Any], name: str, statement: str) -> Types:
    try:
        await connection.execute(f"prepare one as {statement}".encode(), prepare=False)
        await connection.execute(f"explain (generic_plan) {statement}".encode(), prepare=False)
    except psycopg.Error as error:
        raise AssertionError(f"the previous release's {name} does not run any more: {error}") from error
    row = await (
        await connection.execute(
            "select parameter_types::text[], coalesce(result_types::text[], '{}') from pg_prepared_statements"
            " where name = 'one'"
        )
    ).fetchone()
    await connection.execute("deallocate one")
    assert row is not None
    return row[0], row[1]


def numbered(statement: str) -> str:
    """The statement with $1, $2 … in place of psycopg's names."""
    names: list[str] = []
    while (begin := statement.find("%(")) >= 0:
        end = statement.index(")", begin)
        name = statement[begin + 2 : end]
        names += [] if name in names else [name]
        statement = f"{statement[:begin]}${names.index(name) + 1}{statement[end + 2 :]}"
    return statement.replace("%%", "%")


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.service)
async def test_statements_of_before_run_on_the_new_schema(fresh_database: FreshDatabase, store: Store) -> None:
    before = await prepared(await fresh_database(store.before), store)
    now = await prepared(await fresh_database(store.migrations), store)
    assert len(now) >= AT_LEAST[store.service]
    changed = {name: (before[name], types) for name, types in now.items() if types != before[name]}
    assert changed == {}, "services of the previous release do not expect these types"
