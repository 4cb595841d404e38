"""Laws of the phases that coordinators judge: a worker that does not open, and one that does not get on."""

from __future__ import annotations

from tenure.v1 import task_pb2
from tests.support.fix_coordinator import Fleet

FAIL = task_pb2.TIMEOUT_ACTION_FAIL
RETRY = task_pb2.TIMEOUT_ACTION_RETRY
FAILED = task_pb2.TASK_STATE_FAILED
RETRY_SCHEDULED = task_pb2.TASK_STATE_RETRY_SCHEDULED


def policy(action: task_pb2.TimeoutAction.ValueType, **phases: int) -> task_pb2.TaskPolicy:
    task_policy = task_pb2.TaskPolicy()
    task_policy.retry.initial_backoff.FromSeconds(3600)
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


async def test_a_worker_without_progress_loses_the_task_by_its_timeout(fleet: Fleet) -> None:
    replica = await fleet.coordinator(progress_timeout_seconds="120")
    stuck = await fleet.worker(replica)
    task_id = await fleet.submit(policy=policy(RETRY, progress=2))
    grant = await stuck.next_grant()
    await stuck.open(grant)
    assert (await stuck.hears("revoke")).reason == "WORKER_STUCK"
    task = await fleet.task_where(task_id, lambda task: task.state == RETRY_SCHEDULED)
    assert (task.reason, task.owner) == ("WORKER_STUCK", "")
    assert [each.reason for each in await fleet.transitions(task_id)] == ["SUBMITTED", "OPENED", "WORKER_STUCK"]
