"""Stores that have grown for years: statements keep their plans, starts and sweeps stay bounded.

TENURE_BULK_TASKS says how many tasks' rows there are; by default as many as are made in seconds.
"""

from __future__ import annotations

import asyncio
import os
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pytest

from services.checkpoint.queries import SCHEMA as LEDGER
from services.checkpoint.queries import SESSION_SETTINGS
from services.checkpoint.queue import sweeps
from services.checkpoint.retention import clearing
from services.checkpoint.retention.clearing import PrunedRowCleaner
from services.checkpoint.retention.pruning import TASKS_A_BATCH, TaskPruner
from services.checkpoint.watch import change_feed
from services.checkpoint.watch.change_feed import CHANGES_A_BATCH, LEFTOVERS_A_BATCH, ChangePruner
from services.models.statements import MIGRATIONS as MODELS_MIGRATIONS
from services.models.statements import SCHEMA as MODELS
from services.models.statements import SESSION_SETTINGS as MODELS_SETTINGS
from services.tools.statements import MIGRATIONS as TOOLS_MIGRATIONS
from services.tools.statements import SCHEMA as TOOLS
from services.tools.statements import SESSION_SETTINGS as TOOLS_SETTINGS
from tenure.runtime.store.postgres import BoundedConnection, PoolOptions, configure_session, open_pool
from tenure.runtime.store.sql import Queries
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_service_pb2 as tasks_pb
from tests.conformance.test_ledger_retention import ended
from tests.support.bulk_rows import NEW_TASK, multiply, scans_in_plan, unkeyed_scans_in_plan
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, MakeCheckpoint, words
from tests.support.fix_postgres import FreshDatabase
from tests.support.fix_tools import Grants, StartTools
from tests.support.patience import PATIENCE_SECONDS

TASKS = int(os.environ.get("TENURE_BULK_TASKS", "20000"))
STATEMENT_SECONDS = 2.0
"""A fifth of what a statement may take. One that reads an index needs milliseconds."""
LOAD_SECONDS = 3600.0
ROOT = Path(__file__).parents[2]
BOUNDED = {
    "epochs": "one row",
    "change_feed": "one row",
    "stop_epoch": "one row",
    "stops": "at most 200",
    "stop_readers": "those of the last seconds",
    "tenants": "read whole once, at the start",
    "webhooks": "a bounded number for each tenant",
    "runners": "lives that are proven over are forgotten",
}
LEDGER_TABLES = ("budgets", "token_usage", "foreign_requests", "refusals")
TEXT = "'t' || number % 50"

pytestmark = pytest.mark.timeout(0 if "TENURE_BULK_TASKS" in os.environ else 600)


def statements(package: str) -> dict[str, bytes]:
    files = sorted((ROOT / package.replace(".", "/") / "sql").glob("*.sql"))
    files = [file for file in files if file.name != "rights.sql"]  # a template of migrate, not of a running service
    names = [module.name for module in walk_packages(import_module(package).__path__, f"{package}.")]
    modules = [import_module(name) for name in names if not name.endswith("__main__")]
    loaded = {value.source: value for module in modules for value in vars(module).values() if type(value) is Queries}
    assert set(loaded) == {f"{package}/sql/{file.name}" for file in files}
    return {f"{Path(source).name}: {name}": getattr(one, name) for source, one in loaded.items() for name in one}


async def connect(dsn: str, schema: str, settings: tuple[tuple[str, str], ...]) -> BoundedConnection:
    connection = await BoundedConnection.connect(dsn, autocommit=True)
    settings = (*settings, ("synchronous_commit", "off"))
    await configure_session(connection, PoolOptions(settings=settings, statement_timeout_seconds=LOAD_SECONDS), schema)
    return connection


