"""Laws of the phases that coordinators judge: a worker that does not open, and one that does not get on."""

from __future__ import annotations

import asyncio

import pytest

from tenure.v1 import coordinator_service_pb2 as pb
from tenure.v1 import task_pb2
from tests.conformance.test_coordinator_silence import renewals
from tests.support.fix_coordinator import Fleet
from tests.support.patience import LONG_LIFE_SECONDS, PATIENCE_SECONDS, SHORT_LIFE_SECONDS

FAIL = task_pb2.TIMEOUT_ACTION_FAIL
RETRY = task_pb2.TIMEOUT_ACTION_RETRY
FAILED = task_pb2.TASK_STATE_FAILED
RETRY_SCHEDULED = task_pb2.TASK_STATE_RETRY_SCHEDULED
QUEUED = task_pb2.TASK_STATE_QUEUED


def policy(action: task_pb2.TimeoutAction.ValueType, **phases: int) -> task_pb2.TaskPolicy:
    task_policy = task_pb2.TaskPolicy()
    task_policy.retry.initial_backoff.FromSeconds(3600)
    task_policy.retry.jitter = task_pb2.JITTER_NONE  # else chance may say: at once
    for name, after_seconds in phases.items():
        phase = getattr(task_policy.timeouts, name)
        phase.after.FromSeconds(after_seconds)
        phase.action = action
    return task_policy


async def test_a_named_but_unopened_task_follows_its_policy(fleet: Fleet) -> None:
    replica = await fleet.coordinator(start_timeout_seconds="60")
    worker = await fleet.worker(replica, slots=2)
    fails = await fleet.submit(policy=policy(FAIL, start=1))
    retries = await fleet.submit(policy=policy(RETRY, start=1))
    assert {grant.task_id for grant in await worker.next_grants(2)} == {fails, retries}
    assert (await worker.hears("revoke")).reason == "START_TIMEOUT"
    failed = await fleet.task_where(fails, lambda task: task.state == FAILED)
    assert (failed.reason, failed.claim_count) == ("START_TIMEOUT", 0)
    assert "did not open the task within" in failed.message
    scheduled = await fleet.task_where(retries, lambda task: task.state == RETRY_SCHEDULED)
    assert scheduled.reason == "START_TIMEOUT"
    assert scheduled.HasField("next_retry_time")


async def test_a_silent_worker_loses_tasks_with_a_short_lease_only(fleet: Fleet) -> None:
    replica = await fleet.coordinator()
    silent = await fleet.worker(replica, slots=2)
    short = task_pb2.TaskPolicy()
    short.lease_ttl.FromSeconds(SHORT_LIFE_SECONDS)
    quick, patient = await fleet.submit(policy=short), await fleet.submit()
    for grant in await silent.next_grants(2):
        await silent.open(grant)
    await renewals(silent, 2)
    silent.freeze()
    lost = await fleet.task_where(quick, lambda task: task.state == task_pb2.TASK_STATE_QUEUED)
    assert (lost.reason, lost.owner) == ("LEASE_EXPIRED", "")
    assert f"sent no renewal for {SHORT_LIFE_SECONDS} s" in lost.message
    assert (await fleet.transitions(quick))[-1].lease_end.renewal_count >= 1
    assert (await fleet.task(patient)).state == task_pb2.TASK_STATE_RUNNING
    assert [claim.task_id for claim in await fleet.claims(replica)] == [patient]


@pytest.mark.faults
async def test_a_worker_that_moved_keeps_tasks_with_a_short_lease(fleet: Fleet) -> None:
    first, second = [await fleet.coordinator() for _ in range(2)]
    worker = await fleet.worker(first)
    short = task_pb2.TaskPolicy()
    short.lease_ttl.FromSeconds(SHORT_LIFE_SECONDS)
    task_id = await fleet.submit(policy=short)
    grant = await worker.next_grant()
    await worker.open(grant)
    worker.freeze()  # its old stream stays, as in a network that was cut
    again = fleet.keep(await worker.reattach(second.address))
    await asyncio.sleep(SHORT_LIFE_SECONDS + 3.0)  # without its second stream the lease would have ended
    assert [claim.claim_id for claim in await fleet.claims(second)] == [grant.claim_id]
    assert again.ended_with is None
    assert (await fleet.task(task_id)).state == task_pb2.TASK_STATE_RUNNING


@pytest.mark.faults
async def test_a_worker_without_progress_loses_the_task_by_its_timeout(fleet: Fleet) -> None:
    replica = await fleet.coordinator(progress_timeout_seconds="120")
    stuck = await fleet.worker(replica)
    task_id = await fleet.submit(policy=policy(RETRY, progress=SHORT_LIFE_SECONDS))
    grant = await stuck.next_grant()
    await stuck.open(grant)
    assert (await stuck.hears("revoke")).reason == "WORKER_STUCK"
    task = await fleet.task_where(task_id, lambda task: task.state == RETRY_SCHEDULED)
    assert (task.reason, task.owner) == ("WORKER_STUCK", "")
    assert [each.reason for each in await fleet.transitions(task_id)] == ["SUBMITTED", "OPENED", "WORKER_STUCK"]


