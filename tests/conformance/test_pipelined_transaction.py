"""Laws of transactions whose statements travel together, on a real Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import psycopg
import pytest

from tenure.domain.errors import InvalidRequest, Unavailable
from tenure.runtime.store.dedicated_connection import DedicatedConnection
from tenure.runtime.store.postgres import (
    Connection,
    PoolOptions,
    TransactionConflict,
    in_transaction,
    open_pool,
    pool_connection,
)
from tenure.runtime.store.postgres import transaction as transaction_of
from tenure.runtime.store.sql_arrays import Texts
from tests.support.fix_postgres import FreshDatabase
from tests.support.patience import CALL_SECONDS

INSERT = b"insert into notes (id, body) values (%(id)b::int8, %(body)b::text)"
ALL = b"select id, body from notes order by id"
FAILING = b"select 1 / 0"
SLEEP = b"select pg_sleep(%(seconds)b::float8)"


@pytest.fixture
async def dsn(fresh_database: FreshDatabase) -> str:
    dsn = await fresh_database()
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("create table notes (id bigint primary key, body text not null)")
    return dsn


@asynccontextmanager
async def kept(dsn: str, options: PoolOptions | None = None) -> AsyncGenerator[DedicatedConnection]:
    async with DedicatedConnection(dsn, service="test", options=options, keep_after_errors=True) as connection:
        yield connection


async def notes(connection: DedicatedConnection) -> list[tuple[int, str]]:
    async with connection.use() as reader:
        return await (await reader.execute(ALL)).fetchall()


async def write(connection: DedicatedConnection, *ids: int, then: bytes = ALL) -> None:
    async with connection.transaction() as transaction:
        for number in ids:
            await transaction.execute(INSERT, {"id": number, "body": "one"})
        await (await transaction.execute(then)).fetchall()


async def session(connection: DedicatedConnection) -> int:
    async with connection.use() as used:
        return used.backend_pid


async def test_statements_run_in_order_and_commit_together(dsn: str) -> None:
    async with kept(dsn) as connection:
        async with connection.transaction() as transaction:
            await transaction.execute(INSERT, {"id": 1, "body": "one"})
            await transaction.execute(INSERT, {"id": 2, "body": "100 %"})
            assert await (await transaction.execute(ALL)).fetchall() == [(1, "one"), (2, "100 %")]
            await transaction.execute(INSERT, {"id": 3, "body": "three"})
            assert await notes_of_others(dsn) == [], "nothing is visible before the commit"
        assert await notes(connection) == await notes_of_others(dsn) == [(1, "one"), (2, "100 %"), (3, "three")]


async def notes_of_others(dsn: str) -> list[tuple[int, str]]:
    async with kept(dsn) as other:
        return await notes(other)


async def test_a_failed_statement_leaves_nothing_behind(dsn: str) -> None:
    async with kept(dsn) as connection:
        before = await session(connection)
        with pytest.raises(InvalidRequest) as refused:
            await write(connection, 1, 1, 2)
        assert isinstance(refused.value.__cause__, psycopg.errors.UniqueViolation)
        assert await notes(connection) == []
        assert await session(connection) == before, "the connection is kept"


async def test_an_error_at_a_fetch_rolls_back(dsn: str) -> None:
    async with kept(dsn) as connection:
        with pytest.raises(InvalidRequest, match="22012"):
            await write(connection, 1, then=FAILING)
        assert await notes(connection) == []


async def test_an_exception_of_the_block_rolls_back(dsn: str) -> None:
    async with kept(dsn) as connection:

        async def refuses() -> None:
            async with connection.transaction() as transaction:
                await transaction.execute(INSERT, {"id": 1, "body": "one"})
                await (await transaction.execute(ALL)).fetchall()
                await transaction.execute(INSERT, {"id": 2, "body": "not sent"})
                raise KeyError("refused")

        with pytest.raises(KeyError, match="refused"):
            await refuses()
        assert await notes(connection) == []


async def test_a_swallowed_error_is_never_taken_for_a_commit(dsn: str) -> None:
    async with kept(dsn) as connection:

        async def swallows() -> None:
            async with connection.transaction() as transaction:
                await transaction.execute(INSERT, {"id": 1, "body": "one"})
                with suppress(psycopg.errors.DivisionByZero):
                    await (await transaction.execute(FAILING)).fetchone()

        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            await swallows()
        assert await notes(connection) == []


async def test_a_statement_that_failed_to_prepare_works_later(dsn: str) -> None:
    later = b"select count(*) from later where id > %(id)b::int8"
    async with kept(dsn) as connection:
        with pytest.raises(psycopg.errors.UndefinedTable):
            async with connection.transaction() as transaction:
                await (await transaction.execute(later, {"id": 0})).fetchone()
        async with connection.transaction() as transaction:
            await transaction.execute(b"create table later (id bigint)")
            assert await (await transaction.execute(later, {"id": 0})).fetchone() == (0,)


async def test_psycopg_works_between_transactions(dsn: str) -> None:
    async with kept(dsn) as connection:
        for number in range(3):
            async with connection.transaction() as transaction:
                await transaction.execute(INSERT, {"id": number, "body": "pipelined"})
            async with connection.use() as psycopgs, psycopgs.transaction():
                await psycopgs.execute(INSERT, {"id": number + 10, "body": "by psycopg"})
        assert [number for number, _ in await notes(connection)] == [0, 1, 2, 10, 11, 12]


async def test_large_parameters_are_sent_whole(dsn: str) -> None:
    body = "x" * 8_000_000  # more than the buffers of a socket
    async with kept(dsn) as connection:
        async with connection.transaction() as transaction:
            for number in range(3):
                await transaction.execute(INSERT, {"id": number, "body": body})
        assert await notes(connection) == [(number, body) for number in range(3)]


async def test_an_empty_list_travels_beside_packed_columns(dsn: str) -> None:
    """psycopg sends an empty list as text, and all other parameters of the service as binary."""
    statement = b"select cardinality(%(packed)b::text[]), cardinality(%(listed)b::text[]), %(number)b::int8"
    async with kept(dsn) as connection, connection.statements() as statements:
        rows = await statements.execute(statement, {"packed": Texts(["one"]), "listed": [], "number": 5})
        assert await rows.fetchall() == [(1, 0, 5)]


async def test_a_transaction_without_statements_sends_nothing(dsn: str) -> None:
    async with kept(dsn) as connection:
        async with connection.transaction():
            pass
        assert await notes(connection) == []


async def test_an_interrupted_transaction_ends_at_the_server(dsn: str) -> None:
    async with kept(dsn) as connection:

        async def sleeps() -> None:
            async with connection.transaction() as transaction:
                await transaction.execute(INSERT, {"id": 1, "body": "one"})
                await (await transaction.execute(SLEEP, {"seconds": 60.0})).fetchone()

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sleeps(), 0.5)
        async with asyncio.timeout(CALL_SECONDS):
            assert await notes(connection) == []


async def test_a_session_that_ends_raises_what_happened(dsn: str) -> None:
    async with kept(dsn) as connection:

        async def loses_its_session() -> None:
            async with connection.transaction() as transaction:
                await transaction.execute(INSERT, {"id": 1, "body": "one"})
                await (await transaction.execute(ALL)).fetchall()
                async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as other:
                    await other.execute("select pg_terminate_backend(%s::int)", (transaction.backend_pid,))
                await transaction.execute(INSERT, {"id": 2, "body": "two"})

        with pytest.raises(Unavailable, match="lost"):
            await loses_its_session()
        assert await notes(connection) == []


async def test_a_silent_client_loses_its_locks(dsn: str) -> None:
    options = PoolOptions(idle_in_transaction_timeout_seconds=0.5)
    async with kept(dsn, options) as silent, kept(dsn) as other:
        async with other.transaction() as transaction:
            await transaction.execute(INSERT, {"id": 1, "body": "one"})

        async def falls_silent() -> None:
            async with silent.transaction() as holding:
                await (await holding.execute(b"select from notes for update")).fetchall()
                async with asyncio.timeout(CALL_SECONDS), other.transaction() as transaction:
                    await transaction.execute(b"update notes set body = 'two'")

        with pytest.raises(Unavailable, match="lost"):
            await falls_silent()
        assert await notes(other) == [(1, "two")]


async def test_a_placeholder_of_another_form_is_refused(dsn: str) -> None:
    async with kept(dsn) as connection:
        with pytest.raises(psycopg.errors.ProgrammingError, match="placeholder"):
            async with connection.transaction() as transaction:
                await transaction.execute(b"select %(id)s", {"id": 1})


async def test_a_new_session_prepares_its_statements_again(dsn: str) -> None:
    async with kept(dsn) as connection:
        for number in range(2):
            async with connection.transaction() as transaction:
                await transaction.execute(INSERT, {"id": number, "body": "one"})
            await connection.close()
        assert len(await notes(connection)) == 2


async def test_single_statements_are_transactions_of_their_own(dsn: str) -> None:
    async with kept(dsn) as connection, connection.statements() as statements:
        await statements.execute(INSERT, {"id": 1, "body": "one"})
        assert await notes_of_others(dsn) == [(1, "one")], "it is durable when it returns"
        assert await (await statements.execute(ALL)).fetchall() == [(1, "one")]


async def test_a_failed_single_statement_leaves_the_session_usable(dsn: str) -> None:
    async with kept(dsn) as connection:
        before = await session(connection)
        async with connection.statements() as statements:
            await statements.execute(INSERT, {"id": 1, "body": "one"})
            with pytest.raises(psycopg.errors.DivisionByZero):
                await statements.execute(FAILING)
            assert await (await statements.execute(ALL)).fetchall() == [(1, "one")]
        assert await session(connection) == before


async def test_lost_statements_are_prepared_again(dsn: str) -> None:
    async with open_pool(dsn, options=PoolOptions(min_size=1, max_size=1)) as pool:

        async def write_one(transaction: Connection) -> None:
            await transaction.execute(INSERT, {"id": await count_of(transaction) + 1, "body": "one"})

        await in_transaction(pool, write_one)
        async with pool_connection(pool) as postgres:
            await postgres.execute("deallocate all")
        with pytest.raises(TransactionConflict):
            async with transaction_of(pool) as transaction:
                await write_one(transaction)
        async with pool_connection(pool) as postgres:
            await postgres.execute("deallocate all")
        await in_transaction(pool, write_one)
        assert await notes_of_others(dsn) == [(1, "one"), (2, "one")]


async def count_of(transaction: Connection) -> int:
    return len(await (await transaction.execute(ALL)).fetchall())


async def test_an_own_rollback_of_psycopg_costs_no_statement(dsn: str) -> None:
    async with open_pool(dsn, options=PoolOptions(min_size=1, max_size=1)) as pool:
        async with transaction_of(pool) as transaction:
            assert await count_of(transaction) == 0
        with suppress(psycopg.errors.DivisionByZero):
            async with pool.connection() as postgres:  # which psycopg rolls back
                await postgres.execute("begin", prepare=False)
                await postgres.execute("select 1 / 0", prepare=False)
        async with transaction_of(pool) as transaction:
            assert await count_of(transaction) == 0


WAIT_AT_COMMIT = """
    create function wait_for_lock() returns trigger language plpgsql as
      $$ begin perform pg_advisory_xact_lock_shared(7); return null; end $$;
    create constraint trigger waits after insert on notes deferrable initially deferred
      for each row execute function wait_for_lock();