@pytest.fixture
async def grown(checkpoint: Any) -> Any:
    """A ledger with the rows of TASKS tasks that ended months ago."""
    replica = await checkpoint()
    old = (await ended(replica)).task.task_id
    async with asyncio.timeout(TIMEOUT_SECONDS):  # refusals are written beside
        while not await replica.query("select 1 from ledger.refusals"):
            await asyncio.sleep(0.02)
    async with await connect(replica.dsn, LEDGER, ()) as connection:
        names = ("created_at", "updated_at", "ended_at")
        times = {name: f"old.{name} - interval '90 days' + make_interval(secs => number / 100)" for name in names}
        identity = {"task_id": NEW_TASK, "root_task_id": NEW_TASK, "tenant": TEXT}
        of_old = f"task_id = '{old}'"
        await multiply(connection, "entries", TASKS, identity, f"{of_old} and sequence <= 2")
        for table in LEDGER_TABLES:
            await multiply(connection, table, TASKS, identity, f"root_{of_old}" if table == "budgets" else of_old)
        await multiply(connection, "tasks", TASKS, {**identity, **times, "request_id": "'r' || number"}, of_old)
        changed = {"task_id": NEW_TASK, "tenant": TEXT, "changed_at": "old.changed_at - interval '90 days'"}
        await multiply(connection, "changes", TASKS, changed, of_old)
        await connection.execute("analyze")
    return replica


@pytest.fixture
async def grown_tools(tools_dsn: str) -> str:
    """The tools' side of as many tasks: a fence, a call and a refusal of each."""
    await grow_tools(tools_dsn, TASKS)
    return tools_dsn


async def grow_tools(tools_dsn: str, tasks: int) -> None:
    numbers = f"from generate_series(1, {tasks}) as number"
    async with await connect(tools_dsn, TOOLS, ()) as connection:
        await connection.execute("set session_replication_role = replica")
        await connection.execute(
            "insert into fences (task_id, tenant, epoch, claim_id, closed)"
            f" select {NEW_TASK}, 't', number, 'c', true {numbers}"
        )
        await connection.execute(
            "insert into calls (task_id, call_id, tool, effect_class, arguments_hash, arguments, state, call_attempt,"
            " epoch, claim_id, outcome)"
            f" select {NEW_TASK}, '1.0', 't', 'PURE', sha256('a'), 'a', 'FINISHED', 1, 1, 'c', 'o' {numbers}"
        )
        await connection.execute(
            "insert into refusals (task_id, tenant, method, presented_epoch, current_epoch, holder)"
            f" select {NEW_TASK}, 't', 'Execute', 1, 2, 'w' {numbers}"
        )
        await connection.execute("reset session_replication_role")
        await connection.execute("analyze")


async def check_plans(
    dsn: str, schema: str, settings: tuple[tuple[str, str], ...], package: str, least: int = 30
) -> None:
    """No statement of a service reads a table whole that grows."""
    async with await connect(dsn, schema, settings) as connection:
        scans = {name: await scans_in_plan(connection, one) for name, one in statements(package).items()}
    assert len(scans) > least, "the statements are not found any more"
    assert {name: tables - set(BOUNDED) for name, tables in scans.items() if tables - set(BOUNDED)} == {}


async def test_plans_made_on_empty_tables_scan_no_table(
    fresh_database: FreshDatabase, checkpoint: MakeCheckpoint
) -> None:
    """A connection keeps its plans for as long as it lives."""
    await check_plans((await checkpoint()).dsn, LEDGER, SESSION_SETTINGS, "services.checkpoint")
    await check_plans(await fresh_database(TOOLS_MIGRATIONS), TOOLS, TOOLS_SETTINGS, "services.tools")
    await check_plans(await fresh_database(MODELS_MIGRATIONS), MODELS, MODELS_SETTINGS, "services.models", 10)


@pytest.mark.nightly
async def test_the_model_runner_keeps_its_plans(fresh_database: FreshDatabase) -> None:
    dsn = await fresh_database(MODELS_MIGRATIONS)
    async with await connect(dsn, MODELS, ()) as connection:
        await connection.execute(
            "insert into generations (task_id, tenant, epoch, claim_id, step, attempt_number, begun_epoch, ended)"
            f" select {NEW_TASK}, 't', number, 'c', 1, 1, number, 'e' from generate_series(1, {TASKS}) as number"
        )
        await connection.execute("analyze")
    await check_plans(dsn, MODELS, MODELS_SETTINGS, "services.models", 10)