@pytest.mark.faults
async def test_a_worker_cannot_outrun_a_timeout_by_attaching(fleet: Fleet) -> None:
    """Each stream ends by its age, and a task's progress timeout may be longer than that."""
    replica = await fleet.coordinator(progress_timeout_seconds="120")
    stuck = await fleet.worker(replica)
    task_id = await fleet.submit(policy=policy(RETRY, progress=SHORT_LIFE_SECONDS))
    grant = await stuck.next_grant()
    stuck.progress[grant.claim_id] = pb.Progress(sequence=(await stuck.open(grant)).task.sequence)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (task := await fleet.task(task_id)).state == task_pb2.TASK_STATE_RUNNING:
            await asyncio.sleep(1.0)
            stuck = fleet.keep(await stuck.reattach())
    assert (task.state, task.reason) == (RETRY_SCHEDULED, "WORKER_STUCK")


async def test_a_timeout_continues_at_another_coordinator(fleet: Fleet) -> None:
    """The former coordinator may be dead, so the worker itself reports for how long a claim has been idle."""
    first, second = [await fleet.coordinator(progress_timeout_seconds="120") for _ in range(2)]
    worker = await fleet.worker(first, slots=2)
    stuck, busy = await fleet.submit(policy=policy(RETRY, progress=100)), await fleet.submit()
    for grant in await worker.next_grants(2):
        progress = pb.Progress(sequence=(await worker.open(grant)).task.sequence)
        progress.idle.FromSeconds(101 if grant.task_id == stuck else 1)
        worker.progress[grant.claim_id] = progress
    moved = fleet.keep(await worker.reattach(second.address))
    assert (await moved.hears("revoke")).task_id == stuck
    task = await fleet.task_where(stuck, lambda task: task.state == RETRY_SCHEDULED)
    assert (task.reason, task.owner) == ("WORKER_STUCK", "")
    assert [claim.task_id for claim in await fleet.claims(second)] == [busy]


@pytest.mark.faults
async def test_a_start_timeout_continues_at_another_coordinator(fleet: Fleet) -> None:
    first, second = [await fleet.coordinator(start_timeout_seconds="60") for _ in range(2)]
    worker = await fleet.worker(first)
    task_id = await fleet.submit(policy=policy(FAIL, start=100))
    grant = await worker.next_grant()
    progress = pb.Progress()
    progress.idle.FromSeconds(101)
    worker.progress[grant.claim_id] = progress
    moved = fleet.keep(await worker.reattach(second.address))
    assert (await moved.hears("revoke")).reason == "START_TIMEOUT"
    assert (await fleet.task_where(task_id, lambda task: task.state == FAILED)).reason == "START_TIMEOUT"


async def test_tasks_stay_with_a_broken_stream_for_their_own_grace(fleet: Fleet) -> None:
    """A task without a grace, one with the coordinator's, and one with a long grace: they leave in this order."""
    replica = await fleet.coordinator(reconnect_grace_seconds="2")
    broken = await fleet.worker(replica, slots=3)
    at_once, patient = task_pb2.TaskPolicy(), task_pb2.TaskPolicy()
    at_once.reconnect_grace.FromSeconds(0)
    patient.reconnect_grace.FromSeconds(LONG_LIFE_SECONDS)
    first, usual, last = [await fleet.submit(policy=each) for each in (at_once, None, patient)]
    grants = {grant.task_id: grant for grant in await broken.next_grants(3)}
    for grant in grants.values():
        await broken.open(grant)
    await broken.break_off()
    lost = await fleet.task_where(first, lambda task: task.state == QUEUED)
    assert (lost.reason, "in the task's grace" in lost.message) == ("WORKER_LOST", True)
    assert (await fleet.task(usual)).state == task_pb2.TASK_STATE_RUNNING
    assert (await fleet.task_where(usual, lambda task: task.state == QUEUED)).reason == "WORKER_LOST"
    again = fleet.keep(await broken.reattach())
    assert set(again.lost) == {grants[first].claim_id, grants[usual].claim_id}
    assert [claim.task_id for claim in await fleet.claims(replica)] == [last]
    await again.commit(
        grants[last], 1, transition={"to_state": task_pb2.TASK_STATE_SUCCEEDED, "reason": "FINAL_ANSWER"}
    )


async def test_a_drained_worker_leaves_no_grace(fleet: Fleet) -> None:
    replica = await fleet.coordinator()
    drained = await fleet.worker(replica)
    patient = task_pb2.TaskPolicy()
    patient.reconnect_grace.FromSeconds(LONG_LIFE_SECONDS)
    task_id = await fleet.submit(policy=patient)
    await drained.open(await drained.next_grant())
    await drained.drain()
    await drained.close()
    lost = await fleet.task_where(task_id, lambda task: task.state == QUEUED)
    assert lost.reason == "WORKER_DRAINED"
