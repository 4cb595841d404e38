"""A watch of a tenant's changes gets each change once, those of a task in their order, from any replica."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import psycopg
import pytest

from services.checkpoint.queries import SCHEMA, SESSION_SETTINGS
from services.checkpoint.watch.change_feed import ChangeCursor, ChangePruner, adopt_feed
from tenure.domain.errors import InvalidRequest, OutOfRange, Unavailable
from tenure.runtime.store.postgres import PoolOptions, open_pool
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, MakeCheckpoint, words


async def follow(replica: Any, cursor: str = "", **wanted: Any) -> AsyncGenerator[Any]:
    """The stream's answers, for as long as the test reads."""
    request = pb.WatchChangesRequest(after_cursor=cursor, filter=task_pb2.TaskFilter(**wanted))
    async for answer in replica.stub.WatchChanges(request, timeout=2 * TIMEOUT_SECONDS):
        yield answer


async def now(replica: Any) -> Any:
    """A cursor after all that was written so far: transactions of other databases of the server may hold it back."""
    (newest,) = (await replica.query("select coalesce(max(xid::text::bigint), 0) from ledger.changes"))[0]
    async with asyncio.timeout(TIMEOUT_SECONDS), aclosing(follow(replica)) as answers:
        async for answer in answers:
            if ChangeCursor.decoded(answer.cursor).xid > newest:
                return answer.cursor
    raise AssertionError("the stream ended")


async def read_changes(replica: Any, cursor: Any, count: Any, **wanted: Any) -> Any:
    """The next `count` changes after a cursor, each with its own."""
    items = []
    async with asyncio.timeout(TIMEOUT_SECONDS), aclosing(follow(replica, cursor, **wanted)) as answers:
        async for answer in answers:
            items.extend(answer.items)
            if len(items) >= count:
                return items
    raise AssertionError("the stream ended")


def moves(items: Any, task_id: str = "") -> Any:
    return [
        task_pb2.TaskState.Name(one.change.state).removeprefix("TASK_STATE_")
        for one in items
        if one.change.task_id == (task_id or one.change.task_id)
    ]


async def written(replica: Any) -> Any:
    """All changes, as the database has them: (task, sequence), a task's in the order of its sequences."""
    return await replica.query(
        "select task_id::text, sequence from ledger.changes where tenant = %s order by task_id, sequence",
        replica.tenant,
    )


async def written_of_all_tenants(replica: Any) -> Any:
    """The same for all tenants, with the marks where feeds end."""
    return await replica.query("select task_id::text, sequence from ledger.changes order by task_id, sequence")


def keys(items: Any) -> Any:
    return [(one.change.task_id, one.change.sequence) for one in items]


async def test_each_transition_is_reported_once_and_steps_are_not(replica: Checkpoint) -> None:
    cursor = await now(replica)
    task = await replica.create(goal="find out")
    owner = await replica.claim(task.task_id)
    for _ in range(5):
        await owner.commit(words())
    await owner.end()
    items = await read_changes(replica, cursor, 3)
    assert moves(items) == ["QUEUED", "RUNNING", "SUCCEEDED"]
    assert [one.change.reason for one in items] == ["SUBMITTED", "OPENED", "FINAL_ANSWER"]
    assert [one.change.sequence for one in items] == [2, 3, 9]
    assert items[-1].change.task == await replica.get(task.task_id)
    assert items[-1].change.change_time == items[-1].change.task.end_time


async def test_a_task_younger_than_the_read_is_reported(replica: Checkpoint) -> None:
    """Its transaction began after the statement that reads, and committed before the snapshot of that statement."""
    cursor = await now(replica)
    task = await replica.create()
    later = "update ledger.tasks set created_at = now() + interval '1 minute' where task_id = %s"
    async with await psycopg.AsyncConnection.connect(replica.dsn, autocommit=True) as postgres:
        await postgres.execute("set session_replication_role = replica")  # no trigger refuses it
        await postgres.execute(later, (task.task_id,))
    assert keys(await read_changes(replica, cursor, 1)) == [(task.task_id, 2)]


