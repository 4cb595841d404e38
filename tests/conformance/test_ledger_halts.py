"""A task that no worker can carry on waits longer after each try and ends with the reason; a new step begins anew."""

from __future__ import annotations

import pytest

from services.checkpoint import halt_rules as halts
from tenure.domain.retry import Jitter, RetryPolicy
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2
from tests.support.fix_checkpoint import Checkpoint, MakeCheckpoint, Owner, words
from tests.support.patience import CALL_SECONDS

pytestmark = pytest.mark.server
QUEUED, SCHEDULED = task_pb2.TASK_STATE_QUEUED, task_pb2.TASK_STATE_RETRY_SCHEDULED


async def halt(replica: Checkpoint, owner: Owner) -> task_pb2.Task:
    """The owner's worker halts. Returns the task after that."""
    lost = pb.RequeueLostRequest.Lost(
        task_id=owner.task.task_id, claim_id=owner.claims.claim_id, reason="WORKER_HALTED", message="no tools"
    )
    await replica.stub.RequeueLost(pb.RequeueLostRequest(lost=[lost]), timeout=CALL_SECONDS)
    return await replica.get(owner.task.task_id)


async def queued_again(replica: Checkpoint, task_id: str) -> None:
    """Ends the pause, as the sweep does when it is over."""
    await replica.query("update ledger.tasks set next_retry_at = now() where task_id = %s", task_id)
    while (await replica.get(task_id)).state != QUEUED:
        pass


async def test_a_second_halt_in_a_row_pauses_the_task(
    checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        halts, "HALTS", RetryPolicy(max_attempts=9, initial_seconds=600.0, cap_seconds=600.0, jitter=Jitter.NONE)
    )
    replica = await checkpoint()
    task_id = (await replica.create()).task_id
    assert (await halt(replica, await replica.claim(task_id))).state == QUEUED
    paused = await halt(replica, await replica.claim(task_id))
    assert (paused.state, paused.reason, paused.message) == (SCHEDULED, "WORKER_HALTED", "no tools")
    await queued_again(replica, task_id)
    owner = await replica.claim(task_id)
    await owner.commit(words(step=1))
    assert (await halt(replica, owner)).state == QUEUED


async def test_a_task_halted_too_often_ends(checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        halts, "HALTS", RetryPolicy(max_attempts=3, initial_seconds=600.0, cap_seconds=600.0, jitter=Jitter.NONE)
    )
    replica = await checkpoint()
    task_id = (await replica.create()).task_id
    await halt(replica, await replica.claim(task_id))
    await halt(replica, await replica.claim(task_id))
    await queued_again(replica, task_id)
    task = await halt(replica, await replica.claim(task_id))
    assert (task.state, task.reason) == (task_pb2.TASK_STATE_FAILED, "WORKER_HALTED")
    assert "no tools" in task.message
