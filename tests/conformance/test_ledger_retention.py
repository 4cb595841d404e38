"""Ended tasks go when their time is over, with all that hangs on them but their bills; nothing else ever does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from services.checkpoint import queries
from services.checkpoint.queries import RETENTION, SCHEMA, SESSION_SETTINGS, fetch_all
from services.checkpoint.retention import clearing, pruning
from services.checkpoint.retention.clearing import PrunedRowCleaner
from services.checkpoint.retention.pruning import TaskPruner
from tenure.domain.errors import NotFound, StaleEpoch, Unavailable, WrongState
from tenure.runtime.request_context import as_tenant
from tenure.runtime.store.postgres import PoolOptions, open_pool, pool_connection
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, schedule_service_pb2, task_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.v1 import tenant_service_pb2 as tenants
from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from tenure.v1.tenant_service_pb2_grpc import TenantServiceStub
from tenure.wire.common import timestamp
from tests.support.fix_checkpoint import (
    TIMEOUT_SECONDS,
    MakeCheckpoint,
    MakeCheckpointProcess,
    answer,
    reserve,
    until_a_session_waits_for_a_lock,
    words,
)

KEPT = {"token_usage", "prunings", "changes"}
"""What may still name a task that was pruned: its bills, the note of it, and the feed, which has a time of its own."""
FAILED = task_pb2.TASK_STATE_FAILED


@pytest.fixture(autouse=True)
def only_what_a_test_clears(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replicas of this process clear when they start, and then leave it to the test."""
    monkeypatch.setattr(clearing, "INTERVAL_SECONDS", 3600.0)


@asynccontextmanager
async def pool_of(replica: Any) -> AsyncGenerator[Any]:
    async with open_pool(replica.dsn, schema=SCHEMA, options=PoolOptions(settings=SESSION_SETTINGS)) as pool:
        yield pool


async def prune(replica: Any, kept_seconds: float = 0.0, *, clear: bool = True) -> Any:
    """All that is due; how many tasks went."""
    async with pool_of(replica) as pool:
        pruner, cleaner, pruned = TaskPruner(pool, kept_seconds), PrunedRowCleaner(pool, kept_seconds), 0
        while some := await pruner.prune_once():
            pruned += some
        while clear and await cleaner.clear_once():
            pass
        return pruned


async def ended(replica: Any, state: Any = task_pb2.TASK_STATE_SUCCEEDED, **spec: Any) -> Any:
    """A task that did a step with a bill, got a message, refused a stale write, and ended."""
    task = await replica.create(**spec)
    stale = await replica.claim(task.task_id)
    owner = await replica.claim(task.task_id)
    await replica.say(task.task_id, "faster")
    with pytest.raises(StaleEpoch):
        await stale.commit(words())
    owner.known_sequence = (await replica.get(task.task_id)).sequence
    await owner.commit(reserve=reserve())
    await owner.commit(answer())
    await owner.end(state)
    return owner


async def as_operator(replica: Any, **fields: Any) -> Any:
    request = admin_pb.PruneTasksRequest(**{"reason": "asked to", "actor": "alice", **fields})
    return await replica.stub.PruneTasks(request, timeout=TIMEOUT_SECONDS)


async def is_there(replica: Any, task_id: Any) -> Any:
    return bool(await replica.query("select 1 from ledger.tasks where task_id = %s", task_id))


async def naming(replica: Any, task_id: Any) -> Any:
    """The tables that have something of a task."""
    tables = await replica.query(
        "select c.table_name, c.column_name from information_schema.columns c join information_schema.tables t"
        " using (table_schema, table_name) where c.table_schema = 'ledger' and t.table_type = 'BASE TABLE'"
        " and c.data_type = 'uuid' and c.column_name like '%%task_id'"
    )
    assert len(tables) > 20, "the check finds the tables of tasks no more"
    named = " union ".join(f"select '{table}' from ledger.{table} where {column} = %s" for table, column in tables)
    return {table for (table,) in await replica.query(named, *[task_id] * len(tables))}


