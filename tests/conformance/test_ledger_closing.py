"""A closing watch gets the end of its task from any replica, and nothing else; it costs no reads meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import psycopg
import pytest

from tenure.domain.errors import NotFound, OutOfRange, Unavailable
from tenure.runtime.observability import metrics
from tenure.v1 import checkpoint_service_pb2 as pb
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, MakeCheckpoint, words

NOBODYS = "00000000-0000-7000-8000-000000000000"
CLOSED = [pb.WatchEntriesResponse(closed=True)]


def closing(replica: Any, task_id: Any, after: int = 0) -> Any:
    request = pb.WatchEntriesRequest(task_id=task_id, after_sequence=after, closing_only=True)
    return replica.stub.WatchEntries(request, timeout=TIMEOUT_SECONDS)


async def read_all(stream: Any) -> Any:
    """All that a stream brings to its end."""
    answers = []
    while (answer := await stream.read()) is not grpc.aio.EOF:
        answers.append(answer)
    return answers


async def listening(replica: Any, task_id: Any) -> Any:
    """What a stream will bring that has begun to listen."""
    reads = metrics.read("tenure_watch_reads_total")
    answer = asyncio.ensure_future(read_all(closing(replica, task_id)))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while metrics.read("tenure_watch_reads_total") == reads:
            await asyncio.sleep(0.01)
    return answer


async def test_a_closing_watch_costs_two_reads(
    replica: Checkpoint,
) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    reads = metrics.read("tenure_watch_reads_total")
    answer = await listening(replica, owner.task.task_id)
    for _ in range(20):
        await owner.commit(words())
    assert not answer.done()
    await owner.end()
    assert await answer == CLOSED
    assert metrics.read("tenure_watch_reads_total") - reads == 2


async def test_an_ended_task_is_closed_at_once_after_any_sequence(replica: Checkpoint) -> None:
    task = await replica.cancel((await replica.create()).task_id)
    for after in (0, 1, task.sequence):
        assert await read_all(closing(replica, task.task_id, after)) == CLOSED


async def test_a_watch_ends_with_a_close_out_at_another_replica(replica: Checkpoint, other_replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    answer = await listening(other_replica, owner.task.task_id)
    await owner.commit(words())
    await owner.end()
    assert await answer == CLOSED


async def test_the_poll_finds_a_close_out_without_a_notification(replica: Checkpoint) -> None:
    """Written behind the service's back, as when a notification got lost."""
    task = await replica.create()
    answer = await listening(replica, task.task_id)
    async with await psycopg.AsyncConnection.connect(replica.dsn) as postgres:
        await postgres.execute(
            "insert into ledger.entries select task_id, 3, tenant, 0, '', 1, 0, 2, 'x', now(), '' from ledger.tasks "
            "where task_id = %s",
            (task.task_id,),
        )
        await postgres.execute(
            "update ledger.tasks set state = 'CANCELLED', ended_at = now(), queued_at = null, sequence = 3 "
            "where task_id = %s",
            (task.task_id,),
        )
    assert await answer == CLOSED


async def test_a_draining_replica_ends_a_closing_watch(checkpoint: MakeCheckpoint) -> None:
    stopping = asyncio.Event()
    replica = await checkpoint(stopping=stopping)
    answer = await listening(replica, (await replica.create()).task_id)
    stopping.set()
    with pytest.raises(Unavailable) as refused:
        await answer
    assert refused.value.reason == "DRAINING"


async def test_a_closing_watch_of_an_unknown_task_or_cursor_is_refused(replica: Checkpoint) -> None:
    task = await replica.create()
    with pytest.raises(OutOfRange) as refused:
        await closing(replica, task.task_id, after=3).read()
    assert refused.value.reason == "CURSOR_EXPIRED"
    with pytest.raises(NotFound):
        await closing(replica, NOBODYS).read()
