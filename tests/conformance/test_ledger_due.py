"""What is due is found by one look, whichever sweep it is for, and wakes that sweep only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import psycopg
import pytest

from services.checkpoint.queries import MIGRATIONS, QUEUE, SCHEMA, SESSION_SETTINGS
from services.checkpoint.queue.due import DueWork
from tenure.runtime.store.postgres import PoolOptions, open_pool
from tests.support.fix_postgres import FreshDatabase
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.server

WAITING = "state = 'WAITING_EXTERNAL', queued_at = null, waiting_since = now(), wait = 'x'"
LATER = "wait_deadline_at = now() + interval '1 hour'"
WEBHOOK = (
    "insert into webhooks (webhook_id, tenant, name, request_hash, url, event_types, filter, secret, feed_id, xid,"
    " position) select gen_random_uuid(), 't', 'w', '', 'https://example.com', '{}', '', 'x', feed_id, '0', 0"
    " from change_feed"
)
SCHEDULE = (
    "insert into schedules (schedule_id, tenant, name, request_hash, spec, cron, time_zone, overlap_policy,"
    " catch_up_seconds, look_at) values (gen_random_uuid(), 't', 's', '', '', '', '', 'SKIP', 1, now())"
)
SIGNAL = (
    "insert into signals (tenant, correlation_id, request_id, hash, actor, payload) values ('t', 'c', 'r', '', 'a', '')"
)
DUE = [
    ("retries", "update tasks set state = 'RETRY_SCHEDULED', queued_at = null, next_retry_at = now()"),
    ("deadlines", "update tasks set deadline_at = now()"),
    ("queued", "update tasks set queued_until = now()"),
    ("starts", "update tasks set starts_at = now()"),
    ("waits", f"update tasks set {WAITING}, wait_deadline_at = now()"),
    ("escalations", f"update tasks set {WAITING}, {LATER}, wait_step_at = now()"),
    ("signals", f"update tasks set {WAITING}, {LATER}, wait_correlation = 'c'; {SIGNAL}"),
    ("schedules", SCHEDULE),
    ("families", "insert into family_news (parent_task_id, parent_moved) select task_id, true from tasks"),
    ("families", "insert into raised_budgets (root_task_id) select task_id from tasks"),
    ("families", "insert into passed_messages (parent_task_id, sequence) select task_id, 1 from tasks"),
    ("lines", "insert into due_source_lines (tenant, source_kind, source_id) values ('t', 'k', 'i')"),
    ("webhooks", WEBHOOK),
]


class Ledger(NamedTuple):
    by_hand: Any
    pool: Any


@pytest.fixture
async def ledger(fresh_database: FreshDatabase) -> AsyncIterator[Ledger]:
    """A ledger with one queued task, in which only the rules of rows hold."""
    dsn = await fresh_database(MIGRATIONS)
    async with (
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as by_hand,
        open_pool(dsn, schema=SCHEMA, options=PoolOptions(settings=SESSION_SETTINGS)) as pool,
    ):
        await by_hand.execute("set search_path to ledger")
        await by_hand.execute("alter table tasks disable trigger moves")
        await by_hand.execute(
            "insert into tasks (task_id, tenant, request_id, request_hash, root_task_id, queue, priority, loop, labels,"
            " max_steps, on_lease_lost, deadline_at) values (gen_random_uuid(), 't', 'r', '', gen_random_uuid(), 'q',"
            " 2, 'm', '{}', 1, 'RESUME', now() + interval '1 hour')"
        )
        yield Ledger(by_hand, pool)


@pytest.mark.parametrize(("name", "change"), DUE)
async def test_a_sweep_finds_due_work(ledger: Ledger, name: str, change: str) -> None:
    due = DueWork(ledger.pool, 3600.0, {})
    assert await due.look() == []
    await ledger.by_hand.execute(change.encode())
    assert await due.look() == [name]


def rows_read(node: Any) -> float:
    """How many rows a node of a plan and those below it read."""
    removed = sum(count for name, count in node.items() if name.startswith("Rows Removed"))
    own: float = (node["Actual Rows"] + removed) * node["Actual Loops"]
    return own + sum(rows_read(below) for below in node.get("Plans", ()))


async def test_a_look_costs_nothing_for_tasks_that_wait(ledger: Ledger) -> None:
    """It looks at no row of them, whatever the index."""
    await ledger.by_hand.execute("set session_replication_role = replica")  # no guard: tasks begin as they never do
    columns = "task_id, tenant, request_id, request_hash, root_task_id, queue, priority, loop, labels, max_steps"
    for state, deadline, correlation in (
        ("WAITING_EXTERNAL", "now() + interval '1 day'", "'c' || n"),
        ("WAITING_USER", "now() - interval '1 minute'", "''"),
    ):
        await ledger.by_hand.execute(
            f"insert into tasks ({columns}, on_lease_lost, deadline_at, state, queued_at, waiting_since, wait,"
            f" wait_deadline_at, wait_correlation) select gen_random_uuid(), 't', '{state}' || n, '',"
            f" gen_random_uuid(), 'q', 2, 'm', '{{}}', 1, 'RESUME', {deadline}, '{state}', null, now(), 'x',"
            f" now() + interval '1 day', {correlation} from generate_series(1, 5000) n".encode()
        )
    await ledger.by_hand.execute(
        "insert into signals (tenant, correlation_id, request_id, hash, actor, payload, received_at)"
        " select 't', 'c' || n || 'x', 'r', '', 'a', '', now() - interval '1 minute' from generate_series(1, 5000) n"
    )
    await ledger.by_hand.execute("analyze tasks, signals")  # without vacuum: an index scan is at its dearest
    cursor = await ledger.by_hand.execute(b"explain (analyze, timing off, format json) " + QUEUE.due)
    ((plan,),) = await cursor.fetchall()
    assert rows_read(plan[0]["Plan"]) < 50, plan


async def test_a_look_wakes_the_sweep_with_work_once(ledger: Ledger) -> None:
    shared = asyncio.Event()
    due = DueWork(ledger.pool, 3600.0, {"families": shared})
    woken = {name: asyncio.create_task(due.wait(name)) for name in ("queued", "retries", "families")}
    await ledger.by_hand.execute("update tasks set queued_until = now()")
    await due.look()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await woken["queued"]
    assert not woken["retries"].done()
    assert not woken["families"].done()
    shared.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await woken["families"]
    again = asyncio.create_task(due.wait("queued"))
    await asyncio.sleep(0)
    assert not again.done()
    await due.look()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await again
    woken["retries"].cancel()