@pytest.mark.nightly
async def test_ledger_plans_start_and_sweeps_stay_bounded(
    grown: Any, checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clearing, "INTERVAL_SECONDS", PATIENCE_SECONDS)
    await check_plans(grown.dsn, LEDGER, SESSION_SETTINGS, "services.checkpoint")
    options = PoolOptions(settings=SESSION_SETTINGS, statement_timeout_seconds=STATEMENT_SECONDS)
    async with open_pool(grown.dsn, schema=LEDGER, options=options) as pool:
        await _sweep_once(pool)
        started = await checkpoint(dsn=grown.dsn)
        owner = await started.claim((await started.create()).task_id)
        await owner.commit(words())
        request = tasks_pb.ListTasksRequest(page_size=10)
        assert (await started.stub.ListTasks(request, timeout=TIMEOUT_SECONDS)).tasks
        watching = started.stub.WatchChanges(pb.WatchChangesRequest(), timeout=TIMEOUT_SECONDS)
        await anext(aiter(watching))
        watching.cancel()
        await owner.end()
        await _adopt(grown, pool)


async def _sweep_once(pool: Any) -> None:
    for sweep in (
        sweeps.queue_due_retries,
        sweeps.end_overdue,
        sweeps.end_queued_too_long,
        sweeps.start_due,
        sweeps.expire_waits,
        sweeps.deliver_signals,
    ):
        assert not await sweep(pool)
    assert 0 < await ChangePruner(pool, 3600.0).prune_once() <= CHANGES_A_BATCH
    assert await TaskPruner(pool, 3600.0).prune_once() == TASKS_A_BATCH
    assert await PrunedRowCleaner(pool, 3600.0).clear_once() > 0


async def _adopt(grown: Any, pool: Any) -> None:
    """The feed of another cluster goes in batches: a start deletes nothing of it."""
    await grown.query("update ledger.change_feed set cluster = cluster + 1")
    ((before,),) = await grown.query("select count(*) from ledger.changes")
    await change_feed.adopt_feed(pool)
    ((adopted,),) = await grown.query("select count(*) from ledger.changes")
    assert adopted == before + 1
    pruner, walked = ChangePruner(pool, 3600.0), LEFTOVERS_A_BATCH
    while walked == LEFTOVERS_A_BATCH:
        walked = await pruner.clear_leftovers_once()
    assert await grown.query("select count(*) from ledger.changes") == [(0,)]


@pytest.mark.nightly
async def test_the_tools_keep_their_plans_and_start_and_run_calls(
    grown_tools: str, tool_service: StartTools, grants: Grants
) -> None:
    await check_plans(grown_tools, TOOLS, TOOLS_SETTINGS, "services.tools")
    replica = await tool_service()
    assert (await replica.outcome(grants.claim(), "1.0", "append_record", file="a", line="x")).content


CALLS_AT_THE_FIRST_ANALYZE = 20
"""Postgres analyzes a table after 50 changes, and a call changes its record three times."""
WRITES_OF_CALLS = (
    "lock_fences",
    "raise_fences",
    "lock_calls",
    "accept_new_calls",
    "insert_calls",
    "change_calls",
    "start_calls",
    "finish_calls",
)


@pytest.mark.parametrize("calls", [0, CALLS_AT_THE_FIRST_ANALYZE, pytest.param(TASKS, marks=pytest.mark.nightly)])
async def test_writes_of_calls_find_their_rows_by_key(tools_dsn: str, calls: int) -> None:
    """A replica keeps a plan of few calls for a minute or more, in which it can record tens of thousands."""
    if calls:
        await grow_tools(tools_dsn, calls)
    async with await connect(tools_dsn, TOOLS, TOOLS_SETTINGS) as connection:
        statements_by_name = {name.rpartition(" ")[2]: one for name, one in statements("services.tools").items()}
        unkeyed = {name: await unkeyed_scans_in_plan(connection, statements_by_name[name]) for name in WRITES_OF_CALLS}
    assert {name: tables - set(BOUNDED) for name, tables in unkeyed.items() if tables - set(BOUNDED)} == {}
