"""Migrations that the previous release does not know: it serves on the new schema, and while they run."""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg
import pytest
from psycopg import sql

from tenure.runtime.sql import Migration, Migrations, migrate
from tests.support.fix_postgres import FreshDatabase
from tests.upgrade.catalog import broken_by, demands
from tests.upgrade.previous_release import STORES, Store

pytestmark = [pytest.mark.server, pytest.mark.nightly]
EACH_STORE: Final = pytest.mark.parametrize("store", STORES, ids=lambda store: store.service)

HARMLESS: Final = {
    "trigger tasks: tasks_keep_their_revision": "fires at updates of columns that the previous release does not know",
    "trigger tasks: valid_tasks": "refuses less: a model attempt may outlive its worker",
}
"""What the new schema demands of tables that the previous release writes, each with the reason why it keeps working."""

SCANS: Final = {
    ("0039_agents.sql", "tasks"): "one read of the task rows, for an index that is empty at first",
}
"""Reads of whole tables under locks that stop writes, each with the reason why services may wait for it."""

BOUNDED: Final = {"moves", "epochs", "change_feed", "tenants", "webhooks", "runners", "schedules", "api_keys"}
"""Tables whose rows an installation can count: they do not grow with its tasks."""


async def connect(dsn: str) -> psycopg.AsyncConnection[Any]:
    return await psycopg.AsyncConnection.connect(dsn, autocommit=True)


@EACH_STORE
async def test_the_new_schema_demands_nothing_new_of_old_tables(fresh_database: FreshDatabase, store: Store) -> None:
    """No column is dropped, renamed, retyped or demanded; no new rule refuses what the previous release writes."""
    async with (
        await connect(await fresh_database(store.before)) as old,
        await connect(await fresh_database(store.migrations)) as new,
    ):
        broken = broken_by(await demands(old, store.schema), await demands(new, store.schema))
    assert broken - set(HARMLESS) == set(), "the previous release fails on it: divide the change in two releases"


@EACH_STORE
async def test_new_migrations_scan_no_growing_table(fresh_database: FreshDatabase, store: Store) -> None:
    """A scan under a lock that stops writes takes the longer the larger the table is: an index, a rule, an update."""
    dsn = await fresh_database(store.before)
    scans: set[tuple[str, str]] = set()
    for file in store.newer:
        if not file.is_outside:
            scans |= {(file.name, table) for table in await scanned_by(dsn, store.schema, file)}
        await migrate(dsn, Migrations(store.schema, store.migrations.files[: file.number]))
    advice = "write `-- outside a transaction` with `create index concurrently`, or `not valid` with a later `validate`"
    assert {scan for scan in scans if scan[1] not in BOUNDED} - set(SCANS) == set(), advice


async def scanned_by(dsn: str, schema: str, file: Migration) -> set[str]:
    """The tables of before that a migration reads whole. Nothing of it stays."""
    statement = "select relname, seq_scan from pg_stat_xact_all_tables where schemaname = %s"
    async with await connect(dsn) as connection, connection.transaction(force_rollback=True):
        await connection.execute(sql.SQL("set local search_path to {}, public").format(sql.Identifier(schema)))
        before = dict(await (await connection.execute(statement, (schema,))).fetchall())
        await connection.execute(file.text.encode(), prepare=False)
        after = dict(await (await connection.execute(statement, (schema,))).fetchall())
    return {re.sub(r"_\d+$", "", table) for table, count in after.items() if table in before and count > before[table]}


@EACH_STORE
def test_statements_outside_a_transaction_are_repeatable(store: Store) -> None:
    """A build of an index that fails leaves an invalid one, which the repeat replaces."""
    for file in store.migrations.files:
        dropped: set[str] = set()
        for statement in file.statements if file.is_outside else ():
            words = statement.lower().split()
            if words[:5] == ["drop", "index", "concurrently", "if", "exists"]:
                dropped.add(words[5])
            elif words[:3] == ["create", "index", "concurrently"]:
                assert words[3] in dropped, f"{file.name}: drop index concurrently if exists {words[3]} first"
            else:
                assert re.match(r"alter table \S+ validate constraint", statement.lower()), f"{file.name}: {statement}"


def test_the_checks_notice_each_kind_of_break() -> None:
    before = {
        "column": {"tasks.state": "text", "tasks.old": "text"},
        **{kind: dict[str, str]() for kind in ("column without default", "constraint", "unique index", "trigger")},
        "reference": {},
    }
    now = {
        "column": {"tasks.state": "integer", "tasks.new": "text", "fresh.name": "text"},
        "column without default": {"tasks.new": "not null", "fresh.name": "not null"},
        "constraint": {"tasks: rule": "CHECK (true)"},
        "unique index": {"tasks: one": "…", "fresh: key": "…"},
        "trigger": {"tasks: guard": "…"},
        "reference": {"tasks: fresh.tasks_fkey": "its deletion fails"},
    }
    assert broken_by(before, now) == {
        "column tasks.state",
        "column tasks.old",
        "column without default tasks.new",
        "constraint tasks: rule",
        "unique index tasks: one",
        "trigger tasks: guard",
        "reference tasks: fresh.tasks_fkey",
    }


RULE: Final = ("0001_tasks.sql", "create table tasks (id int, state text)")
SLOW: Final = [
    "create index by_state on tasks (state)",
    "alter table tasks add constraint small check (id < 9)",
    "alter table tasks alter id type bigint",
    "alter table tasks alter id set not null",
    "update tasks set state = ''",
]
FAST: Final = [
    "alter table tasks add column more text not null default ''",
    "alter table tasks add constraint small check (id < 9) not valid",
    "alter table tasks set (fillfactor = 70)",
    "create table other (id int); create index on other (id)",
]


@pytest.mark.parametrize("text", [*SLOW, *FAST])
async def test_the_check_of_scans_tells_slow_from_fast(fresh_database: FreshDatabase, text: str) -> None:
    dsn = await fresh_database(Migrations.from_texts("ledger", [RULE]))
    scanned = await scanned_by(dsn, "ledger", Migration(2, "0002_next.sql", text))
    assert scanned == ({"tasks"} if text in SLOW else set())