async def test_a_request_to_end_is_a_change_of_a_running_task(replica: Checkpoint) -> None:
    cursor = await now(replica)
    owner = await replica.claim((await replica.create()).task_id)
    await replica.cancel(owner.task.task_id)
    await owner.end()
    items = await read_changes(replica, cursor, 4)
    assert moves(items) == ["QUEUED", "RUNNING", "RUNNING", "CANCELLED"]
    assert [one.change.cancel_requested for one in items] == [False, False, True, False]


async def test_several_moves_of_one_transaction_are_one_change(replica: Checkpoint) -> None:
    """A takeover: back into the queue and under the new claim at once. No other transaction saw it queued."""
    task = await replica.create()
    await replica.claim(task.task_id)
    cursor = await now(replica)
    await replica.claim(task.task_id, holder="worker-2")
    items = await read_changes(replica, cursor, 1)
    assert [(one.change.task.owner, one.change.task.claim_count) for one in items] == [("worker-2", 2)]


async def test_each_changes_cursor_resumes_at_any_replica(replica: Checkpoint, other_replica: Checkpoint) -> None:
    cursor = await now(replica)
    for _ in range(4):
        await replica.create()
    items = await read_changes(replica, cursor, 4)
    for number, item in enumerate(items[:-1]):
        assert keys(await read_changes(other_replica, item.cursor, 3 - number)) == keys(items[number + 1 :])


async def test_only_the_tenants_matching_tasks_are_reported(replica: Checkpoint) -> None:
    cursor = await now(replica)
    mine = await replica.create(labels={"team": "a", "area": "x"}, queue="q")
    await replica.create(labels={"team": "b"}, queue="q")
    await replica.cancel(mine.task_id)
    request = pb.CreateTaskRequest(request_id="r", spec=task_pb2.TaskSpec(goal="theirs", labels={"team": "a"}))
    async with replica.of_tenant("other") as other:
        await other.stub.CreateTask(request, timeout=TIMEOUT_SECONDS)
    last = await replica.create(labels={"team": "a"}, goal="refund the last order")
    assert moves(await read_changes(replica, cursor, 3, labels={"team": "a"}), mine.task_id) == ["QUEUED", "CANCELLED"]
    assert keys(await read_changes(replica, cursor, 2, labels={"team": "a"}, queue="q")) == [
        (mine.task_id, 2),
        (mine.task_id, 4),
    ]
    assert keys(await read_changes(replica, cursor, 1, states=["TASK_STATE_CANCELLED"])) == [(mine.task_id, 4)]
    assert keys(await read_changes(replica, cursor, 1, reasons=["CANCEL_REQUESTED"])) == [(mine.task_id, 4)]
    assert keys(await read_changes(replica, cursor, 1, task_ids=[last.task_id])) == [(last.task_id, 2)]
    assert keys(await read_changes(replica, cursor, 1, created_since=last.create_time)) == [(last.task_id, 2)]
    assert keys(await read_changes(replica, cursor, 2, ended_since=mine.create_time)) == [
        (mine.task_id, 2),
        (mine.task_id, 4),
    ]
    assert keys(await read_changes(replica, cursor, 1, root_task_id=last.task_id)) == [(last.task_id, 2)]
    assert keys(await read_changes(replica, cursor, 1, text="refund", max_nano_usd=1)) == [(last.task_id, 2)]


async def test_an_idle_stream_sends_its_cursor(replica: Checkpoint) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), aclosing(follow(replica, states=["TASK_STATE_FAILED"])) as answers:
        first = await anext(answers)
        await replica.create()
        later = await anext(answers)
    assert not later.items
    assert later.cursor != first.cursor


@asynccontextmanager
async def open_transaction(dsn: Any) -> AsyncGenerator[Any]:
    """One that has a number and does not end."""
    async with await psycopg.AsyncConnection.connect(dsn) as postgres:
        await postgres.execute("select pg_current_xact_id()")
        yield postgres


