"""The embedded Postgres of the run (`shared_stores`), and for every test the databases it asks for.

A database is cloned from a template that has the wanted migrations, and dropped in the background after it:

    dsn = await fresh_database()                                                  # empty
    dsn = await fresh_database(Migrations.of("services.checkpoint", schema="ledger"))
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import psycopg
import pytest
from psycopg import sql

from devstack.postgres_process import PostgresProcess
from tenure.runtime.store.sql import Migrations, migrate
from tests.support.shared_stores import Served
from tests.support.store_folder import store_folder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from psycopg.sql import Composed

EMPTY: Final = "template1"
_numbers = itertools.count(1)
_known_templates: set[str] = set()


class _Administrator:
    """A thread with a connection that is kept: to open one takes nearly as much processor time as a drop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._connections: dict[str, psycopg.Connection[Any]] = {}

    def execute(self, server: PostgresProcess, statement: Composed) -> Future[None]:
        """Executes a statement after those before it."""
        return self._thread.submit(self._execute, server.dsn(), statement)

    def _execute(self, dsn: str, statement: Composed) -> None:
        if dsn not in self._connections:
            self._connections[dsn] = psycopg.connect(dsn, autocommit=True)
        self._connections[dsn].execute(statement)

    def close(self) -> None:
        """Waits for all statements."""
        self._thread.shutdown()
        while self._connections:
            self._connections.popitem()[1].close()


_creates, _drops = _Administrator(), _Administrator()
_dropped: list[Future[None]] = []


class FreshDatabase(Protocol):
    """Makes a database with these migrations applied and returns its DSN."""

    async def __call__(self, *migrations: Migrations) -> str: ...


@pytest.fixture(scope="session")
def postgres_server(shared_postgres: Served) -> Iterator[PostgresProcess]:
    """The server that all tests share, also those of other processes: who stops or kills one starts `own_postgres`."""
    data_directory, port = shared_postgres
    yield PostgresProcess(data_directory, port=port)
    _creates.close()
    _drops.close()
    for drop in _dropped:
        drop.result()


@pytest.fixture
async def own_postgres() -> AsyncIterator[PostgresProcess]:
    """A server of the test's own, to be stopped, killed and started again."""
    with store_folder() as folder:
        async with PostgresProcess(folder / "data") as server:
            yield server


class MakeDatabase(Protocol):
    """Makes a database with these migrations applied, gone with the server. Returns its DSN. `about`: for its name."""

    async def __call__(self, about: str, *migrations: Migrations) -> str: ...


@pytest.fixture(scope="session")
def new_database(postgres_server: PostgresProcess, worker_id: str) -> MakeDatabase:
    """For the services that the tests of a module share."""

    async def make(about: str, *migrations: Migrations) -> str:
        name = f"{about}_{worker_id}_{next(_numbers)}"
        await _make(postgres_server, name, await _template(postgres_server, migrations))
        return postgres_server.dsn(name)

    return make


@pytest.fixture
async def fresh_database(postgres_server: PostgresProcess, worker_id: str) -> AsyncIterator[FreshDatabase]:
    """Makes databases for this test; they are dropped after its end, with all their connections."""
    async with databases(postgres_server, worker_id) as make:
        yield make


@asynccontextmanager
async def databases(server: PostgresProcess, worker_id: str) -> AsyncIterator[FreshDatabase]:
    """Makes databases until the end of the block, which drops them."""
    made: list[str] = []

    async def make(*migrations: Migrations) -> str:
        template = await _template(server, migrations)
        name = f"test_{worker_id}_{next(_numbers)}"
        await _make(server, name, template)
        made.append(name)
        return server.dsn(name)

    yield make
    for name in made:
        _drop(server, name)


@pytest.fixture(scope="module")
def shared_database(postgres_server: PostgresProcess, worker_id: str) -> Iterator[str]:
    """The DSN of an empty database for the tests of a module."""
    name = f"shared_{worker_id}_{next(_numbers)}"
    _creates.execute(postgres_server, _create(name, EMPTY)).result()
    yield postgres_server.dsn(name)
    _drop(postgres_server, name)


async def _template(server: PostgresProcess, migrations: tuple[Migrations, ...]) -> str:
    """The template for these migrations, made by the first process of the run that asks for it."""
    if not migrations:
        return EMPTY
    digest = hashlib.sha256("".join(one.checksum for one in migrations).encode()).hexdigest()[:16]
    name = f"template_{digest}"
    if name not in _known_templates:
        await _ensure_template(server, name, migrations)
        _known_templates.add(name)
    return name


async def _ensure_template(server: PostgresProcess, name: str, migrations: tuple[Migrations, ...]) -> None:
    unfinished = f"{name}_unfinished"  # a template has its name once it is whole: its maker may be killed
    async with await psycopg.AsyncConnection.connect(server.dsn(), autocommit=True) as postgres:
        await postgres.execute("select pg_advisory_lock(hashtext(%s))", [name])
        if await (await postgres.execute("select 1 from pg_database where datname = %s", [name])).fetchone():
            return
        await postgres.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(unfinished)))
        await postgres.execute(_create(unfinished, EMPTY))
        for one in migrations:
            await migrate(server.dsn(unfinished), one)
        rename = sql.SQL("alter database {} rename to {}")
        await postgres.execute(rename.format(sql.Identifier(unfinished), sql.Identifier(name)))


def _drop(server: PostgresProcess, name: str) -> None:
    """Drops a database with all its connections, in the background.

    A drop waits for each client of the server that is in the middle of its login, until Postgres'
    authentication_timeout. A connection attempt that a test cancelled may keep its socket until its traceback is
    collected, and the tests of all workers would wait for it.
    """
    statement = sql.SQL("drop database {} with (force)").format(sql.Identifier(name))
    _dropped.append(_drops.execute(server, statement))


def _create(name: str, template: str) -> Composed:
    # Copies the files (in memory) instead of writing each block to the log: half of the processor time.
    statement = sql.SQL("create database {} template {} strategy file_copy")
    return statement.format(sql.Identifier(name), sql.Identifier(template))


async def _make(server: PostgresProcess, name: str, template: str) -> None:
    await asyncio.wrap_future(_creates.execute(server, _create(name, template)))
