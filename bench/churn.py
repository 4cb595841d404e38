"""Measures whether tables and indexes stay bounded while tasks come, end and are pruned."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import psycopg
from psycopg import sql

from bench.bulk_rows import NEW_TASK, multiply
from bench.data_path import DataPath
from bench.figures import Section, at_most
from bench.held_tasks import HeldTask
from bench.null_steps import NullAgents, null_agents
from bench.options import Options
from services.checkpoint.queries import SCHEMA as LEDGER
from services.checkpoint.retention.clearing import PrunedRowCleaner
from services.checkpoint.retention.pruning import TaskPruner
from services.tools.statements import SCHEMA as TOOLS
from tenure.runtime.postgres import Pool
from tenure.v1 import tool_service_pb2
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub

STEPS: Final = 3
AT_ONCE: Final = 32
KEPT_SECONDS: Final = 0.001
MAX_GROWTH: Final = 1.3
"""Of what the churn leaves behind, from its third round to its last one."""
TABLES: Final = {LEDGER: ("tasks", "entries", "budgets"), TOOLS: ("calls",)}
HOW: Final = (
    f"Tasks of {STEPS} steps with a tool call each, through the services, {AT_ONCE} at once; after each round the "
    "service's own code prunes them all, and the tool service forgets them. Beside them are ended tasks with the label "
    "`tenure.retention=keep`. Sizes are those of a table with all its partitions, indexes and out-of-line values. "
    "Autovacuum looks every second, as a round takes seconds: production has rounds of days and looks each minute. "
    "First with the settings of the migrations, then with those of Postgres."
)


async def measure(options: Options) -> list[Section]:
    """Returns the sizes after each third of the rounds, with both settings."""
    section = Section("Churn with retention", HOW)
    for name in ("Tenure's settings", "Postgres's defaults"):
        options.tell(f"churn: {name}")
        folder = options.folder / f"churn-{name[0].lower()}"
        async with DataPath(folder, "checkpoint", "tools") as path, null_agents(path) as agents:
            await _prepare(path.dsn, defaults=name.startswith("Postgres"))
            await _churn(section, name, agents, options)
    return [section]


async def _churn(section: Section, name: str, agents: NullAgents, options: Options) -> None:
    kept = options.choose(smoke=100, quick=5_000, full=20_000)
    tasks, rounds = options.choose(smoke=4, quick=200, full=500), options.choose(smoke=3, quick=8, full=20)
    await _keep(agents, kept)
    sizes: list[dict[str, float]] = []
    for number in range(1, rounds + 1):
        await _round(agents, tasks)
        sizes.append(await _sizes(agents.path.dsn))
        options.tell(f"churn: round {number} of {rounds}, {sum(sizes[-1].values()) / 1e6:,.1f} MB")
    section.add(f"{name}: tasks a round, beside {kept:,} kept", tasks, "", note=f"{rounds} rounds")
    for table in sizes[-1]:
        third, last = sizes[2][table], sizes[-1][table]
        note = f"{third / 1e6:,.2f} MB after 3 rounds, {last / 1e6:,.2f} MB after {rounds}"
        bound = at_most(MAX_GROWTH) if name.startswith("Tenure") else None
        section.add(f"{name}: {table}", last / third, "times", bound=bound, note=note)


async def _round(agents: NullAgents, count: int) -> None:
    """Runs tasks to their ends, prunes them and forgets them."""
    tasks = await agents.maker.held(count)
    at_once = asyncio.Semaphore(AT_ONCE)

    async def run(task: HeldTask) -> None:
        async with at_once:
            await agents.agent.begin(task)
            for number in range(1, STEPS + 1):
                await agents.agent.step(task, last=number == STEPS)

    await asyncio.gather(*map(run, tasks))
    await _prune(agents.path.pool)
    async with agents.path.channel("tools") as channel:
        stub = ToolServiceStub(channel)
        for task in tasks:
            await stub.Forget(tool_service_pb2.ForgetRequest(token=task.token), timeout=30.0)


async def _prune(pool: Pool) -> None:
    pruner, cleaner = TaskPruner(pool, KEPT_SECONDS), PrunedRowCleaner(pool, KEPT_SECONDS)
    while await pruner.prune_once():
        continue
    while await cleaner.clear_once():
        continue


async def _prepare(dsn: str, *, defaults: bool) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("alter system set autovacuum_naptime = '1s'")
        await connection.execute("select pg_reload_conf()")
        for table in await _tables(connection) if defaults else ():
            statement = "alter table {} reset (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold)"
            await connection.execute(sql.SQL(statement).format(table))


async def _tables(connection: psycopg.AsyncConnection[tuple[str, str]]) -> Sequence[sql.Identifier]:
    statement = (
        "select t.schemaname, t.relname from pg_stat_user_tables t join pg_class c on c.oid = t.relid"
        " where c.relkind = 'r'"
    )
    rows = await (await connection.execute(statement)).fetchall()
    return [sql.Identifier(schema, table) for schema, table in rows if schema in TABLES]


async def _keep(agents: NullAgents, count: int) -> None:
    """Makes ended tasks that no retention deletes."""
    (seed,) = await agents.maker.held(1)
    await agents.agent.begin(seed)
    for number in range(1, STEPS + 1):
        await agents.agent.step(seed, last=number == STEPS)
    ids = {"task_id": NEW_TASK, "root_task_id": NEW_TASK}
    changed: Mapping[str, Mapping[str, str]] = {
        "tasks": {**ids, "request_id": "'kept' || number", "labels": """'{"tenure.retention": "keep"}'::jsonb"""},
        "entries": ids,
        "budgets": ids,
    }
    async with await psycopg.AsyncConnection.connect(agents.path.dsn, autocommit=True) as connection:
        await connection.execute(f"set search_path to {LEDGER}".encode())
        for table, values in changed.items():
            column = "root_task_id" if table == "budgets" else "task_id"
            known = {name: value for name, value in values.items() if table == "tasks" or name == column}
            await multiply(connection, table, count, known, f"{column} = '{seed.task_id}'")
        await connection.execute("analyze")
    await _prune(agents.path.pool)


async def _sizes(dsn: str) -> dict[str, float]:
    """Returns the bytes of each table that retention bounds."""
    parts = "select coalesce(sum(pg_total_relation_size(relid)), 0) from pg_partition_tree(%(table)s::regclass)"
    statement = f"select greatest(pg_total_relation_size(%(table)s::regclass), ({parts}))"
    sizes: dict[str, float] = {}
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        for schema, tables in TABLES.items():
            for table in tables:
                row = await (await connection.execute(statement.encode(), {"table": f"{schema}.{table}"})).fetchone()
                assert row is not None, "a table has a size"
                sizes[f"{schema}.{table}"] = float(row[0])
    return sizes
