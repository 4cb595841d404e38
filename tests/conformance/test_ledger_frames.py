"""CommitStream: frames of whatever became ready, results by tag, and bounds on both sides."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import grpc
import psycopg
import pytest

from services.worker.ledger_client import LedgerClient
from tenure.domain.errors import InvalidRequest, StaleEpoch, Unavailable
from tenure.runtime.observability import metrics
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.validators.common import MAX_COMMIT_BYTES, MAX_FRAME_BYTES
from tenure.wire.common import refusal_to_domain
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, MakeCheckpoint, words
from tests.support.patience import PATIENCE_SECONDS


async def owners_of(replica: Checkpoint, count: int) -> Any:
    tasks = [await replica.create() for _ in range(count)]
    return [await replica.claim(task.task_id) for task in tasks]


def frame(*requests: Any, first_tag: int = 0) -> Any:
    return pb.CommitStreamRequest(
        commits=[pb.TaggedCommit(tag=first_tag + n, commit=request) for n, request in enumerate(requests)]
    )


async def results(call: Any, count: Any) -> Any:
    values: dict[Any, Any] = {}
    while len(values) < count:
        for result in (await call.read()).results:
            assert result.tag not in values
            values[result.tag] = result
    return values


async def test_every_commit_of_a_frame_is_answered_under_its_tag(replica: Checkpoint) -> None:
    owners = await owners_of(replica, 20)
    call = replica.stub.CommitStream(timeout=TIMEOUT_SECONDS)
    await call.write(frame(*[owner.request(words()) for owner in owners]))
    match = await results(call, 20)
    assert sorted(match) == list(range(20))
    assert all(result.response.sequence == 4 for result in match.values())
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_a_refusal_is_a_result_and_the_stream_continues(replica: Checkpoint) -> None:
    (owner,) = await owners_of(replica, 1)
    forged, _ = replica.sign(owner.task.task_id, owner.claims.epoch, str(uuid4()))
    call = replica.stub.CommitStream(timeout=TIMEOUT_SECONDS)
    requests = [
        owner.request(words(), token=forged),
        owner.request(words(), commit_id="no uuid"),
        owner.request(words()),
    ]
    await call.write(frame(*requests))
    result = await results(call, 3)
    assert isinstance(refusal_to_domain(result[0].refusal), StaleEpoch)
    assert isinstance(refusal_to_domain(result[1].refusal), InvalidRequest)
    assert result[2].response.sequence == 4
    call.cancel()


async def test_one_tag_is_in_flight_once(replica: Checkpoint) -> None:
    (one, two) = await owners_of(replica, 2)
    call = replica.stub.CommitStream(timeout=TIMEOUT_SECONDS)
    tagged = [pb.TaggedCommit(tag=7, commit=owner.request(words())) for owner in (one, two)]
    await call.write(pb.CommitStreamRequest(commits=tagged))
    await call.done_writing()
    outcomes = [result.WhichOneof("result") async for some in call for result in some.results]
    assert sorted(outcomes) == ["refusal", "response"]


async def test_a_frame_beyond_its_bounds_ends_the_stream(replica: Checkpoint) -> None:
    (owner,) = await owners_of(replica, 1)
    call = replica.stub.CommitStream(timeout=TIMEOUT_SECONDS)
    await call.write(frame(*[owner.request(words()) for _ in range(129)]))
    with pytest.raises(InvalidRequest):
        await call.read()


async def test_many_commits_become_few_transactions(replica: Checkpoint) -> None:
    owners = await owners_of(replica, 64)
    before = metrics.read("tenure_batches_total", batcher="commits")
    call = replica.stub.CommitStream(timeout=TIMEOUT_SECONDS)
    for number in range(1, 6):
        await call.write(frame(*[owner.request(words(), commit_number=number) for owner in owners]))
        assert len(await results(call, 64)) == 64
    assert metrics.read("tenure_batches_total", batcher="commits") - before <= 5 * 4
    call.cancel()


async def test_a_stalled_reader_delays_no_other(replica: Checkpoint) -> None:
    owners = await owners_of(replica, 40)
    deaf = replica.stub.CommitStream(timeout=PATIENCE_SECONDS)
    for owner in owners[:39]:
        await replica.say(owner.task.task_id, "x" * 250_000)
    await deaf.write(frame(*[owner.request(words()) for owner in owners[:39]]))
    quick = replica.stub.CommitStream(timeout=TIMEOUT_SECONDS)
    for number in range(1, 4):
        await quick.write(frame(owners[39].request(words(), commit_number=number)))
        assert (await results(quick, 1))[0].response.sequence == 3 + number
    match = await results(deaf, 39)
    assert all(len(result.response.foreign_entries) == 1 for result in match.values())
    deaf.cancel()
    quick.cancel()


async def test_a_stream_that_breaks_leaves_its_commits_to_be_repeated(replica: Checkpoint) -> None:
    owners = await owners_of(replica, 10)
    requests = [owner.request(words()) for owner in owners]
    call = replica.stub.CommitStream(timeout=TIMEOUT_SECONDS)
    await call.write(frame(*requests))
    call.cancel()
    for owner, request in zip(owners, requests, strict=True):
        assert (await owner.send(request)).sequence == 4


async def test_a_draining_server_answers_accepted_commits(checkpoint: MakeCheckpoint) -> None:
    stopping = asyncio.Event()
    replica = await checkpoint(stopping=stopping)
    (owner,) = await owners_of(replica, 1)
    call = replica.stub.CommitStream(timeout=TIMEOUT_SECONDS)
    await call.write(frame(owner.request(words())))
    assert (await results(call, 1))[0].response.sequence == 4
    stopping.set()
    with pytest.raises(Unavailable):
        await call.read()


async def test_an_oversized_frame_ends_the_stream_after_answers(
    replica: Checkpoint,
) -> None:
    owners = await owners_of(replica, 4)
    requests = [owner.request(words()) for owner in owners]
    call = replica.stub.CommitStream(timeout=PATIENCE_SECONDS)
    async with await psycopg.AsyncConnection.connect(replica.dsn) as postgres:  # it keeps the first frame in flight
        row = "select 1 from ledger.tasks where task_id = %s for update"
        await postgres.execute(row, (owners[0].task.task_id,))
        await call.write(frame(*requests[:3]))
        await call.write(frame(requests[3], owners[3].request(words("x" * MAX_FRAME_BYTES)), first_tag=3))
        first = await results(call, 3)
    with pytest.raises(InvalidRequest):
        await call.read()
    assert first[0].refusal.reason == "LOCK_TIMEOUT"
    call = replica.stub.CommitStream(timeout=PATIENCE_SECONDS)
    await call.write(frame(*requests))
    again = await results(call, 4)
    assert [again[tag].response.sequence for tag in range(4)] == [4] * 4
    assert [first[tag].response.sequence for tag in (1, 2)] == [4, 4]
    call.cancel()


@pytest.mark.parametrize("size", [MAX_COMMIT_BYTES, MAX_FRAME_BYTES, 4 * 1024 * 1024])
async def test_an_oversized_commit_is_refused_alone(replica: Checkpoint, size: Any) -> None:
    owners = await owners_of(replica, 6)
    requests = [owner.request(words()) for owner in owners]
    requests[3] = owners[3].request(words("x" * size))
    async with open_channel(replica.address, tenant=replica.tenant) as channel:
        client = LedgerClient(channel)
        running = asyncio.create_task(client.run())
        try:
            ends = await asyncio.gather(*map(client.commit, requests), return_exceptions=True)
            assert isinstance(ends.pop(3), InvalidRequest)
            assert [end.sequence if isinstance(end, pb.CommitResponse) else end for end in ends] == [4] * 5
            assert (await client.commit(owners[3].request(words()))).sequence == 4
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
