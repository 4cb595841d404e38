"""Laws of our connections to Postgres, on a real one that is stopped, killed and cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import psycopg.conninfo
import pytest

from devstack.postgres_process import PostgresProcess
from tenure.domain import errors
from tenure.domain.retry import RetryPolicy
from tenure.runtime.settings import ConfigurationError, Secret
from tenure.runtime.store import postgres as postgres_module
from tenure.runtime.store import postgres as postgres_waits
from tenure.runtime.store.postgres import (
    PoolOptions,
    TransactionConflict,
    domain_errors,
    in_transaction,
    open_pool,
    pool_connection,
    startup_guard,
    transaction,
)
from tests.support.fix_postgres import FreshDatabase
from tests.support.fix_proxy import MakeProxy
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

ADD_ONE = b"update t set n = n + 1 where id = %(id)b returning n"
SMALL = PoolOptions(min_size=1, max_size=4, acquire_timeout_seconds=CALL_SECONDS)


@asynccontextmanager
async def pool_of(dsn: str, **changes: Any) -> AsyncGenerator[Any]:
    chosen = {"min_size": 1, "max_size": 4, "acquire_timeout_seconds": CALL_SECONDS, **changes}
    async with open_pool(dsn, service="test", options=PoolOptions(**chosen)) as pool:
        yield pool


async def one(pool: Any, statement: str, parameters: Any = ()) -> Any:
    async with pool_connection(pool) as postgres:
        row = await (await postgres.execute(statement, parameters)).fetchone()
        assert row is not None
        return row[0]


async def test_every_connection_is_set_up_for_short_durable_statements(fresh_database: FreshDatabase) -> None:
    async with open_pool(Secret(await fresh_database()), service="test", schema="ledger", options=SMALL) as pool:
        for name, value in {
            "statement_timeout": "10s",
            "lock_timeout": "5s",
            "idle_in_transaction_session_timeout": "10s",
            "plan_cache_mode": "force_generic_plan",
            "jit": "off",
            "search_path": "ledger, public",
            "application_name": "tenure-test",
            "TimeZone": "UTC",
            "tcp_keepalives_idle": "5",
            "tcp_keepalives_interval": "2",
            "tcp_keepalives_count": "3",
            "tcp_user_timeout": "15000",
        }.items():
            assert await one(pool, "select current_setting(%s)", (name,)) == value, name
        async with pool_connection(pool) as postgres:
            assert postgres.autocommit
            cursor = await postgres.execute("select 1")
            assert cursor.format is psycopg.pq.Format.BINARY
            prepared = await (await postgres.execute("select count(*) from pg_prepared_statements")).fetchone()
            assert prepared is not None
            assert prepared[0] >= 1


async def test_a_transaction_is_all_or_nothing(fresh_database: FreshDatabase) -> None:
    async with pool_of(await fresh_database()) as pool:
        async with pool_connection(pool) as postgres:
            await postgres.execute("create table t (n int)")
        with pytest.raises(ValueError, match="undo"):
            await insert_and_fail(pool)
        assert await one(pool, "select count(*) from t") == 0


async def insert_and_fail(pool: Any) -> None:
    async with transaction(pool) as postgres:
        await (await postgres.execute(b"insert into t values (1) returning n")).fetchall()
        raise ValueError("undo")


async def test_a_wrong_statement_raises_the_error_of_psycopg(fresh_database: FreshDatabase) -> None:
    async with pool_of(await fresh_database()) as pool:
        with pytest.raises(psycopg.errors.UndefinedTable):
            await one(pool, "select * from nowhere")


async def test_a_pool_that_is_used_up_is_unavailable(fresh_database: FreshDatabase) -> None:
    async with pool_of(await fresh_database(), max_size=1, acquire_timeout_seconds=0.1) as pool:
        async with pool_connection(pool):
            with pytest.raises(errors.Unavailable) as caught:
                await one(pool, "select 1")
        assert (caught.value.reason, caught.value.metadata) == ("POSTGRES_UNAVAILABLE", {})


async def test_too_many_waiting_is_a_limit(fresh_database: FreshDatabase) -> None:
    async with pool_of(await fresh_database(), max_size=1, max_waiting=1) as pool, pool_connection(pool):
        waiting = asyncio.create_task(one(pool, "select 1"))
        while not pool.get_stats().get("requests_waiting"):
            await asyncio.sleep(0)
        with pytest.raises(errors.LimitReached):
            await one(pool, "select 1")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_a_statement_that_takes_too_long_is_stopped(fresh_database: FreshDatabase) -> None:
    async with pool_of(await fresh_database(), statement_timeout_seconds=0.1) as pool:
        with pytest.raises(errors.Unavailable) as caught:
            await one(pool, "select pg_sleep(30)")
        assert caught.value.reason == "STATEMENT_TIMEOUT"


async def test_waiting_for_a_lock_is_bounded(fresh_database: FreshDatabase) -> None:
    async with pool_of(await fresh_database(), lock_timeout_seconds=0.1) as pool:
        async with transaction(pool) as holder:
            await (await holder.execute(b"select pg_advisory_xact_lock(1)")).fetchone()
            with pytest.raises(errors.Unavailable) as caught:
                await one(pool, "select pg_advisory_xact_lock(1)")
        assert caught.value.reason == "LOCK_TIMEOUT"


@pytest.fixture
async def falling_silent(fresh_database: FreshDatabase, tcp_proxy: MakeProxy) -> Any:
    """A DSN of a Postgres behind a proxy: connections to a frozen one stay, too, and no keepalive breaks them."""
    dsn: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(await fresh_database())
    proxy = await tcp_proxy("127.0.0.1", int(str(dsn["port"])))
    return psycopg.conninfo.make_conninfo(**{**dsn, "host": "127.0.0.1", "port": proxy.port}), proxy


async def test_a_statement_of_a_server_that_fell_silent_ends(
    falling_silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_module, "WAIT_MARGIN_SECONDS", 1.0)
    dsn, proxy = falling_silent
    async with pool_of(dsn, statement_timeout_seconds=1.0) as pool, asyncio.timeout(PATIENCE_SECONDS):
        async with pool_connection(pool) as postgres:
            proxy.deaf()
            with pytest.raises(errors.Unavailable) as caught, domain_errors():
                await postgres.execute("select 1")
        assert (caught.value.reason, caught.value.metadata) == ("POSTGRES_UNAVAILABLE", {"outcome": "unknown"})
        proxy.observe()
        assert await one(pool, "select 1") == 1


async def test_a_listener_notices_a_server_that_fell_silent(
    falling_silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_waits, "LISTEN_SECONDS", 0.2)
    dsn, proxy = falling_silent
    async with asyncio.timeout(PATIENCE_SECONDS):
        listener = await postgres_waits.BoundedConnection.connect(dsn, autocommit=True)
        listener.longest_wait_seconds = 4.0
        async with listener, aclosing(postgres_waits.notifications(listener)) as heard:
            await listener.execute("listen news")
            await listener.execute("notify news, 'one'")
            assert (await anext(heard)).payload == "one"
            proxy.deaf()
            with pytest.raises(psycopg.OperationalError):
                await anext(heard)


async def test_a_read_only_server_is_unavailable(fresh_database: FreshDatabase) -> None:
    settings = (("default_transaction_read_only", "on"),)
    async with pool_of(await fresh_database(), settings=settings) as pool:
        with pytest.raises(errors.Unavailable) as caught:
            await one(pool, "create table t (n int)")
        assert caught.value.reason == "READ_ONLY"


async def test_a_full_disk_is_reported_and_the_connection_stays(fresh_database: FreshDatabase) -> None:
    async with pool_of(await fresh_database()) as pool, pool_connection(pool) as postgres:
        with pytest.raises(errors.Unavailable) as caught:
            async with pool_connection(pool) as other:
                await other.execute("do $$ begin raise exception 'no space left' using errcode = '53100'; end $$")
        assert caught.value.reason == "STORAGE_FULL"
        assert await (await postgres.execute("select 1")).fetchone() == (1,)


async def test_a_deadlock_is_run_again_and_both_succeed(fresh_database: FreshDatabase) -> None:
    """Postgres undoes one of two; its second run waits until the other is through.

    Without that wait it may take its first row again before the other one has woken up, and both meet anew.
    """
    async with pool_of(await fresh_database(), lock_timeout_seconds=30.0) as pool:
        async with pool_connection(pool) as postgres:
            await postgres.execute("create table t (id int primary key, n int)")
            await postgres.execute("insert into t values (1, 0), (2, 0)")
        both_hold, one_is_through = asyncio.Barrier(2), asyncio.Event()
        runs = 0

        async def crossing(first: int, second: int) -> None:
            met = False

            async def work(postgres: Any) -> None:
                nonlocal met, runs
                runs += 1
                if met:
                    await one_is_through.wait()  # comes only if the undone run holds no lock any more
                await (await postgres.execute(ADD_ONE, {"id": first})).fetchall()
                if not met:
                    met = True
                    await both_hold.wait()
                await (await postgres.execute(ADD_ONE, {"id": second})).fetchall()

            await in_transaction(pool, work)
            one_is_through.set()

        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(crossing(1, 2), crossing(2, 1))
        assert await one(pool, "select array_agg(n order by id) from t") == [2, 2]
        assert runs == 3


async def test_a_retried_transaction_waits_before_it_locks_again(fresh_database: FreshDatabase) -> None:
    """Measured without that: about one deadlock in thirty was met again at once, a second later by Postgres's clock."""
    clock, began = asyncio.get_running_loop().time, []

    async def conflict(postgres: Any) -> None:
        began.append(clock())
        await postgres.execute(b"do $$ begin raise exception 'again' using errcode = '40P01'; end $$")

    async with pool_of(await fresh_database()) as pool:
        with pytest.raises(TransactionConflict):
            await in_transaction(pool, conflict, RetryPolicy(max_attempts=8, initial_seconds=0.05, factor=1.0))
    assert min(later - earlier for earlier, later in pairwise(began)) >= 0.05 / 2


