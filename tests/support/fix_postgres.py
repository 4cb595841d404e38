"""One embedded Postgres for the session, and for every test the databases it asks for.

A database is cloned from a template that has the wanted migrations, and dropped after the test:

    dsn = await fresh_database()                                                  # empty
    dsn = await fresh_database(Migrations.of("services.checkpoint", schema="ledger"))
"""

from __future__ import annotations

import gc
import hashlib
import itertools
from typing import TYPE_CHECKING, Protocol

import psycopg
import pytest
from psycopg import sql

from devstack.postgres_process import PostgresProcess
from tenure.runtime.sql import Migrations, migrate
from tests.support.store_folder import store_folder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from psycopg.sql import Composed

_numbers = itertools.count(1)


class FreshDatabase(Protocol):
    """Makes a database with these migrations applied and returns its DSN."""

    async def __call__(self, *migrations: Migrations) -> str: ...


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresProcess]:
    """The server all tests share: who stops or kills it starts `own_postgres` instead."""
    with store_folder() as folder, PostgresProcess(folder / "data") as server:
        yield server


@pytest.fixture
async def own_postgres() -> AsyncIterator[PostgresProcess]:
    """A server of the test's own, to be stopped, killed and started again."""
    with store_folder() as folder:
        async with PostgresProcess(folder / "data") as server:
            yield server


@pytest.fixture(scope="session")
def postgres_templates() -> dict[str, str]:
    """Digest of the migrations → name of the template that has them."""
    return {}


@pytest.fixture
async def fresh_database(
    postgres_server: PostgresProcess, postgres_templates: dict[str, str]
) -> AsyncIterator[FreshDatabase]:
    """Makes databases for this test; they are dropped at its end, whoever is still connected."""
    made: list[str] = []

    async def make(*migrations: Migrations) -> str:
        template = await _template(postgres_server, postgres_templates, migrations)
        name = f"test_{next(_numbers)}"
        await _execute(postgres_server, _create(name, template))
        made.append(name)
        return postgres_server.dsn(name)

    yield make
    for name in made:
        await _drop(postgres_server, name)


@pytest.fixture(scope="module")
def shared_database(postgres_server: PostgresProcess) -> Iterator[str]:
    """The DSN of an empty database for the tests of a module."""
    name = f"shared_{next(_numbers)}"
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as postgres:
        postgres.execute(_create(name, "template1"))
    yield postgres_server.dsn(name)
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as postgres:
        postgres.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


async def _template(server: PostgresProcess, known: dict[str, str], migrations: tuple[Migrations, ...]) -> str:
    """The template for these migrations, made when first asked for."""
    if not migrations:
        return "template1"
    digest = hashlib.sha256("".join(one.checksum for one in migrations).encode()).hexdigest()[:16]
    if digest not in known:
        name = f"template_{digest}"
        await _execute(server, _create(name, "template1"))
        for one in migrations:
            await migrate(server.dsn(name), one)
        known[digest] = name
    return known[digest]


async def _drop(server: PostgresProcess, name: str) -> None:
    """Drops a database, whoever is connected.

    A connection attempt that a test cancelled may keep its socket until its traceback is collected, and the drop waits
    for it until Postgres' authentication_timeout.
    """
    statement = sql.SQL("drop database {} with (force)").format(sql.Identifier(name))
    try:
        await _execute(server, statement, timeout_milliseconds=500)
    except psycopg.errors.QueryCanceled:
        gc.collect()
        await _execute(server, statement)


def _create(name: str, template: str) -> Composed:
    return sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template))


async def _execute(server: PostgresProcess, statement: Composed, *, timeout_milliseconds: int = 0) -> None:
    options = f"-c statement_timeout={timeout_milliseconds}"
    async with await psycopg.AsyncConnection.connect(server.dsn(), autocommit=True, options=options) as postgres:
        await postgres.execute(statement)