async def test_a_long_transaction_makes_the_feed_wait_and_skip_nothing(replica: Checkpoint) -> None:
    """What it will have written may stand before everything that was committed since it began."""
    cursor = await now(replica)
    async with open_transaction(replica.dsn) as slow:
        after = [(await replica.create()).task_id for _ in range(3)]
        waiting = asyncio.create_task(read_changes(replica, cursor, 4))
        await slow.execute(
            "insert into ledger.changes (xid, tenant, task_id, sequence, state, reason, cancel_requested, changed_at) "
            "select pg_current_xact_id(), tenant, task_id, 1, state, reason, false, now() from ledger.tasks "
            "where tenant = %s limit 1",
            (replica.tenant,),
        )
        done, _ = await asyncio.wait({waiting}, timeout=1.0)
        assert not done
        await slow.commit()
    items = await waiting
    assert items[0].change.sequence == 1
    assert [one.change.task_id for one in items[1:]] == after


async def test_a_tasks_changes_keep_their_order(replica: Checkpoint) -> None:
    """A transaction that has its number and waits for one task writes to another after a younger one did."""
    first, second, third = sorted([(await replica.create()).task_id for _ in range(3)])
    owners = {one: await replica.claim(one) for one in (first, second, third)}
    cursor = await now(replica)
    async with open_transaction(replica.dsn) as holding:
        await holding.execute("select from ledger.tasks where task_id = %s for update", (second,))
        lost = [
            pb.RequeueLostRequest.Lost(task_id=one, claim_id=owner.claims.claim_id, reason="LEASE_EXPIRED")
            for one, owner in owners.items()
        ]
        older = asyncio.ensure_future(
            replica.stub.RequeueLost(pb.RequeueLostRequest(lost=lost), timeout=TIMEOUT_SECONDS)
        )
        await waits_for_a_lock(replica)
        await replica.cancel(third)
        await holding.rollback()
    await older
    theirs = [one for one in await read_changes(replica, cursor, 4) if one.change.task_id == third]
    assert moves(theirs) == ["RUNNING", "CANCELLED"]
    xids = await replica.query("select distinct xid from ledger.changes where task_id = %s and sequence > 3", third)
    assert len(xids) == 1, "the older transaction's change was not put behind the younger one's"


async def waits_for_a_lock(replica: Any) -> None:
    waiting = "select pid from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not await replica.query(waiting):
            await asyncio.sleep(0.01)