async def test_endless_conflicts_are_raised(fresh_database: FreshDatabase) -> None:
    async def conflict(postgres: Any) -> None:
        await postgres.execute(b"do $$ begin raise exception 'again' using errcode = '40001'; end $$")

    async with pool_of(await fresh_database()) as pool:
        with pytest.raises(TransactionConflict):
            await in_transaction(pool, conflict)


async def test_the_pool_survives_a_crash_of_the_server(own_postgres: PostgresProcess) -> None:
    async with pool_of(own_postgres.dsn(), min_size=4, acquire_timeout_seconds=2.0) as pool:
        assert await one(pool, "select 1") == 1
        await asyncio.to_thread(own_postgres.kill)
        with pytest.raises(errors.Unavailable):
            await one(pool, "select 1")
        await own_postgres.start_async()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    assert await one(pool, "select 1") == 1
                    break
                except errors.Unavailable:
                    continue  # bounded by the pool's own wait, and by the timeout around


async def test_a_connection_ended_in_a_statement_is_unknown(fresh_database: FreshDatabase) -> None:
    async with pool_of(await fresh_database()) as pool:
        async with pool_connection(pool) as victim:
            sleeping = asyncio.create_task(sleep_in(victim))
            pid = victim.info.backend_pid
            while await one(pool, "select state from pg_stat_activity where pid = %s", (pid,)) != "active":
                await asyncio.sleep(0)
            assert await one(pool, "select pg_terminate_backend(%s::int)", (pid,))
            with pytest.raises(errors.Unavailable) as caught:
                await sleeping
        assert (caught.value.reason, caught.value.metadata) == ("POSTGRES_UNAVAILABLE", {"outcome": "unknown"})


