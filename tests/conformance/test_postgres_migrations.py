"""Laws of migrations and named statements, on a real Postgres."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tenure.runtime.settings import ConfigurationError
from tenure.runtime.store import sql
from tenure.runtime.store.sql import Migrations, Queries, migrate
from tests.support.fix_postgres import FreshDatabase
from tests.support.patience import PATIENCE_SECONDS

FIRST = ("0001_tasks.sql", "create table tasks (id int); create index on tasks (id); -- 100 % of them")
SECOND = ("0002_more.sql", "alter table tasks add column state text")
BROKEN = ("0002_broken.sql", "alter table tasks add column state text; select 1/0")


def ledger(*files: tuple[str, str]) -> Migrations:
    return Migrations.from_texts("ledger", files)


async def rows(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    async with await psycopg.AsyncConnection.connect(dsn) as postgres:
        return await (await postgres.execute(statement)).fetchall()


async def test_migrations_run_once_in_order_in_their_schema(fresh_database: FreshDatabase) -> None:
    dsn = await fresh_database()
    assert await migrate(dsn, ledger(FIRST)) == ["0001_tasks.sql"]
    assert await migrate(dsn, ledger(SECOND, FIRST)) == ["0002_more.sql"]
    assert await migrate(dsn, ledger(FIRST, SECOND)) == []
    assert await rows(dsn, "select state from ledger.tasks") == []
    applied = await rows(dsn, "select number, name from ledger.migrations order by number")
    assert applied == [(1, "0001_tasks.sql"), (2, "0002_more.sql")]


async def test_replicas_that_start_together_apply_each_once(fresh_database: FreshDatabase) -> None:
    dsn = await fresh_database()
    applied = await asyncio.gather(*(migrate(dsn, ledger(FIRST, SECOND)) for _ in range(5)))
    assert sorted(map(len, applied)) == [0, 0, 0, 0, 2]


async def test_schemas_do_not_know_each_other(fresh_database: FreshDatabase) -> None:
    dsn = await fresh_database()
    await asyncio.gather(migrate(dsn, ledger(FIRST)), migrate(dsn, Migrations.from_texts("tools", [FIRST])))
    assert await rows(dsn, "select count(*) from ledger.tasks, tools.tasks") == [(0,)]


async def test_a_file_changed_after_it_ran_is_refused(fresh_database: FreshDatabase) -> None:
    dsn = await fresh_database()
    await migrate(dsn, ledger(FIRST))
    with pytest.raises(ConfigurationError, match=r"0001_tasks.sql was changed"):
        await migrate(dsn, ledger((FIRST[0], FIRST[1] + " "), SECOND))


async def test_line_endings_do_not_change_a_checksum(fresh_database: FreshDatabase) -> None:
    dsn = await fresh_database()
    await migrate(dsn, ledger(("0001_a.sql", "create table a (\n n int)")))
    assert await migrate(dsn, ledger(("0001_a.sql", "create table a (\r\n n int)"))) == []


async def test_pending_migrations_are_refused_without_migrate_auto(fresh_database: FreshDatabase) -> None:
    dsn = await fresh_database()
    with pytest.raises(ConfigurationError) as caught:
        await migrate(dsn, ledger(FIRST, SECOND), allowed=False)
    assert [problem.split(" is")[0] for problem in caught.value.problems] == [
        f"ledger: {f[0]}" for f in (FIRST, SECOND)
    ]
    assert await rows(dsn, "select 1 from pg_namespace where nspname = 'ledger'") == []


async def test_a_check_does_not_wait_for_another_release(fresh_database: FreshDatabase) -> None:
    """A service of the old release starts while the new release builds an index."""
    dsn = await fresh_database()
    await migrate(dsn, ledger(FIRST))
    async with await psycopg.AsyncConnection.connect(dsn) as migrating:
        await migrating.execute("select pg_advisory_lock(hashtextextended('tenure migrations ledger', 0))")
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await migrate(dsn, ledger(FIRST), allowed=False) == []


async def test_a_migration_that_fails_leaves_nothing_of_itself(fresh_database: FreshDatabase) -> None:
    dsn = await fresh_database()
    with pytest.raises(psycopg.errors.DivisionByZero) as caught:
        await migrate(dsn, ledger(FIRST, BROKEN))
    assert "ledger/0002_broken.sql" in caught.value.__notes__[0]
    assert await migrate(dsn, ledger(FIRST, SECOND)) == [SECOND[0]]


OUTSIDE = (
    "0002_index.sql",
    """-- outside a transaction
