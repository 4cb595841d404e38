"""A dedicated connection is used after its session was configured, and only domain errors leave it open."""

from __future__ import annotations

import psycopg
import pytest

from tenure.domain.errors import InvalidRequest, Unavailable
from tenure.runtime.store.dedicated_connection import DedicatedConnection
from tenure.runtime.store.postgres import BoundedConnection, PoolOptions, configure_session
from tests.support.fix_postgres import FreshDatabase

pytestmark = pytest.mark.server


async def lock_timeout(kept: DedicatedConnection) -> str:
    async with kept.use() as postgres:
        row = await (await postgres.execute("show lock_timeout")).fetchone()
    assert row is not None
    return str(row[0])


async def test_a_session_whose_set_up_failed_is_not_used(
    fresh_database: FreshDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [1]

    async def fails_once(postgres: BoundedConnection, options: PoolOptions, schema: str | None) -> None:
        if failures:
            failures.pop()
            await postgres.execute("select pg_cancel_backend(pg_backend_pid())")
            await postgres.execute("select pg_sleep(10)")
        await configure_session(postgres, options, schema)

    monkeypatch.setattr("tenure.runtime.store.dedicated_connection.configure_session", fails_once)
    options = PoolOptions(lock_timeout_seconds=3.0)
    async with DedicatedConnection(
        await fresh_database(), service="t", options=options, keep_after_errors=True
    ) as kept:
        with pytest.raises(Unavailable) as refused:
            await lock_timeout(kept)
        assert (refused.value.reason, refused.value.metadata) == ("POSTGRES_UNAVAILABLE", {})
        assert await lock_timeout(kept) == "3s"


async def pid_after(kept: DedicatedConnection, statement: str) -> tuple[int, type[Exception]]:
    """Returns the session of a statement that fails, and the error."""
    caught: type[Exception] = Exception
    pid = 0
    try:
        async with kept.use() as postgres:
            pid = postgres.backend_pid
            await postgres.execute(statement.encode())
    except Exception as error:  # noqa: BLE001  the test compares it
        caught = type(error)
    return pid, caught


async def test_a_session_is_kept_only_after_a_domain_error(fresh_database: FreshDatabase) -> None:
    async with DedicatedConnection(await fresh_database(), service="t", keep_after_errors=True) as kept:
        refused, error = await pid_after(kept, "select 1/0")
        assert error is InvalidRequest
        broken, error = await pid_after(kept, "select * from nowhere")
        assert (broken, error) == (refused, psycopg.errors.UndefinedTable)
        async with kept.use() as postgres:
            assert postgres.backend_pid != broken


async def test_only_a_refused_value_names_its_text(
    fresh_database: FreshDatabase,
) -> None:
    async with DedicatedConnection(await fresh_database(), service="t") as kept:
        for state, expected in (("54000", "UNWRITABLE"), ("23514", "UNWRITABLE"), ("58030", "STORAGE_FAILED")):
            with pytest.raises((InvalidRequest, Unavailable)) as refused:
                async with kept.use() as postgres:
                    await postgres.execute(
                        f"do $$ begin raise exception 'of that row' using errcode = '{state}'; end $$".encode()
                    )
            assert refused.value.reason == expected
            assert ("of that row" in refused.value.message) == (expected == "UNWRITABLE")