async def sleep_in(postgres: Any) -> None:
    with domain_errors():
        await postgres.execute("select pg_sleep(30)")


async def test_an_absent_server_is_unavailable_in_time(closed_port: int) -> None:
    dsn = f"postgresql://tenure@127.0.0.1:{closed_port}/x"
    options = PoolOptions(start_timeout_seconds=0.5)
    with pytest.raises(errors.Unavailable):
        async with open_pool(dsn, options=options), asyncio.timeout(CALL_SECONDS):
            pytest.fail("opened a pool to nothing")


@pytest.mark.faults
async def test_a_service_may_start_before_its_server(own_postgres: PostgresProcess) -> None:
    dsn = own_postgres.dsn()
    await own_postgres.stop_async()

    async def work() -> int:
        async with pool_of(dsn, start_timeout_seconds=PATIENCE_SECONDS) as pool:
            answer: int = await one(pool, "select 1")
            return answer

    starting = asyncio.create_task(work())
    await own_postgres.start_async()
    assert await starting == 1


@pytest.mark.parametrize("setting", ["fsync", pytest.param("full_page_writes", marks=pytest.mark.faults)])
async def test_a_server_that_may_lose_entries_is_refused(tmp_path: Path, setting: str) -> None:
    async with PostgresProcess(tmp_path / "data", settings={setting: "off"}) as server, pool_of(server.dsn()) as pool:
        with pytest.raises(ConfigurationError, match=f"{setting}=off"):
            await startup_guard(pool)
        await startup_guard(pool, allow_unsafe=True)