-- Built beside writes.
drop index concurrently if exists by_id;
create index concurrently by_id on tasks (id);
""",
)


async def test_a_file_outside_a_transaction_runs_beside_writes(fresh_database: FreshDatabase) -> None:
    """It waits for the writer, who writes on. Another replica that migrates meanwhile is not in its way."""
    dsn = await fresh_database()
    await migrate(dsn, ledger(FIRST))
    async with await psycopg.AsyncConnection.connect(dsn) as writer:
        await writer.execute("insert into ledger.tasks values (1)")
        replicas = [asyncio.create_task(migrate(dsn, ledger(FIRST, OUTSIDE))) for _ in range(3)]
        await blocked_by(dsn, writer)
        await writer.execute("insert into ledger.tasks values (2)")
        await writer.commit()
    async with asyncio.timeout(PATIENCE_SECONDS):
        applied = await asyncio.gather(*replicas)
    assert sorted(map(len, applied)) == [0, 0, 1]
    assert await rows(dsn, "select indisvalid from pg_index where indexrelid = 'ledger.by_id'::regclass") == [(True,)]


async def test_a_file_outside_a_transaction_is_repeated_whole(fresh_database: FreshDatabase) -> None:
    """As after a build that failed: the invalid index that it leaves is replaced."""
    dsn = await fresh_database()
    await migrate(dsn, ledger(FIRST))
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as postgres:
        await postgres.execute("insert into ledger.tasks values (1), (1)")
        unique = (OUTSIDE[0], OUTSIDE[1].replace("create index", "create unique index"))
        with pytest.raises(psycopg.errors.UniqueViolation):
            await migrate(dsn, ledger(FIRST, unique))
        await postgres.execute("delete from ledger.tasks")
        assert await migrate(dsn, ledger(FIRST, unique)) == [OUTSIDE[0]]
    assert await rows(dsn, "select indisvalid from pg_index where indexrelid = 'ledger.by_id'::regclass") == [(True,)]


async def test_a_migration_lets_services_pass_while_it_waits(
    fresh_database: FreshDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives up its place in the queue for the lock, and tries again until the long transaction has ended."""
    monkeypatch.setattr(sql, "LOCK_SECONDS", 0.2)
    dsn = await fresh_database()
    await migrate(dsn, ledger(FIRST))
    async with (
        await psycopg.AsyncConnection.connect(dsn) as long,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as service,
    ):
        await long.execute("select from ledger.tasks")
        migrating = asyncio.create_task(migrate(dsn, ledger(FIRST, SECOND)))
        await blocked_by(dsn, long)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await service.execute("select from ledger.tasks")  # waits behind the migration, until that gives up
        assert not migrating.done()
        await long.commit()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await migrating == [SECOND[0]]


async def blocked_by(dsn: str, connection: psycopg.AsyncConnection[Any]) -> None:
    """Waits until a session waits for what the transaction of this connection holds."""
    waits = "select count(*) from pg_locks where not granted and {} = any(pg_blocking_pids(pid))"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await rows(dsn, waits.format(connection.info.backend_pid)) == [(0,)]:
            await asyncio.sleep(0.02)


async def test_a_database_ahead_of_the_code_is_left_alone(
    fresh_database: FreshDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    dsn = await fresh_database()
    await migrate(dsn, ledger(FIRST, SECOND))
    assert await migrate(dsn, ledger(FIRST)) == []
    assert "newer than this code" in caplog.text


async def test_a_template_is_cloned_with_its_migrations(fresh_database: FreshDatabase) -> None:
    dsn = await fresh_database(ledger(FIRST), Migrations.from_texts("tools", [FIRST]))
    other = await fresh_database(ledger(FIRST))
    assert await migrate(dsn, ledger(FIRST)) == []
    assert await rows(dsn, "select count(*) from tools.tasks") == [(0,)]
    with pytest.raises(psycopg.errors.UndefinedTable):
        await rows(other, "select count(*) from tools.tasks")


@pytest.mark.parametrize(
    "names", [["0002_a.sql"], ["0001_a.sql", "0003_b.sql"], ["0001_a.sql", "0001_b.sql"], ["1_a.sql"], ["0001-a.sql"]]
)
def test_numbers_of_migrations_are_consecutive(names: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        ledger(*((name, "select 1") for name in names))


def test_migrations_are_found_in_their_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "owner_of_sql" / "sql" / "migrations"
    folder.mkdir(parents=True)
    (folder / "0001_a.sql").write_text("select 1")
    (folder / "README").write_text("not one")
    (tmp_path / "owner_of_sql" / "__init__.py").touch()
    (tmp_path / "owner_of_sql" / "sql" / "queries.sql").write_text("-- name: a\n-- Why.\nselect 1;\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert [file.name for file in Migrations.of("owner_of_sql", schema="x").files] == ["0001_a.sql"]
    assert Queries.load("owner_of_sql").a == b"select 1"


async def test_a_named_statement_runs(fresh_database: FreshDatabase) -> None:
    queries = Queries("""
-- The head of the file.

-- name: doubled
-- 100 % of what it was given: a comment is for the reader.
select %(n)s::int * 2
  -- also in between
  as doubled;

-- name: tripled
-- Why.
select %(n)s::int * 3
""")
    assert list(queries) == ["doubled", "tripled"]
    async with await psycopg.AsyncConnection.connect(await fresh_database()) as postgres:
        assert await (await postgres.execute(queries.doubled, {"n": 21})).fetchone() == (42,)


def test_statements_share_parts() -> None:
    text = """
-- part: live
-- Tasks that have not ended.
ended_at is null and '{}' <> {nothing}
-- name: a
-- Why.
select {row.columns} from tasks where {live};
"""
    queries = Queries(text, parts={"row.columns": "state, step", "nothing": "''"})
    assert queries.a == b"select state, step from tasks where ended_at is null and '{}' <> ''"
    assert list(queries) == ["a"]


def test_a_missing_statement_is_an_error_at_its_name() -> None:
    with pytest.raises(AttributeError, match=r"queries.sql has no statement named nothing"):
        _ = Queries("-- name: a\n-- Why.\nselect 1").nothing


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("-- name: a\n-- Why.\nselect 1\n-- name: a\n-- Why.\nselect 2", "a is defined twice"),
        ("-- name: a\n-- Why.\n", "a has no statement"),
        ("-- name: a\nselect 1", "a has no comment"),
        ("select 1", "before the first"),
        ("-- name: A-b\n-- Why.\nselect 1", "not a valid name"),
        ("-- name: a\n-- Why.\nselect {b}", "no part named b above"),
    ],
)
def test_a_file_of_statements_keeps_its_form(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Queries(text)
