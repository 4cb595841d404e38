"""A pooler in transaction mode is refused at the start; one in session mode is not."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from devstack.options import choose_address
from devstack.postgres_process import PostgresProcess
from tenure.runtime.settings import ConfigurationError
from tenure.runtime.store.postgres import PoolOptions, open_pool, startup_guard
from tests.support.fix_postgres import FreshDatabase
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.nightly]
PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


@asynccontextmanager
async def pooler(dsn: str, mode: str, sessions: int, folder: Path) -> AsyncIterator[str]:
    """Runs PgBouncer before the database. Yields its DSN."""
    assert PGBOUNCER is not None
    given, port = psycopg.conninfo.conninfo_to_dict(dsn), choose_address("pooler", usual=False).rpartition(":")[2]
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\npooled = {dsn_of(given)}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
        f"auth_type = any\npool_mode = {mode}\ndefault_pool_size = {sessions}\nunix_socket_dir =\n"
    )
    process = await asyncio.create_subprocess_exec(PGBOUNCER, "-q", "-u", "nobody", str(settings))
    try:
        yield f"host=127.0.0.1 port={port} dbname=pooled user={given['user']}"
    finally:
        process.terminate()
        await process.wait()


def dsn_of(given: Mapping[str, object]) -> str:
    names = {"host": "host", "port": "port", "dbname": "dbname", "user": "user", "password": "password"}
    return " ".join(f"{name}={given[key]}" for key, name in names.items() if given.get(key))


@pytest.mark.skipif(PGBOUNCER is None, reason="PgBouncer is not installed")
@pytest.mark.parametrize("sessions", [1, 4])
async def test_a_pooler_in_transaction_mode_is_refused(
    fresh_database: FreshDatabase, tmp_path: Path, sessions: int
) -> None:
    tmp_path.chmod(0o755)
    async with (
        pooler(await fresh_database(), "transaction", sessions, tmp_path) as dsn,
        asyncio.timeout(PATIENCE_SECONDS),
        open_pool(dsn, options=PoolOptions(min_size=2)) as pool,
    ):
        with pytest.raises(ConfigurationError, match="transaction mode"):
            await startup_guard(pool)


@pytest.mark.skipif(PGBOUNCER is None, reason="PgBouncer is not installed")
async def test_a_pooler_in_session_mode_is_accepted(fresh_database: FreshDatabase, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    async with (
        pooler(await fresh_database(), "session", 4, tmp_path) as dsn,
        asyncio.timeout(PATIENCE_SECONDS),
        open_pool(dsn, options=PoolOptions(min_size=2)) as pool,
    ):
        await startup_guard(pool)


async def test_postgres_itself_is_accepted(postgres_server: PostgresProcess) -> None:
    async with open_pool(postgres_server.dsn()) as pool:
        await startup_guard(pool)