async def test_a_tasks_number_from_another_cluster_holds_nothing_back(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    cursor = await now(replica)
    await replica.query("update ledger.tasks set change_xid = '4611686018427387904' where tenant = %s", replica.tenant)
    await owner.end()
    assert moves(await read_changes(replica, cursor, 1)) == ["SUCCEEDED"]


async def prune(replica: Any, kept_seconds: Any, times: int = 1) -> Any:
    options = PoolOptions(settings=SESSION_SETTINGS)
    async with open_pool(replica.dsn, schema=SCHEMA, options=options) as pool:
        pruner = ChangePruner(pool, kept_seconds)
        return [await pruner.prune_once() for _ in range(times)]


async def test_a_cursor_of_pruned_changes_is_refused(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    old = await now(replica)
    first = await change_after(replica, old, await replica.create())
    await replica.query("update ledger.changes set changed_at = now() - interval '1 hour'")
    assert await prune(replica, 60.0) == [1]
    with pytest.raises(OutOfRange) as refused:
        await read_changes(replica, old, 1)
    assert refused.value.reason == "CURSOR_EXPIRED"
    fresh = await replica.create()
    assert keys(await read_changes(replica, first.cursor, 1)) == [(fresh.task_id, 2)]


async def change_after(replica: Any, cursor: Any, task: Any) -> Any:
    (item,) = await read_changes(replica, cursor, 1)
    assert item.change.task_id == task.task_id
    return item


async def test_pruning_takes_bounded_batches_and_waits_for_no_commit(
    checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await checkpoint()
    monkeypatch.setattr("services.checkpoint.watch.change_feed.CHANGES_A_BATCH", 4)
    for _ in range(10):
        await replica.create()
    await replica.query("update ledger.changes set changed_at = now() - interval '1 hour' where position <= 9")
    async with open_transaction(replica.dsn) as busy:  # as a commit that takes its time
        await busy.execute("select from ledger.tasks for update")
        assert await prune(replica, 60.0, times=4) == [4, 4, 1, 0]
    assert len(await written(replica)) == 1


async def test_a_malformed_cursor_is_refused(replica: Checkpoint) -> None:
    for text in ("nonsense", "~", base64.urlsafe_b64encode(b"1 x 5").decode(), "a" * 201):
        with pytest.raises(InvalidRequest):
            await read_changes(replica, text, 1)


async def test_a_cursor_of_another_ledger_or_the_future_is_refused(replica: Checkpoint) -> None:
    cursor = ChangeCursor.decoded(await now(replica))
    for strange in (cursor._replace(feed_id="00000000-0000-0000-0000-000000000000"), cursor._replace(xid=2**62)):
        with pytest.raises(OutOfRange) as refused:
            await read_changes(replica, strange.encoded(), 1)
        assert refused.value.reason == "CURSOR_EXPIRED"


async def test_a_copied_ledger_begins_a_new_feed(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    await replica.create()
    cursor = await now(replica)
    await replica.query("update ledger.change_feed set cluster = cluster + 1")
    copied = await checkpoint(dsn=replica.dsn)
    with pytest.raises(OutOfRange):
        await read_changes(copied, cursor, 1)
    begun = await now(copied)
    task = await copied.create()
    assert keys(await read_changes(copied, begun, 1)) == [(task.task_id, 2)]


async def test_leftovers_of_a_former_feed_are_deleted_in_batches(
    checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await checkpoint()
    monkeypatch.setattr("services.checkpoint.watch.change_feed.LEFTOVERS_A_BATCH", 2)
    for _ in range(4):
        await replica.create()
    await replica.query("update ledger.change_feed set cluster = cluster + 1")
    async with open_pool(replica.dsn, schema=SCHEMA, options=PoolOptions(settings=SESSION_SETTINGS)) as pool:
        await adopt_feed(pool)
        assert len(await written_of_all_tenants(replica)) == 5  # with the mark of where the old feed ends
        begun = await now(replica)
        # The numbers of another cluster's transactions may be among those of the new changes.
        await replica.query(
            "update ledger.changes set changed_at = now() - interval '1 hour',"
            " xid = case when mod(position, 2) = 0 then xid else pg_current_xact_id() end where tenant <> ''"
        )
        task = await replica.create()
        assert keys(await read_changes(replica, begun, 1)) == [(task.task_id, 2)]
        pruner = ChangePruner(pool, 60.0)
        assert await pruner.prune_once() == 0
        assert len(await written_of_all_tenants(replica)) == 6
        walked = [await pruner.clear_leftovers_once() for _ in range(4)]
        assert walked == [2, 2, 2, 0]
        assert await written_of_all_tenants(replica) == [(task.task_id, 2)]
        assert keys(await read_changes(replica, begun, 1)) == [(task.task_id, 2)]
        await replica.query("update ledger.changes set changed_at = now() - interval '1 hour'")
        assert [await pruner.clear_leftovers_once(), await pruner.prune_once()] == [0, 1]


async def test_an_ordinary_role_may_read_the_cluster_id(replica: Checkpoint) -> None:
    """What the service asks at its start needs no privilege."""
    rows = await replica.query(
        "select has_function_privilege('pg_database_owner', 'pg_control_system()', 'execute'), cluster is not null "
        "from ledger.change_feed"
    )
    assert rows == [(True, True)]


async def test_a_stream_of_a_draining_replica_resumes_at_another(checkpoint: MakeCheckpoint) -> None:
    stopping = asyncio.Event()
    replica = await checkpoint(stopping=stopping)
    other = await checkpoint(dsn=replica.dsn)
    async with aclosing(follow(replica)) as answers:
        cursor = (await anext(answers)).cursor
        stopping.set()
        with pytest.raises(Unavailable) as refused:
            async for _ in answers:
                pass
    assert refused.value.reason == "DRAINING"
    task = await other.create()
    assert keys(await read_changes(other, cursor, 1)) == [(task.task_id, 2)]


async def test_a_slow_reader_delays_no_other_and_misses_nothing(replica: Checkpoint) -> None:
    """What it does not read is not kept for it: it is read from the table once it goes on."""
    async with aclosing(follow(replica)) as slow:
        cursor = (await anext(slow)).cursor
        for _ in range(40):
            await replica.create(goal="x" * 200_000)
        assert len(await read_changes(replica, cursor, 40)) == 40
        seen: list[Any] = []
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while len(seen) < 40:
                seen.extend((await anext(slow)).items)
    assert sorted(keys(seen)) == await written(replica)
