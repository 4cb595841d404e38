"""Group commit: a batch is one transaction, and still no commit suffers from its neighbours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from services.checkpoint.commit import committer
from services.checkpoint.commit.committer import commit_batcher
from services.checkpoint.commit.prepared import prepare
from tenure.domain.errors import InvalidRequest, LimitReached, Unavailable
from tenure.domain.fencing import Audience
from tenure.runtime.security.signing import Verifier
from tenure.runtime.store.batching import BatchLimits
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.wire.token import TokenChecker
from tests.support.fix_checkpoint import (
    TIMEOUT_SECONDS,
    Checkpoint,
    MakeCheckpoint,
    until_a_session_waits_for_a_lock,
    words,
)
from tests.support.patience import PATIENCE_SECONDS


class HeldCommitter:
    """Not a ledger: it shows what the batcher hands on, and when."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.release = asyncio.Semaphore(0)

    async def write(self, commits: Any) -> Any:
        self.batches.append(commits)
        await self.release.acquire()
        return [pb.CommitResponse(sequence=len(self.batches)) for _ in commits]


@pytest_asyncio.fixture(loop_scope="module")
async def held() -> AsyncIterator[Any]:
    """A committer that writes a batch at each release, and its batcher."""
    committer = HeldCommitter()
    batcher = commit_batcher(committer.write, BatchLimits(max_items=4, max_waiting=6))
    running = asyncio.create_task(batcher.run())
    yield committer, batcher
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def owners_of(replica: Checkpoint, count: int) -> Any:
    tasks = [await replica.create() for _ in range(count)]
    return [await replica.claim(task.task_id) for task in tasks]


def prepared(owner: Any, *entries: Any) -> Any:
    tokens = TokenChecker(Verifier(owner.replica.keys / "verifying.json"), Audience.CHECKPOINT)
    return prepare(owner.request(*(entries or [words()])), tokens, validated=True)


async def test_two_commits_of_one_task_are_never_in_one_batch(replica: Checkpoint, held: Any) -> None:
    committer, batcher = held
    (one, two) = await owners_of(replica, 2)
    answers = [asyncio.create_task(batcher.submit(prepared(owner))) for owner in (one, one, two, one)]
    for _ in range(3):
        committer.release.release()
    await asyncio.gather(*answers)
    tasks = [[commit.task_id for commit in batch] for batch in committer.batches]
    assert tasks == [[one.task.task_id, two.task.task_id], [one.task.task_id], [one.task.task_id]]


async def test_a_cancelled_caller_does_not_cancel_its_batch(replica: Checkpoint, held: Any) -> None:
    committer, batcher = held
    (one, two) = await owners_of(replica, 2)
    gone, stays = [asyncio.create_task(batcher.submit(prepared(owner))) for owner in (one, two)]
    while not committer.batches:
        await asyncio.sleep(0)
    gone.cancel()
    committer.release.release()
    assert (await stays).sequence == 1
    assert len(committer.batches[0]) == 2


async def test_a_full_batch_queue_is_refused(replica: Checkpoint, held: Any) -> None:
    _, batcher = held
    (owner,) = await owners_of(replica, 1)
    commit = prepared(owner)
    for _ in range(6):
        batcher.enqueue(commit, lambda _: None)
    with pytest.raises(LimitReached):
        batcher.enqueue(commit, lambda _: None)


async def test_waiting_commits_are_refused_at_the_end_of_the_process(replica: Checkpoint) -> None:
    committer = HeldCommitter()
    batcher = commit_batcher(committer.write)
    (one, two) = await owners_of(replica, 2)
    running = asyncio.create_task(batcher.run())
    first = asyncio.create_task(batcher.submit(prepared(one)))
    while not committer.batches:
        await asyncio.sleep(0)
    second = asyncio.create_task(batcher.submit(prepared(two)))
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    for answer in (first, second):
        with pytest.raises(Unavailable):
            await answer


async def test_a_commit_that_postgres_refuses_does_not_fail_its_batch(replica: Checkpoint) -> None:
    (bad, *good) = await owners_of(replica, 4)
    token, _ = replica.sign(bad.task.task_id, bad.claims.epoch, bad.claims.claim_id, holder="nul \0 here")
    requests = [bad.request(words(), token=token), *[owner.request(words()) for owner in good]]
    results = await in_one_frame(replica, requests)
    assert isinstance(results[0], InvalidRequest)
    assert [result.sequence for result in results[1:]] == [4, 4, 4]


