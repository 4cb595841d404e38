"""Watchers get every entry once and in order, from whatever replica, through whatever breaks."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from devstack.postgres_process import PostgresProcess
from services.checkpoint.queries import MIGRATIONS
from tenure.domain.errors import NotFound, OutOfRange, Unavailable
from tenure.runtime.observability import metrics
from tenure.runtime.store.sql import migrate
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2
from tests.support.fix_checkpoint import (
    TIMEOUT_SECONDS,
    Checkpoint,
    MakeCheckpoint,
    MakeCheckpointProcess,
    kinds,
    words,
)
from tests.support.patience import PATIENCE_SECONDS


async def watch(replica: Any, task_id: Any, after: int = 0) -> Any:
    """Every entry to the end of the task, going on after the last one seen when the stream breaks."""
    seen: list[Any] = []
    while True:
        request = pb.WatchEntriesRequest(task_id=task_id, after_sequence=seen[-1].sequence if seen else after)
        try:
            async for some in replica.stub.WatchEntries(request, timeout=PATIENCE_SECONDS):
                seen.extend(some.entries)
                if some.closed:
                    return seen
        except Unavailable:
            await asyncio.sleep(0.05)


async def test_old_entries_come_first_then_new_ones_until_the_end(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    watching = asyncio.create_task(watch(replica, owner.task.task_id))
    for _ in range(5):
        await owner.commit(words())
    await owner.end()
    assert [one.sequence for one in await watching] == list(range(1, 10))


async def test_a_watch_of_an_ended_task_sends_its_entries_and_closes(replica: Checkpoint) -> None:
    task = await replica.cancel((await replica.create()).task_id)
    assert kinds(await watch(replica, task.task_id))[-1] == "QUEUED>CANCELLED"
    assert await watch(replica, task.task_id, after=task.sequence) == []


async def test_a_cursor_beyond_the_newest_entry_is_refused(replica: Checkpoint) -> None:
    task = await replica.create()
    with pytest.raises(OutOfRange) as refused:
        await replica.stub.WatchEntries(pb.WatchEntriesRequest(task_id=task.task_id, after_sequence=3)).read()
    assert refused.value.reason == "CURSOR_EXPIRED"
    with pytest.raises(NotFound):
        await replica.stub.WatchEntries(pb.WatchEntriesRequest(task_id="00000000-0000-7000-8000-000000000000")).read()


@pytest.mark.faults
async def test_watchers_of_two_replicas_survive_a_postgres_restart(
    checkpoint: MakeCheckpoint, own_postgres: PostgresProcess
) -> None:
    dsn = own_postgres.dsn()
    await migrate(dsn, MIGRATIONS)
    replica = await checkpoint(dsn=dsn)
    other = await checkpoint(dsn=dsn)
    owner = await replica.claim((await replica.create()).task_id)
    watchers = [asyncio.create_task(watch(side, owner.task.task_id)) for side in (replica, other) for _ in range(5)]
    for number in range(30):
        if number in {10, 20}:
            await asyncio.to_thread(own_postgres.kill)
            await asyncio.to_thread(own_postgres.start)
        await commit_until_durable(owner, owner.request(words(f"{number}")))
    await commit_until_durable(
        owner, owner.request(transition=pb.Transition(to_state=task_pb2.TASK_STATE_SUCCEEDED, reason="FINAL_ANSWER"))
    )
    for seen in await asyncio.gather(*watchers):
        assert [one.sequence for one in seen] == list(range(1, 3 + 30 + 2))


async def commit_until_durable(owner: Any, request: Any) -> Any:
    """The same commit again and again: a repeat is answered."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                return await owner.send(request)
            except Unavailable:
                await asyncio.sleep(0.05)


async def test_a_watcher_that_waits_holds_no_connection(checkpoint_process: MakeCheckpointProcess) -> None:
    """Forty watchers wait, the pool has two connections, and both are free for others."""
    replica = (await checkpoint_process(environment={"TENURE_CHECKPOINT_POOL_SIZE": "2"})).replica
    tasks = [await replica.create() for _ in range(40)]
    calls = [
        replica.stub.WatchEntries(pb.WatchEntriesRequest(task_id=task.task_id), timeout=TIMEOUT_SECONDS)
        for task in tasks
    ]
    await asyncio.gather(*[call.read() for call in calls])
    await asyncio.gather(*[replica.cancel(task.task_id) for task in tasks[:4]])
    for call in calls[:4]:
        assert kinds((await call.read()).entries)[-1] == "QUEUED>CANCELLED"
    for call in calls:
        call.cancel()