async def test_an_ended_task_is_pruned_with_its_rows_except_bills(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    task_id = (await ended(replica)).task.task_id
    async with asyncio.timeout(TIMEOUT_SECONDS):  # refusals are written beside
        while "refusals" not in await naming(replica, task_id):
            await asyncio.sleep(0.02)
    assert len(await naming(replica, task_id)) >= 7
    assert await prune(replica) == 1
    assert await naming(replica, task_id) == KEPT
    bills = await replica.stub.ListBills(admin_pb.ListBillsRequest(task_id=task_id), timeout=TIMEOUT_SECONDS)
    assert [bill.usage.output_tokens for bill in bills.bills] == [10]
    billed = "select sum(output_tokens) from ledger.token_usage where settled_at > now() - interval '1 hour'"
    assert await replica.query(f"{billed} and tenant = 'default' and model = 'm'") == [(10,)]


async def test_usage_of_pruned_tasks_stays_in_the_tenants_usage(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    gone = [(await ended(replica)).task.task_id for _ in range(2)]
    left = (await ended(replica, labels={"tenure.retention": "keep"})).task.task_id
    by_tenant, by_root = tenants.USAGE_GROUPING_TENANT, tenants.USAGE_GROUPING_ROOT
    before = [await usage(replica, by_tenant), await usage(replica, by_root)]
    assert await prune(replica) == 2
    assert [await is_there(replica, task_id) for task_id in (*gone, left)] == [False, False, True]
    assert [await usage(replica, by_tenant), await usage(replica, by_root)] == before
    [[whole], roots] = before
    assert (whole.key, whole.calls, whole.usage.output_tokens) == ("default", 3, 30)
    assert {(one.key, one.calls, one.usage.output_tokens) for one in roots} == {(one, 1, 10) for one in (*gone, left)}


async def usage(replica: Any, grouping: Any) -> Any:
    """What was billed in the last hour."""
    request = tenants.GetTenantUsageRequest(
        group_by=grouping, begin_time=timestamp(datetime.now(UTC) - timedelta(hours=1))
    )
    return list((await TenantServiceStub(replica.channel).GetTenantUsage(request, timeout=TIMEOUT_SECONDS)).sums)


async def test_live_recent_and_kept_tasks_are_not_pruned(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    queued, running = await replica.create(), (await replica.claim((await replica.create()).task_id)).task
    kept = (await ended(replica, labels={"tenure.retention": "keep"})).task
    await ended(replica)
    assert await prune(replica, kept_seconds=3600.0) == 0
    assert await prune(replica) == 1
    for task in (queued, running, kept):
        assert (await replica.get(task.task_id)).sequence == len(await replica.entries(task.task_id))


async def test_requests_for_a_pruned_task_are_refused_as_pruned(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    task_id = (await ended(replica)).task.task_id
    async with pool_of(replica) as pool:
        assert await TaskPruner(pool, 0.0).prune_once() == 1
    for asking in (
        replica.get(task_id),
        replica.entries(task_id),
        replica.cancel(task_id),
        replica.say(task_id, "?"),
        replica.stub.ListRefusedWrites(pb.ListRefusedWritesRequest(task_id=task_id), timeout=TIMEOUT_SECONDS),
        replica.stub.ForkTask(
            tasks_pb.ForkTaskRequest(task_id=task_id, request_id="f", actor="alice", message="go on"),
            timeout=TIMEOUT_SECONDS,
        ),
    ):
        with pytest.raises(NotFound) as refusal:
            await asking
        assert refusal.value.reason == "TASK_PRUNED"
    with as_tenant("somebody-else"), pytest.raises(NotFound) as other:
        await replica.get(task_id)
    assert other.value.reason != "TASK_PRUNED"


async def test_a_stale_worker_is_refused_after_the_prune(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    owner = await ended(replica)
    await prune(replica)
    with pytest.raises(NotFound):
        await owner.commit(words())
    with pytest.raises(NotFound):
        await replica.open(owner.token, owner.claims)
    grant = pb.RegisterGrantsRequest.Grant(task_id=owner.task.task_id, epoch=(1 << 45) + 1, claim_id=str(uuid4()))
    answered = await replica.stub.RegisterGrants(pb.RegisterGrantsRequest(grants=[grant]), timeout=TIMEOUT_SECONDS)
    assert not answered.claim_ids
    assert await naming(replica, owner.task.task_id) == KEPT


async def test_a_request_id_is_known_as_long_as_its_task(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    first = await replica.create("r-1")
    await (await replica.claim(first.task_id)).end()
    assert (await replica.create("r-1")).task_id == first.task_id
    await prune(replica)
    again = await replica.create("r-1")
    assert (again.task_id != first.task_id, again.state) == (True, task_pb2.TASK_STATE_QUEUED)


async def test_a_fork_outlives_what_it_was_forked_from(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    source = (await ended(replica)).task.task_id
    request = tasks_pb.ForkTaskRequest(task_id=source, request_id="f", actor="alice", message="go on")
    fork = (await replica.stub.ForkTask(request, timeout=TIMEOUT_SECONDS)).task
    assert await prune(replica) == 1
    owner = await replica.claim(fork.task_id)
    forked_from = (await replica.get(fork.task_id)).forked_from.task_id
    assert (forked_from, len(owner.entries)) == (source, owner.task.sequence)
    forks = tasks_pb.ListTasksRequest(filter=task_pb2.TaskFilter(forked_from_task_id=source))
    assert [task.task_id for task in (await replica.stub.ListTasks(forks, timeout=TIMEOUT_SECONDS)).tasks] == [
        fork.task_id
    ]
    await owner.end()
    assert await prune(replica) == 1


async def test_a_task_tree_is_pruned_together(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    parent, child = (await ended(replica)).task.task_id, (await replica.create()).task_id
    other = (await ended(replica)).task.task_id
    await replica.query("update ledger.tasks set root_task_id = %s where task_id = %s", parent, child)
    await replica.query("update ledger.tasks set root_task_id = %s where task_id = %s", parent, other)
    assert await prune(replica) == 0
    with pytest.raises(WrongState):
        await as_operator(replica, task_id=parent)
    await replica.cancel(child)
    assert await prune(replica) == 3
    assert await replica.query("select 1 from ledger.budgets where root_task_id = %s", parent) == []


async def test_batches_are_bounded_and_wait_for_no_commit(
    checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await checkpoint()
    monkeypatch.setattr(pruning, "TASKS_A_BATCH", 4)
    monkeypatch.setattr(clearing, "ENTRIES_A_BATCH", 7)
    tasks = [(await ended(replica)).task.task_id for _ in range(6)]
    running = await replica.create()
    ((entries,),) = await replica.query("select count(*) from ledger.entries where task_id = any(%s::uuid[])", tasks)
    async with await psycopg.AsyncConnection.connect(replica.dsn) as busy, pool_of(replica) as pool:
        await busy.execute("select from ledger.tasks where task_id = %s for update", (running.task_id,))
        await busy.execute("select from ledger.budgets for update")
        pruner, cleaner = TaskPruner(pool, 0.0), PrunedRowCleaner(pool, 0.0)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            assert [await pruner.prune_once() for _ in range(3)] == [4, 2, 0]
            first = await cleaner.clear_once()
        assert first == 7
        await busy.rollback()
        cleared = [first]
        while some := await cleaner.clear_once():
            cleared.append(some)
    assert (max(cleared), sum(cleared)) == (7, entries)
    assert await replica.query("select 1 from ledger.prunings where cleared_at is null") == []


async def test_a_commit_does_not_wait_for_an_open_prune(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    old, owner = await ended(replica), await replica.claim((await replica.create()).task_id)
    async with await psycopg.AsyncConnection.connect(replica.dsn) as pruner:
        await pruner.execute("set search_path to ledger")
        await pruner.execute(RETENTION.due_by_age.decode(), {"kept_seconds": 0.0, "limit": 10})
        gone = {"task_ids": [old.task.task_id], "actor": "a", "reason": "r"}
        await pruner.execute(RETENTION.prune.decode(), gone)
        await pruner.execute(RETENTION.clear_entries.decode(), {"task_id": old.task.task_id, "entries_left": 0})
        for _ in range(5):
            await owner.commit(words())
        await replica.create()


async def test_a_task_requeued_during_pruning_is_pruned_or_whole(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    owners = [await ended(replica, FAILED) for _ in range(6)]
    fact = ledger_pb2.OperatorRequest(reason="again", requeue=ledger_pb2.OperatorRequest.Requeue())

    async def requeue(task_id: Any) -> Any:
        request = pb.AppendForeignRequest(task_id=task_id, request_id="q", actor="alice", operator_request=fact)
        try:
            return (await replica.stub.AppendForeign(request, timeout=TIMEOUT_SECONDS)).task
        except NotFound:
            return None

    task_ids = [owner.task.task_id for owner in owners]
    *requeued, pruned, pruned_too = await asyncio.gather(
        *(requeue(task_id) for task_id in task_ids), prune(replica), prune(replica)
    )
    assert pruned + pruned_too == requeued.count(None)
    for task_id, task in zip(task_ids, requeued, strict=True):
        if task is None:
            assert await naming(replica, task_id) == KEPT
        else:
            assert len(await replica.entries(task_id)) == (await replica.get(task_id)).sequence == task.sequence


async def lag_of_tasks(replica: Any) -> Any:
    async with pool_of(replica) as pool, pool_connection(pool) as connection:
        ((tasks, _, _),) = await fetch_all(connection, RETENTION.lags, {"kept_seconds": 0.0})
    return tasks


async def test_a_tree_is_late_from_the_end_of_its_last_task(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    child, root = (await ended(replica)).task.task_id, await replica.claim((await replica.create()).task_id)
    await replica.query("update ledger.tasks set root_task_id = %s where task_id = %s", root.task.task_id, child)
    assert await lag_of_tasks(replica) is None, "its root goes on"
    await root.end()
    lag = await lag_of_tasks(replica)
    ((age,),) = await replica.query(
        "select extract(epoch from clock_timestamp() - ended_at)::float8 from ledger.tasks where task_id = %s",
        root.task.task_id,
    )
    assert 0 < lag < age, "from the end of the last task of the tree on"


async def test_a_tree_with_a_kept_task_is_not_late(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    root = (await ended(replica, labels={"tenure.retention": "keep"})).task.task_id
    other = (await ended(replica)).task.task_id
    await replica.query("update ledger.tasks set root_task_id = %s where task_id = %s", root, other)
    assert await prune(replica) == 0
    assert await lag_of_tasks(replica) is None


async def family(replica: Any) -> Any:
    """A root that succeeded, and then another task of its tree that failed: their ids."""
    root, child = (await ended(replica)).task.task_id, (await ended(replica, FAILED)).task.task_id
    await replica.query("update ledger.tasks set root_task_id = %s where task_id = %s", root, child)
    return root, child


async def requeue(replica: Any, task_id: Any) -> Any:
    fact = ledger_pb2.OperatorRequest(reason="again", requeue=ledger_pb2.OperatorRequest.Requeue())
    request = pb.AppendForeignRequest(task_id=task_id, request_id="q", actor="alice", operator_request=fact)
    return await replica.stub.AppendForeign(request, timeout=TIMEOUT_SECONDS)


async def test_a_root_stays_when_its_sub_agent_is_requeued(
    checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await checkpoint()
    root, child = await family(replica)
    read = queries.fetch_all

    async def read_and_requeue(connection: Any, statement: Any, parameters: Any) -> Any:
        rows = await read(connection, statement, parameters)
        if statement == RETENTION.due_by_age and rows:
            monkeypatch.setattr(pruning, "fetch_all", read)
            assert [row[0] for row in rows] == [root]
            await requeue(replica, child)
        return rows

    monkeypatch.setattr(pruning, "TASKS_A_BATCH", 1)
    monkeypatch.setattr(pruning, "fetch_all", read_and_requeue)
    assert await prune(replica) == 0
    assert await is_there(replica, root)


async def test_a_sub_agent_is_not_requeued_during_its_roots_pruning(
    checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await checkpoint()
    root, child = await family(replica)
    begun = asyncio.Event()

    async def requeue_meanwhile(name: Any) -> None:
        if name == "checkpoint.before_prune" and not begun.is_set():  # the child's own pruning has nothing to wait for
            begun.set()
            await until_a_session_waits_for_a_lock(replica)

    monkeypatch.setattr(pruning, "failpoint", requeue_meanwhile)
    monkeypatch.setattr(pruning, "TASKS_A_BATCH", 1)
    async with pool_of(replica) as pool, asyncio.timeout(TIMEOUT_SECONDS):
        pruning_root = asyncio.create_task(TaskPruner(pool, 0.0).prune_once())
        await begun.wait()
        with pytest.raises(WrongState) as refused:
            await requeue(replica, child)
        assert await pruning_root == 1
    assert refused.value.reason == "FAMILY_PRUNED"
    assert not await is_there(replica, root)
    assert await is_there(replica, child)
    assert await prune(replica) == 1


async def test_concurrent_prunes_share_the_work(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    for _ in range(8):
        await ended(replica)
    assert sum(await asyncio.gather(*(prune(replica) for _ in range(3)))) == 8
    assert await replica.query(
        "select count(*), count(cleared_at) from ledger.prunings where tenant = %s", replica.tenant
    ) == [(8, 8)]


async def test_another_replica_clears_a_dead_replicas_leftovers(
    checkpoint_process: MakeCheckpointProcess, checkpoint: MakeCheckpoint
) -> None:
    doomed = await checkpoint_process(failpoints="checkpoint.after_clear=1#kill9")
    owner = await ended(doomed.replica)
    with suppress(Unavailable):  # it may die before it answers
        await as_operator(doomed.replica, task_id=owner.task.task_id)
    await doomed.wait_until_dead()
    replica = await checkpoint(dsn=doomed.replica.dsn)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await naming(replica, owner.task.task_id) != KEPT:
            await asyncio.sleep(0.05)


async def test_the_retention_search_reads_an_index_of_ended_tasks(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    await replica.create()
    plan = await explained(replica, RETENTION.due_by_age, kept_seconds=0.0, limit=100)
    assert {node["Index Name"] for node in nodes(plan) if "Index Name" in node} == {"tasks_ended", "tasks_root"}
    assert not [node for node in nodes(plan) if node["Node Type"] == "Seq Scan"]
    plan = await explained(replica, RETENTION.clear_entries, task_id=str(uuid4()), entries_left=0)
    assert len([node for node in nodes(plan) if "Index Name" in node]) == 1, "one partition is looked at"


async def explained(replica: Any, statement: Any, **parameters: Any) -> Any:
    async with await psycopg.AsyncConnection.connect(replica.dsn, autocommit=True) as postgres:
        await postgres.execute("set search_path to ledger; set enable_seqscan to off")
        cursor = await postgres.execute(b"explain (format json, analyze) " + statement, parameters)
        ((rows,),) = await cursor.fetchall()
        return (json.loads(rows) if isinstance(rows, str) else rows)[0]["Plan"]


def nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


async def test_manual_sql_cannot_delete_a_live_task_or_an_entry(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    owner, living = await ended(replica), await replica.create()
    for statement, task_id in (
        ("delete from ledger.tasks where task_id = %s", living.task_id),
        ("delete from ledger.entries where task_id = %s", owner.task.task_id),
        ("delete from ledger.entries where task_id = %s", living.task_id),
    ):
        with pytest.raises(psycopg.errors.CheckViolation):
            await replica.query(f"set search_path to ledger; {statement.replace('%s', repr(task_id))}")


async def test_an_operator_previews_a_pruning_and_gives_a_reason(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    first, second = [(await ended(replica)).task.task_id for _ in range(2)]
    kept, living = (await ended(replica, labels={"tenure.retention": "keep"})).task.task_id, await replica.create()
    in_an_hour = timestamp(datetime.now(UTC) + timedelta(hours=1))
    response = await as_operator(replica, ended_before=in_an_hour, dry_run=True)
    assert (set(response.task_ids), response.more, await is_there(replica, first)) == ({first, second}, False, True)
    response = await as_operator(replica, ended_before=in_an_hour, limit=1)
    assert (list(response.task_ids), response.more) == ([first], True)
    with pytest.raises(NotFound):
        await replica.get(first)
    assert (await as_operator(replica, task_id=first)).task_ids == [first], "a repeat is answered as the first time"
    with pytest.raises(WrongState):
        await as_operator(replica, task_id=living.task_id)
    with as_tenant("somebody-else"), pytest.raises(NotFound) as other:
        await as_operator(replica, task_id=second)
    assert other.value.reason != "TASK_PRUNED"
    assert (await as_operator(replica, task_id=kept)).task_ids == [kept]
    assert not await is_there(replica, kept)


async def test_an_operator_sees_tasks_behind_a_locked_tree(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    root, child = await family(replica)
    alone, last = [(await ended(replica)).task.task_id for _ in range(2)]
    in_an_hour = timestamp(datetime.now(UTC) + timedelta(hours=1))
    async with await psycopg.AsyncConnection.connect(replica.dsn) as busy:
        await busy.execute("select from ledger.budgets where root_task_id = %s for update", (root,))
        answered = await as_operator(replica, ended_before=in_an_hour, limit=3)
        assert (list(answered.task_ids), answered.more) == ([alone], True)
        answered = await as_operator(replica, ended_before=in_an_hour, limit=3)
        assert (list(answered.task_ids), answered.more) == ([last], True)
        answered = await as_operator(replica, ended_before=in_an_hour, limit=2)
        assert (list(answered.task_ids), answered.more) == ([], False), "a repeat at once would find the same"
    answered = await as_operator(replica, ended_before=in_an_hour, limit=3)
    assert (set(answered.task_ids), answered.more) == ({root, child}, False)


async def test_each_pruning_is_assigned_to_one_coordinator(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    owner, never_granted = await ended(replica), await replica.create()
    await replica.cancel(never_granted.task_id)
    assert await prune(replica) == 2

    async def offered() -> Any:
        answered = await replica.stub.ListPrunings(pb.ListPruningsRequest(limit=100), timeout=TIMEOUT_SECONDS)
        return [(one.task_id, one.tenant, one.epoch, one.claim_id) for one in answered.prunings]

    claims = owner.claims
    assert await offered() == [(owner.task.task_id, "default", claims.epoch, claims.claim_id)]
    assert await offered() == []
    await replica.query("update ledger.prunings set offered_until = now()")
    assert len(await offered()) == 1, "a coordinator that died leaves it to another"
    done = pb.NoteForgottenRequest(task_ids=[owner.task.task_id])
    for _ in range(2):
        await replica.stub.NoteForgotten(done, timeout=TIMEOUT_SECONDS)
    await replica.query("update ledger.prunings set offered_until = null")
    assert await offered() == []


async def test_a_schedule_continues_after_a_run_is_pruned(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    schedules = ScheduleServiceStub(replica.channel)
    yearly = schedule_service_pb2.CreateScheduleRequest(
        name="yearly", spec=task_pb2.TaskSpec(goal="x"), cron="0 7 1 1 *"
    )
    await schedules.CreateSchedule(yearly, timeout=TIMEOUT_SECONDS)
    trigger = schedule_service_pb2.TriggerScheduleRequest(schedule="yearly", request_id="one")
    task_id = (await schedules.TriggerSchedule(trigger, timeout=TIMEOUT_SECONDS)).task.task_id
    await replica.cancel(task_id)
    assert await prune(replica) == 1
    request = schedule_service_pb2.GetScheduleRequest(schedule="yearly")
    (run,) = (await schedules.GetSchedule(request, timeout=TIMEOUT_SECONDS)).runs
    assert (run.task_id, run.task_state) == (task_id, task_pb2.TASK_STATE_UNSPECIFIED)
    again = schedule_service_pb2.TriggerScheduleRequest(schedule="yearly", request_id="two")
    assert (await schedules.TriggerSchedule(again, timeout=TIMEOUT_SECONDS)).task.task_id != task_id


async def test_a_repeated_event_of_a_pruned_task_is_still_a_repeat(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    task_id = (await ended(replica)).task.task_id
    event = pb.SendSignalRequest(correlation_id="paid", request_id="e-1", actor="alice", payload_json="{}")
    await replica.stub.SendSignal(event, timeout=TIMEOUT_SECONDS)
    await replica.query("update ledger.signals set taken_by = %s", task_id)
    await prune(replica)
    assert not (await replica.stub.SendSignal(event, timeout=TIMEOUT_SECONDS)).HasField("task")


async def test_the_change_feed_continues_past_pruned_tasks(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    async with aclosing(follow(replica)) as answers:
        cursor = (await anext(answers)).cursor
    gone = (await ended(replica)).task.task_id
    await prune(replica)
    stays = await replica.create()
    seen = []
    async with aclosing(follow(replica, cursor)) as answers:
        async for answer in answers:
            seen += [item.change.task_id for item in answer.items]
            if stays.task_id in seen:
                break
    assert gone not in seen


async def follow(replica: Any, cursor: str = "") -> AsyncGenerator[Any]:
    """The feed's answers after a cursor."""
    async for some in replica.stub.WatchChanges(pb.WatchChangesRequest(after_cursor=cursor), timeout=TIMEOUT_SECONDS):
        yield some
