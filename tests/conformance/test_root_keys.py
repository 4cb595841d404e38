"""The ledger works with the root of a task's tree in every key, as on Citus, and no row is without it."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from services.checkpoint.queries import MIGRATIONS
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, MakeCheckpoint, words
from tests.support.fix_postgres import FreshDatabase

SHAPE = (Path(__file__).parents[2] / "deploy/postgres/root_keys.sql").read_text(encoding="utf-8")


@pytest.fixture
async def ledger(fresh_database: FreshDatabase, checkpoint: MakeCheckpoint) -> Checkpoint:
    dsn = await fresh_database(MIGRATIONS)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as postgres:
        await postgres.execute(SHAPE.encode())
    return await checkpoint(dsn=dsn)


async def roots(ledger: Checkpoint, table: str) -> set[str]:
    return {root for (root,) in await ledger.query(f"select distinct root_task_id::text from ledger.{table}")}


async def test_a_task_writes_its_root_into_every_row(ledger: Checkpoint) -> None:
    task_id = (await ledger.create()).task_id
    stale = await ledger.claim(task_id)
    await ledger.say(task_id, "hello")
    owner = await ledger.claim(task_id)
    with pytest.raises(Exception, match="STALE_EPOCH"):
        await stale.commit(words())
    await owner.commit(words())
    for table in ("tasks", "entries", "budgets", "foreign_requests"):
        assert await roots(ledger, table) == {task_id}


async def test_a_fork_is_a_root(ledger: Checkpoint) -> None:
    owner = await ledger.claim((await ledger.create()).task_id)
    await owner.commit(words())
    await owner.end()
    request = pb.CheckpointServiceForkTaskRequest(task_id=owner.task.task_id, request_id="f", actor="alice")
    fork = (await ledger.stub.ForkTask(request, timeout=TIMEOUT_SECONDS)).task
    assert await roots(ledger, "entries") == {owner.task.task_id, fork.task_id}


async def test_guards_hold_with_the_root_in_their_lookups(ledger: Checkpoint) -> None:
    task_id = (await ledger.create()).task_id
    for change in ("update ledger.tasks set state = 'RUNNING', holds = true", "delete from ledger.entries"):
        with pytest.raises(psycopg.errors.CheckViolation):
            await ledger.query(change)
    gap = (
        "insert into ledger.entries"
        " select task_id, 4, tenant, 0, '', 1, 0, 3, 'x', now(), '', root_task_id from ledger.tasks"
    )
    with pytest.raises(psycopg.errors.CheckViolation):
        await ledger.query(gap)
    owner = await ledger.claim(task_id)
    await owner.end()
    assert (await ledger.get(task_id)).state == task_pb2.TASK_STATE_SUCCEEDED


async def test_a_ledger_with_tasks_is_left_alone(checkpoint: MakeCheckpoint) -> None:
    ledger = await checkpoint()
    await ledger.create()
    async with await psycopg.AsyncConnection.connect(ledger.dsn, autocommit=True) as postgres:
        with pytest.raises(psycopg.errors.RaiseException, match="the ledger has tasks"):
            await postgres.execute(SHAPE.encode())