async def in_one_frame(replica: Any, requests: Any) -> Any:
    """The results of commits sent in one frame, in their order."""
    from tenure.wire.common import refusal_to_domain

    tagged = [pb.TaggedCommit(tag=tag, commit=request) for tag, request in enumerate(requests)]
    values = {}
    call = replica.stub.CommitStream(timeout=TIMEOUT_SECONDS)
    await call.write(pb.CommitStreamRequest(commits=tagged))
    await call.done_writing()
    async for frame in call:
        for result in frame.results:
            refused = result.HasField("refusal")
            values[result.tag] = refusal_to_domain(result.refusal) if refused else result.response
    return [values[tag] for tag in range(len(requests))]


async def test_a_batch_locks_rows_in_the_order_of_ids(
    replica: Checkpoint,
) -> None:
    """One order for all writers is why two of them never wait for each other."""
    owners = await owners_of(replica, 12)
    owners.sort(key=lambda owner: owner.task.task_id)
    ids = [owner.task.task_id for owner in owners]
    shuffled = owners[::2] + owners[::-2]
    async with await psycopg.AsyncConnection.connect(replica.dsn) as postgres:
        await postgres.execute("select 1 from ledger.tasks where task_id = %s for update", (ids[6],))
        writing = asyncio.create_task(in_one_frame(replica, [owner.request(words()) for owner in shuffled]))
        await until_a_session_waits_for_a_lock(replica)
        free = await replica.query(
            "select task_id::text from ledger.tasks where tenant = %s for update skip locked", replica.tenant
        )
        assert sorted(task_id for (task_id,) in free) == ids[7:]
    assert [result.sequence for result in await writing] == [4] * 12


async def test_two_replicas_apply_the_same_commits_once(replica: Checkpoint, other_replica: Checkpoint) -> None:
    owners = await owners_of(replica, 12)
    for number in range(1, 6):
        requests = [
            owner.request(words(), commit_number=number, commit_id=commit_id(owner, number)) for owner in owners
        ]
        both = await asyncio.gather(in_one_frame(replica, requests), in_one_frame(other_replica, requests[::-1]))
        assert {result.sequence for results in both for result in results} == {3 + number}
    assert {(await replica.get(owner.task.task_id)).sequence for owner in owners} == {3 + 5}


def commit_id(owner: Any, number: Any) -> str:
    """The same for both writers: one of them is answered as a repeat."""
    return f"{owner.task.task_id[:-12]}{number:012d}"


async def test_a_broken_connection_is_replaced_and_its_batch_repeated(
    replica: Checkpoint,
) -> None:
    owners = await owners_of(replica, 8)
    for _ in range(3):
        await replica.query(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where application_name = 'tenure-checkpoint-commits' and datname = current_database()"
        )
        await asyncio.gather(*[owner.commit(words()) for owner in owners])
    assert {(await replica.get(owner.task.task_id)).sequence for owner in owners} == {6}


async def test_a_long_locked_row_fails_its_batch_unacknowledged(
    replica: Checkpoint,
) -> None:
    (owner,) = await owners_of(replica, 1)
    async with await psycopg.AsyncConnection.connect(replica.dsn) as postgres:
        await postgres.execute("select 1 from ledger.tasks where task_id = %s for update", (owner.task.task_id,))
        with pytest.raises(Unavailable) as refused:
            await owner.commit(words())
    assert refused.value.reason == "LOCK_TIMEOUT"
    assert (await owner.commit(words())).sequence == 4


async def test_a_long_locked_row_does_not_fail_its_batch(
    checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch waits for the lock, and is then written one by one; its task is written alone after that."""
    waited_seconds = 4.0
    monkeypatch.setattr(committer, "LOCK_TIMEOUT_SECONDS", waited_seconds)
    monkeypatch.setattr(committer, "KEPT_SECONDS", PATIENCE_SECONDS)
    replica = await checkpoint()
    owners = await owners_of(replica, 6)
    locked, *others = owners
    async with await psycopg.AsyncConnection.connect(replica.dsn) as postgres:
        await postgres.execute("select 1 from ledger.tasks where task_id = %s for update", (locked.task.task_id,))
        for number in range(1, 4):
            began = time.monotonic()
            requests = [owner.request(words(), commit_number=number) for owner in (others[0], locked, *others[1:])]
            results = await in_one_frame(replica, requests)
            assert [getattr(one, "reason", "") for one in results] == ["", "LOCK_TIMEOUT", "", "", "", ""]
            if number > 1:
                assert time.monotonic() - began < waited_seconds
    assert {(await replica.get(owner.task.task_id)).sequence for owner in others} == {6}
    assert (await locked.commit(words(), commit_number=1)).sequence == 4