async def test_asynchronous_commits_are_refused(fresh_database: FreshDatabase) -> None:
    async with pool_of(await fresh_database(), settings=(("synchronous_commit", "off"),)) as pool:
        with pytest.raises(ConfigurationError, match="synchronous_commit=off"):
            await startup_guard(pool)


async def test_a_server_too_old_is_always_refused(
    fresh_database: FreshDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.runtime.store.postgres.OLDEST_VERSION", 990000)
    async with pool_of(await fresh_database()) as pool:
        with pytest.raises(ConfigurationError, match="14 or newer"):
            await startup_guard(pool, allow_unsafe=True)


async def test_a_durable_server_is_accepted(fresh_database: FreshDatabase) -> None:
    async with pool_of(await fresh_database()) as pool:
        await startup_guard(pool)


async def test_a_broken_connection_is_unknown_and_the_next_works(
    fresh_database: FreshDatabase, postgres_server: PostgresProcess, tcp_proxy: MakeProxy
) -> None:
    dsn = await fresh_database()
    proxy = await tcp_proxy("127.0.0.1", postgres_server.port)
    through = dsn.replace(f":{postgres_server.port}/", f":{proxy.port}/")
    async with pool_of(dsn) as direct, pool_of(through) as pool, asyncio.timeout(PATIENCE_SECONDS):
        sleeping = asyncio.create_task(one(pool, "select pg_sleep(30) as broken_off"))
        sleepers = (
            "select count(*) from pg_stat_activity where datname = current_database() and query like '%% as broken_off'"
        )
        while not await one(direct, sleepers):
            await asyncio.sleep(0.01)
        await proxy.reset()
        with pytest.raises(errors.Unavailable) as caught:
            await sleeping
        assert caught.value.metadata == {"outcome": "unknown"}
        assert await one(pool, "select 1") == 1


async def test_a_request_to_a_silent_server_is_answered_later(
    fresh_database: FreshDatabase, postgres_server: PostgresProcess, tcp_proxy: MakeProxy
) -> None:
    dsn = await fresh_database()
    proxy = await tcp_proxy("127.0.0.1", postgres_server.port)
    through = dsn.replace(f":{postgres_server.port}/", f":{proxy.port}/")
    async with pool_of(through) as pool, asyncio.timeout(PATIENCE_SECONDS):
        assert await one(pool, "select 1") == 1
        proxy.deaf()
        asking = asyncio.create_task(one(pool, "select 2"))
        done, _ = await asyncio.wait([asking], timeout=0.2)
        assert not done
        proxy.observe()
        assert await asking == 2
