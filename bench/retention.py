"""Measures commits while ended tasks are pruned, and the bytes on disk of a task, retained and pruned."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from time import perf_counter
from typing import Final

from bench.commit_loads import Commit, Run, fact, random_arrivals
from bench.data_path import DataPath
from bench.figures import Section
from bench.held_tasks import HeldTask, TaskMaker
from bench.options import Options
from services.checkpoint.queries import SCHEMA, SESSION_SETTINGS
from services.checkpoint.retention.clearing import PrunedRowCleaner
from services.checkpoint.retention.pruning import TaskPruner
from services.worker.ledger_client import LedgerClient
from tenure.runtime.postgres import Connection, Pool, PoolOptions, in_transaction, open_pool
from tenure.runtime.postgres import connection as pool_connection
from tenure.runtime.process import Duties
from tenure.runtime.rpc_client import open_channel
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2

ENTRIES: Final = 6
BILLS: Final = 3
COPIES_AT_ONCE: Final = 250
PER_SECOND: Final = 500
ARRIVING_TASKS: Final = 64
TABLES: Final = ("entries", "tasks", "budgets", "token_usage", "prunings")
HOW: Final = (
    f"Random arrivals of commits of 5 KB, {PER_SECOND}/s, through the service: first alone, then while ended tasks of "
    f"{ENTRIES} entries of 5 KB are pruned, by the service's own code, tasks and entries at the same time. Disk: the "
    "ledger's tables with their indexes and out-of-line values, per ended task."
)
_COPY: Final = """
set local session_replication_role = replica;
create temp table copies as select gen_random_uuid() as id from generate_series(1, {count});
insert into tasks select (jsonb_populate_record(null::tasks, to_jsonb(t) || jsonb_build_object(
  'task_id', c.id, 'root_task_id', c.id, 'request_id', c.id))).* from tasks t, copies c where t.task_id = '{task_id}';
insert into budgets select c.id, b.tenant, b.max_tokens, b.used_tokens, b.reserved_tokens
  from budgets b, copies c where b.root_task_id = '{task_id}';
insert into entries select c.id, e.sequence, e.tenant, e.epoch, e.claim_id, e.attempt, e.step, e.kind, e.actor,
  e.recorded_at, e.body from entries e, copies c where e.task_id = '{task_id}';
insert into token_usage select c.id, step, 1, 'default', c.id, 1, 'claude-opus-4-8', gen_random_uuid()::text, false,
  1000, 200, 0, 0, 0, true, now() from copies c, generate_series(1, {bills}) as step;
drop table copies
"""


_LEFT: Final = (
    "select (select count(*) from tasks where ended_at is not null)"
    " + (select count(*) from prunings where cleared_at is null)"
)


async def measure(options: Options) -> list[Section]:
    """Returns latencies of commits, rates of pruning, and bytes on disk."""
    count, seconds = (
        options.choose(smoke=COPIES_AT_ONCE, quick=500, full=10_000),
        options.choose(smoke=0.2, quick=2.0, full=15.0),
    )
    section = Section("Retention", HOW)
    async with AsyncExitStack() as opened:
        options.tell("retention: starting Postgres and the checkpoint service")
        path = await opened.enter_async_context(DataPath(options.folder / "retention", "checkpoint"))
        pool = await opened.enter_async_context(
            open_pool(path.dsn, service="bench", schema=SCHEMA, options=PoolOptions(settings=SESSION_SETTINGS))
        )
        channel = await opened.enter_async_context(open_channel(path.address("checkpoint")))
        ledger, duties = LedgerClient(channel), await opened.enter_async_context(Duties())
        duties.start("commit stream", ledger.run)
        maker = TaskMaker(channel, path.signer)
        [template], arriving = await maker.held(1), await maker.held(ARRIVING_TASKS)
        options.tell(f"retention: {count:,} ended tasks")
        before = await _sizes(pool)
        await _copies(ledger.commit, template, pool, count)
        kept = {table: size - before[table] for table, size in (await _sizes(pool)).items()}
        load = partial(random_arrivals, ledger.commit, arriving, PER_SECOND)
        await load(options.choose(smoke=0.1, quick=1.0, full=1.0))
        options.tell("retention: commits alone")
        section.add_latencies("commits alone", (await load(seconds)).latencies)
        options.tell("retention: commits beside a prune")
        await _beside(section, pool, load)
        await _add_disk(section, pool, kept, before, count)
    return [section]


async def _copies(commit: Commit, template: HeldTask, pool: Pool, count: int) -> None:
    """Runs the template task to its end, and copies it `count` times in the database."""
    for _ in range(ENTRIES):
        template.acknowledged(await commit(template.commit([fact()])))
    end = pb.Transition(to_state=task_pb2.TASK_STATE_SUCCEEDED, reason="FINAL_ANSWER", result="done")
    template.acknowledged(await commit(template.commit([], transition=end)))
    copy = _COPY.format(count=COPIES_AT_ONCE, task_id=template.task_id, bills=BILLS)

    async def work(connection: Connection) -> None:
        await connection.execute(b"set local statement_timeout = 0")  # thousands of rows with each statement
        for statement in copy.split(";"):
            await connection.execute(statement.encode())

    for _ in range(count // COPIES_AT_ONCE):
        await in_transaction(pool, work)


async def _beside(section: Section, pool: Pool, load: Callable[[float], Awaitable[Run]]) -> None:
    """Commits until all ended tasks are pruned. The pruning sweeps make almost no pauses."""
    pruner, clearing, began = TaskPruner(pool, 0.001), PrunedRowCleaner(pool, 0.001), perf_counter()
    async with Duties() as duties:
        duties.start("prune", pruner.run)
        duties.start("clear", clearing.run)
        latencies: list[float] = []
        while await _number(pool, _LEFT):
            latencies += (await load(1.0)).latencies
        took = perf_counter() - began
    section.add_latencies("commits beside a prune", latencies)
    pruned = await _number(pool, "select count(*) from prunings")
    section.add("pruned beside them", pruned / took, "tasks/s", note=f"{pruned:,.0f} tasks in {took:.1f} s")
    section.add("entries pruned beside them", pruned * (ENTRIES + 4) / took, "/s")


async def _add_disk(section: Section, pool: Pool, kept: dict[str, float], before: dict[str, float], count: int) -> None:
    section.add("an ended task, retained", sum(kept.values()) / count, "B on disk", note=_parts(kept, count))
    async with pool_connection(pool) as connection:
        for table in TABLES:
            await connection.execute(f"vacuum full {table}".encode())
    left = {table: size - before[table] for table, size in (await _sizes(pool)).items()}
    of_pruned = {table: left[table] for table in ("token_usage", "prunings")}
    section.add("the same, pruned", sum(of_pruned.values()) / count, "B on disk", note=_parts(of_pruned, count))


def _parts(sizes: dict[str, float], count: int) -> str:
    return ", ".join(f"{table} {size / count:,.0f}" for table, size in sizes.items())


async def _sizes(pool: Pool) -> dict[str, float]:
    """Returns the bytes of each table with all its partitions, indexes and out-of-line values."""
    parts = "select coalesce(sum(pg_total_relation_size(relid)), 0) from pg_partition_tree('{0}')"
    statement = f"select greatest(pg_total_relation_size('{{0}}'), ({parts}))"
    return {table: await _number(pool, statement.format(table)) for table in TABLES}


async def _number(pool: Pool, statement: str) -> float:
    async with pool_connection(pool) as connection:
        row = await (await connection.execute(statement.encode())).fetchone()
    assert row is not None, "an aggregate has a row"
    return float(row[0])
