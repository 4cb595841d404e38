"""A row that the database refuses stops no sweep, requeue or grant of the others. Bounds of commits and histories."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.checkpoint.commit import committer
from tenure.domain.errors import Unavailable
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2
from tests.support.fix_checkpoint import Checkpoint, CheckpointProcess, MakeCheckpoint, MakeCheckpointProcess, words
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.refused_rows import Refusal, allow_rows, refuse_rows

pytestmark = pytest.mark.server
QUEUED = task_pb2.TASK_STATE_QUEUED


async def refuse_queued(replica: Checkpoint, task_id: str) -> None:
    await refuse_rows(replica.dsn, "tasks", f"new.task_id = '{task_id}' and new.state = 'QUEUED'", Refusal.GUARD)


async def test_a_sweep_leaves_out_the_row_that_is_refused(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    owners = [await replica.claim((await replica.create()).task_id) for _ in range(3)]
    await refuse_queued(replica, owners[0].task.task_id)
    soon = Duration(nanos=1_000_000)
    later = pb.Transition(to_state=task_pb2.TASK_STATE_RETRY_SCHEDULED, reason="MODEL_UNAVAILABLE", retry_delay=soon)
    for owner in owners:
        await owner.commit(transition=later)
    async with asyncio.timeout(PATIENCE_SECONDS):
        for owner in owners[1:]:
            while (await replica.get(owner.task.task_id)).state != QUEUED:
                await asyncio.sleep(0.05)
    assert (await replica.get(owners[0].task.task_id)).state == task_pb2.TASK_STATE_RETRY_SCHEDULED


async def test_a_requeue_leaves_out_the_row_that_is_refused(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    owners = [await replica.claim((await replica.create()).task_id) for _ in range(3)]
    await refuse_queued(replica, owners[1].task.task_id)
    lost = [
        pb.RequeueLostRequest.Lost(task_id=one.task.task_id, claim_id=one.claims.claim_id, reason="LEASE_EXPIRED")
        for one in owners
    ]
    answer = await replica.stub.RequeueLost(pb.RequeueLostRequest(lost=lost), timeout=CALL_SECONDS)
    assert set(answer.task_ids) == {owners[0].task.task_id, owners[2].task.task_id}


async def test_a_grant_leaves_out_the_row_that_is_refused(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    task_ids = [(await replica.create()).task_id for _ in range(3)]
    await refuse_queued(replica, task_ids[1])
    grants = [
        pb.RegisterGrantsRequest.Grant(task_id=one, epoch=(1 << 40) + 5, claim_id=str(uuid4())) for one in task_ids
    ]
    answer = await replica.stub.RegisterGrants(pb.RegisterGrantsRequest(grants=grants), timeout=CALL_SECONDS)
    assert set(answer.claim_ids) == {grants[0].claim_id, grants[2].claim_id}


async def test_failing_commits_make_a_replica_not_serving(
    checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "FAILING_SECONDS", 1.0)
    replica = await checkpoint()
    owner = await replica.claim((await replica.create()).task_id)
    health = health_pb2_grpc.HealthStub(replica.channel)
    await refuse_rows(replica.dsn, "entries", "true", Refusal.CONNECTION_LOST)
    request = owner.request(words())
    with pytest.raises(Unavailable):
        await owner.send(request)

    async def becomes(status: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await health.Check(health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS)).status != status:
                await asyncio.sleep(0.05)

    await becomes(health_pb2.HealthCheckResponse.NOT_SERVING)
    await allow_rows(replica.dsn, "entries")
    await owner.send(request)
    await becomes(health_pb2.HealthCheckResponse.SERVING)


async def test_a_history_beyond_the_limit_ends_its_task(checkpoint_process: MakeCheckpointProcess) -> None:
    limited: CheckpointProcess = await checkpoint_process(environment={"TENURE_CHECKPOINT_MAX_LEDGER_BYTES": "100000"})
    replica = limited.replica
    owner = await replica.claim((await replica.create()).task_id)
    assert not (await owner.commit(words("x" * 90_000))).cancel_requested
    answer = await owner.commit(words("x" * 20_000))
    assert answer.cancel_requested
    ended = pb.Transition(to_state=task_pb2.TASK_STATE_CANCELLED, reason="CANCEL_REQUESTED")
    await owner.commit(transition=ended)
    task = await replica.get(owner.task.task_id)
    assert (task.state, task.reason) == (task_pb2.TASK_STATE_FAILED, "LEDGER_LIMIT")
    assert "100,000" in task.message


async def test_an_open_goes_on_after_an_entry(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    owner = await replica.claim((await replica.create()).task_id)
    for number in range(3):
        await owner.commit(words(str(number)))
    request = pb.OpenRequest(token=owner.token, after_sequence=owner.known_sequence - 2)
    parts = [part async for part in replica.stub.Open(request, timeout=CALL_SECONDS)]
    sequences = [entry.sequence for part in parts for entry in part.page.entries]
    assert sequences == [owner.known_sequence - 1, owner.known_sequence]
    assert parts[0].header.task.sequence == owner.known_sequence
