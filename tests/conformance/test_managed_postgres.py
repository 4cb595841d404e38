"""A managed Postgres: neither its administrator nor a role of Tenure is a superuser."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from devstack.postgres_process import PostgresProcess
from services.checkpoint.queries import MIGRATIONS
from services.tools.statements import MIGRATIONS as TOOLS_MIGRATIONS
from tenure.runtime.store.sql import Rights, migrate
from tests.support.fix_checkpoint import MakeCheckpoint, words

ROLES = (Path(__file__).parents[2] / "deploy/postgres/roles.sql").read_text(encoding="utf-8")
DATABASE = "tenure"
PASSWORD = "planted"


def login(server: PostgresProcess, role: str) -> str:
    parts = urlsplit(server.dsn(DATABASE))
    return urlunsplit(parts._replace(netloc=f"{role}:{PASSWORD}@{parts.hostname}:{parts.port}"))


@pytest.fixture
async def managed(own_postgres: PostgresProcess) -> PostgresProcess:
    """A server with roles.sql, run by an administrator that may create roles and databases, and nothing else."""
    async with await psycopg.AsyncConnection.connect(own_postgres.dsn(), autocommit=True) as superuser:
        await superuser.execute(f"create role administrator login password '{PASSWORD}' createrole createdb".encode())
        await superuser.execute(f"create database {DATABASE} owner administrator".encode())
    statements = re.sub(r"^\\set .*$", "", re.sub(r":'\w+'", f"'{PASSWORD}'", ROLES), flags=re.MULTILINE)
    async with await psycopg.AsyncConnection.connect(login(own_postgres, "administrator"), autocommit=True) as postgres:
        await postgres.execute("set createrole_self_grant = 'set, inherit'")
        await postgres.execute(statements.encode())
    return own_postgres


async def test_no_role_needs_to_be_a_superuser(managed: PostgresProcess, checkpoint: MakeCheckpoint) -> None:
    owner = login(managed, "ledger_owner")
    assert await migrate(owner, MIGRATIONS)
    await Rights.of("services.checkpoint").give(owner, "ledger_service")
    assert await migrate(login(managed, "tools_owner"), TOOLS_MIGRATIONS)
    await Rights.of("services.tools").give(login(managed, "tools_owner"), "tools_service")

    first = await checkpoint(dsn=login(managed, "ledger_service"))
    second = await checkpoint(dsn=login(managed, "ledger_service"))
    worker = await first.claim((await second.create()).task_id)
    await worker.commit(words())
    await worker.end()
    assert (await second.get(worker.task.task_id)).result == "done"


@pytest.mark.faults
async def test_the_administrator_must_take_the_roles(own_postgres: PostgresProcess) -> None:
    """The page names a setting for it: without it Postgres refuses the schemas."""
    async with await psycopg.AsyncConnection.connect(own_postgres.dsn(), autocommit=True) as superuser:
        await superuser.execute(f"create role administrator login password '{PASSWORD}' createrole createdb".encode())
        await superuser.execute(f"create database {DATABASE} owner administrator".encode())
    async with await psycopg.AsyncConnection.connect(login(own_postgres, "administrator"), autocommit=True) as postgres:
        await postgres.execute("create role owner_of_a_schema")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await postgres.execute("create schema s authorization owner_of_a_schema")