async def test_a_slow_reader_delays_no_other_and_misses_nothing(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    slow = replica.stub.WatchEntries(pb.WatchEntriesRequest(task_id=owner.task.task_id), timeout=PATIENCE_SECONDS)
    first = await slow.read()
    for _ in range(30):
        await owner.commit(words("x" * 300_000))
    await owner.end()
    assert len(await watch(replica, owner.task.task_id)) == 34
    seen = list(first.entries)
    while (some := await slow.read()) is not grpc.aio.EOF:
        seen.extend(some.entries)
    assert [one.sequence for one in seen] == list(range(1, 35))


async def test_a_current_watcher_gets_new_entries_without_a_read(
    replica: Checkpoint,
) -> None:
    task = await replica.create()
    call = replica.stub.WatchEntries(pb.WatchEntriesRequest(task_id=task.task_id), timeout=TIMEOUT_SECONDS)
    seen = list((await call.read()).entries)
    reads = metrics.read("tenure_watch_reads_total")
    owner = await replica.claim(task.task_id)
    for number in range(30):
        await owner.commit(words(f"{number}"), words("again"))
        while seen[-1].sequence < owner.known_sequence:
            seen.extend((await call.read()).entries)
    await replica.requeue(owner)
    await replica.say(task.task_id, "hello")
    await replica.cancel(task.task_id)
    while (some := await call.read()) is not grpc.aio.EOF:
        seen.extend(some.entries)
        closed = some.closed
    assert closed
    assert seen == await replica.entries(task.task_id)
    # The poll may look between a commit and its announcement: hardly ever, and never for each.
    assert metrics.read("tenure_watch_reads_total") - reads <= 3


async def test_watchers_of_two_committing_replicas_have_no_gap(
    replica: Checkpoint,
    other_replica: Checkpoint,
) -> None:
    task = await replica.create()
    watchers = [asyncio.create_task(watch(side, task.task_id)) for side in (replica, other_replica) for _ in range(3)]
    owner = await replica.claim(task.task_id)
    for number in range(20):
        await asyncio.gather(
            replica.say(task.task_id, f"{number}"), other_replica.say(task.task_id, f"{number}"), owner.commit(words())
        )
    await owner.commit(words())  # it has read all that was said
    await owner.end()
    whole = await replica.entries(task.task_id)
    for seen in await asyncio.gather(*watchers):
        assert seen == whole


async def test_the_poll_finds_entries_without_a_notification(replica: Checkpoint) -> None:
    """An entry written behind the service's back, as when a notification got lost."""
    task = await replica.create()
    call = replica.stub.WatchEntries(pb.WatchEntriesRequest(task_id=task.task_id), timeout=TIMEOUT_SECONDS)
    await call.read()
    await replica.query(
        "insert into ledger.entries select task_id, 3, tenant, 0, '', 1, 0, kind, 'x', now(), body from ledger.entries "
        "where sequence = 2 and task_id = %s",
        task.task_id,
    )
    await replica.query("update ledger.tasks set sequence = 3 where task_id = %s", task.task_id)
    assert [one.sequence for one in (await call.read()).entries] == [3]
    call.cancel()


async def test_watches_of_a_draining_replica_resume_at_another(checkpoint: MakeCheckpoint) -> None:
    stopping = asyncio.Event()
    replica = await checkpoint(stopping=stopping)
    task = await replica.create()
    call = replica.stub.WatchEntries(pb.WatchEntriesRequest(task_id=task.task_id), timeout=TIMEOUT_SECONDS)
    hints = replica.stub.WatchQueue(pb.WatchQueueRequest(), timeout=TIMEOUT_SECONDS)
    await call.read()
    await hints.read()
    stopping.set()
    for stream in (call, hints):
        with pytest.raises(Unavailable) as refused:
            await stream.read()
        assert refused.value.reason == "DRAINING"
