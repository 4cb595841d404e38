"""Upgrades of the tool service's schema while replicas from before serve: they go on, and nothing of theirs is lost."""

from __future__ import annotations

import asyncio

import psycopg

from services.tools.statements import MIGRATIONS, SCHEMA
from tenure.runtime.sql import Migrations, migrate
from tests.support.fix_postgres import FreshDatabase
from tests.support.patience import PATIENCE_SECONDS

RELEASED = 3
"""Migrations that replicas from before know."""
CALL = """insert into tools.calls (task_id, call_id, tool, effect_class, arguments_hash, arguments, state, call_attempt,
                                   epoch, claim_id, started_at)
          select task_id, %s, 'pay', 'UNSAFE', sha256(''), '', 'STARTED', 1, 1, '', now() from tools.fences"""
FENCE = "insert into tools.fences (task_id, tenant) values (gen_random_uuid(), 'default')"
DOUBTED = "update tools.calls set state = 'IN_DOUBT' where call_id = %s"
RENEWAL = "lock table tools.runners in row exclusive mode nowait"


def first(count: int) -> Migrations:
    return Migrations(SCHEMA, MIGRATIONS.files[:count])


async def test_an_upgrade_does_not_block_renewals_of_runners(fresh_database: FreshDatabase) -> None:
    dsn = await fresh_database(first(RELEASED))
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as postgres:
        await postgres.execute(FENCE)
        await postgres.execute(CALL, ("1.0",))
        await postgres.execute(DOUBTED, ("1.0",))
        for number in range(RELEASED + 1, len(MIGRATIONS.files) + 1):
            async with postgres.transaction():
                await postgres.execute("lock table tools.calls in row exclusive mode")
                await postgres.execute("select from tools.calls for update")
                upgrade = asyncio.create_task(migrate(dsn, first(number)))
                await _done_or_blocked(postgres, upgrade)
                await postgres.execute(RENEWAL)  # raises LockNotAvailable
            await asyncio.wait_for(upgrade, PATIENCE_SECONDS)


async def test_doubts_of_older_replicas_are_listed(fresh_database: FreshDatabase) -> None:
    dsn = await fresh_database(first(RELEASED))
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as postgres:
        await postgres.execute(FENCE)
        for call_id in ("1.0", "1.1", "1.2"):
            await postgres.execute(CALL, (call_id,))
        await postgres.execute(DOUBTED, ("1.0",))
        await migrate(dsn, MIGRATIONS)
        await postgres.execute(DOUBTED, ("1.1",))
        timed = await postgres.execute("select call_id, doubted_at is not null from tools.calls order by call_id")
        assert await timed.fetchall() == [("1.0", True), ("1.1", True), ("1.2", False)]


async def _done_or_blocked(postgres: psycopg.AsyncConnection, upgrade: asyncio.Task[list[str]]) -> None:
    """Until the upgrade is through or waits for what the calling transaction holds."""
    me = postgres.info.backend_pid
    waits = "select exists (select from pg_locks where not granted and %s = any(pg_blocking_pids(pid)))"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not upgrade.done():
            (blocked,) = await (await postgres.execute(waits, (me,))).fetchone() or (False,)
            if blocked:
                return
            await asyncio.sleep(0.02)
