"""The cost of a step does not grow with the history."""

from __future__ import annotations

import statistics
from typing import Any

import psycopg
import pytest

from devstack.postgres_process import PostgresProcess
from services.checkpoint.queries import MIGRATIONS
from tenure.runtime.store.sql import migrate
from tenure.v1 import task_pb2
from tests.support.fix_checkpoint import Checkpoint, MakeCheckpoint, answer, reserve, words

STEPS = 120


@pytest.mark.faults
async def test_bytes_written_per_step_do_not_grow_with_the_history(
    own_postgres: PostgresProcess, checkpoint: MakeCheckpoint
) -> None:
    """The log is the server's: on the shared server the other tests write to it, too."""
    await migrate(own_postgres.dsn(), MIGRATIONS)
    replica = await checkpoint(dsn=own_postgres.dsn())
    owner = await replica.claim((await replica.create(limits=task_pb2.Limits(max_steps=STEPS))).task_id)
    written = []
    async with await psycopg.AsyncConnection.connect(replica.dsn, autocommit=True) as postgres:
        for step in range(1, STEPS + 1):
            before = await log_position(postgres)
            await owner.commit(reserve=reserve(step=step, input_tokens=10, output=10))
            await owner.commit(answer(step=step, tokens=5), words("x" * 4_000, step=step))
            written.append(await log_position(postgres) - before)
    early, late = statistics.median(written[10:40]), statistics.median(written[-30:])
    assert late < early * 1.15, f"{early} bytes at the beginning, {late} after {STEPS} steps"


async def log_position(postgres: psycopg.AsyncConnection[Any]) -> int:
    """Bytes of write-ahead log so far: all that a step makes the disk take."""
    cursor = await postgres.execute("select (pg_current_wal_insert_lsn() - '0/0')::bigint")
    ((position,),) = await cursor.fetchall()
    return int(position)


async def test_steps_are_hot_updates(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    before = await updates(replica)
    for _ in range(50):
        await owner.commit(words())
    after = await updates(replica)
    assert after[0] - before[0] >= 50
    assert after[1] - before[1] >= 0.9 * (after[0] - before[0])


async def updates(replica: Any) -> Any:
    """(all updates of tasks, those that touched no index), as the committing backend reported them."""
    await replica.query(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'tenure-checkpoint-commits'"
        " and datname = current_database()"
    )
    while await replica.query(
        "select 1 from pg_stat_activity where application_name = 'tenure-checkpoint-commits'"
        " and datname = current_database() and state is null"
    ):
        pass
    return (await replica.query("select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'tasks'"))[0]