"""
WAITING = "select 1 from pg_locks where locktype = 'advisory' and not granted and pid = %s"


@pytest.mark.parametrize("kind", ["pool", "kept", "single"])
async def test_a_cancellation_does_not_stop_a_commit(dsn: str, kind: str) -> None:
    """Postgres would end the wait for a synchronous standby, and keep the commit all the same: a repeat would find it,
    and be acknowledged, although the standby does not have it. Here the commit waits for a lock.
    """
    sessions: list[int] = []

    async def write_note(transaction: Connection) -> None:
        sessions.append(transaction.backend_pid)
        await transaction.execute(INSERT, {"id": 1, "body": "one"})

    async with (
        open_pool(dsn) as pool,
        kept(dsn) as connection,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as other,
    ):
        await other.execute(WAIT_AT_COMMIT)
        await other.execute("select pg_advisory_lock(7)")

        async def write() -> None:
            opened: dict[str, Callable[[], AbstractAsyncContextManager[Connection]]] = {
                "pool": lambda: transaction_of(pool),
                "kept": connection.transaction,
                "single": connection.statements,
            }
            async with opened[kind]() as transaction:
                await write_note(transaction)

        writing = asyncio.create_task(write())
        async with asyncio.timeout(CALL_SECONDS):
            while not sessions or not await (await other.execute(WAITING, (sessions[0],))).fetchall():
                await asyncio.sleep(0.01)
        for _ in range(3):
            writing.cancel()
            await asyncio.sleep(0.05)
        assert await (await other.execute(WAITING, (sessions[0],))).fetchall(), "the commit still waits"
        await other.execute("select pg_advisory_unlock(7)")
        with pytest.raises(asyncio.CancelledError):
            await writing
    assert await notes_of_others(dsn) == [(1, "one")]
