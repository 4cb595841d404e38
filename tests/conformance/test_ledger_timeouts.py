"""Phases that the ledger judges by database time, and starts that it holds back: each by the task's own policy."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from tenure.domain.errors import WrongState
from tenure.domain.fold import fold
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.wire.common import duration, moment, state_name, timestamp
from tenure.wire.ledger import entries_to_domain
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, MakeCheckpoint, answer, entry, kinds, reserve
from tests.support.patience import PATIENCE_SECONDS

WAITING_USER = task_pb2.TASK_STATE_WAITING_USER
QUEUED = task_pb2.TASK_STATE_QUEUED
RETRY_SCHEDULED = task_pb2.TASK_STATE_RETRY_SCHEDULED
FAILED = task_pb2.TASK_STATE_FAILED
ENDS = {"FAIL": "FAILED", "TIME_OUT": "TIMED_OUT", "RETRY": "RETRY_SCHEDULED"}


def policy(
    action: str = "", after: Any = None, *, phase: str = "queued", retry_seconds: float = 3600.0, retries: int = 3
) -> Any:
    task_policy = task_pb2.TaskPolicy()
    task_policy.retry.max_attempts = retries + 1
    task_policy.retry.initial_backoff.CopyFrom(duration(retry_seconds))
    task_policy.retry.jitter = task_pb2.JITTER_NONE  # else chance may say: at once
    timeout = getattr(task_policy.timeouts, phase)
    timeout.action = task_pb2.TimeoutAction.Value(f"TIMEOUT_ACTION_{action or 'UNSPECIFIED'}")
    if after is not None:
        timeout.after.CopyFrom(duration(after))
    return task_policy


async def task_where(replica: Any, task_id: Any, holds: Any) -> Any:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds(task := await replica.get(task_id)):
            await asyncio.sleep(0.05)
    return task


async def offered(replica: Any) -> Any:
    answered = await replica.stub.ListClaimable(
        pb.ListClaimableRequest(limit=10, tenants=[replica.tenant]), timeout=TIMEOUT_SECONDS
    )
    return [offer.task_id for offer in answered.offers]


async def waiting(replica: Any, **spec: Any) -> Any:
    """A task that waits for a person, who has an hour."""
    owner = await replica.claim((await replica.create(**spec)).task_id)
    await owner.commit(reserve=reserve())
    call = ledger_pb2.ToolIntent(call_id="1.0", tool_use_id="u", tool="ask_user", arguments_json="{}")
    wait = task_pb2.Wait(call_id="1.0", kind=task_pb2.WAIT_KIND_QUESTION, question="Which?")
    move = pb.Transition(to_state=WAITING_USER, reason="ANSWER_REQUESTED", wait=wait, wait_timeout=duration(3600))
    await owner.commit(answer(text="so far"), entry(1, tool_intent=call), transition=move)
    return owner.task.task_id


async def lose(replica: Any, task_id: Any, claims: Any, reason: Any) -> Any:
    lost = pb.RequeueLostRequest.Lost(task_id=task_id, claim_id=claims.claim_id, reason=reason, message="too slow")
    return (await replica.stub.RequeueLost(pb.RequeueLostRequest(lost=[lost]), timeout=TIMEOUT_SECONDS)).task_ids


async def test_an_unclaimed_task_follows_its_queue_timeout_policy(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    tasks = {action: (await replica.create(policy=policy(action, 1.0))).task_id for action in ENDS}
    by_default = (await replica.create(policy=policy("", 1.0))).task_id
    patient = (await replica.create()).task_id
    for action, state in ENDS.items():
        task = await task_where(replica, tasks[action], lambda task: task.state != QUEUED)
        assert (state_name(task.state), task.reason) == (state, "QUEUED_TOO_LONG")
        last = (await replica.entries(task.task_id))[-1]
        assert (last.body.transition.reason, last.actor) == ("QUEUED_TOO_LONG", "checkpoint")
        assert task.HasField("next_retry_time") == (action == "RETRY")
    assert state_name((await task_where(replica, by_default, lambda task: task.state != QUEUED)).state) == "TIMED_OUT"
    assert await offered(replica) == [patient]


async def test_a_backoff_without_jitter_is_exact(replica: Checkpoint) -> None:
    task = await replica.create(policy=policy("RETRY", 1.0, retry_seconds=120))
    task = await task_where(replica, task.task_id, lambda task: task.state == RETRY_SCHEDULED)
    assert task.spec.policy.retry.jitter == task_pb2.JITTER_NONE
    scheduled = (await replica.entries(task.task_id))[-1].record_time
    assert task.next_retry_time.ToNanoseconds() - scheduled.ToNanoseconds() == 120 * 10**9


async def test_an_unclaimed_task_fails_after_its_retries(replica: Checkpoint) -> None:
    task_id = (await replica.create(policy=policy("RETRY", 1.0, retries=1, retry_seconds=0.01))).task_id
    task = await task_where(replica, task_id, lambda task: task.state == FAILED)
    assert (task.reason, task.message) == (
        "QUEUED_TOO_LONG",
        "no worker took the task in time (after 1 retries of the task)",
    )
    entries = await replica.entries(task_id)
    assert kinds(entries)[1:] == [">QUEUED", "QUEUED>RETRY_SCHEDULED", "RETRY_SCHEDULED>QUEUED", "QUEUED>FAILED"]
    assert fold(entries_to_domain(entries)).timeout_retries == 1


async def test_a_claimed_task_has_no_queue_timeout(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create(policy=policy("FAIL", 5.0))).task_id)
    unheld = (await replica.create(policy=policy("FAIL", 5.0))).task_id
    await task_where(replica, unheld, lambda task: task.state == FAILED)  # as long in the queue as the other would be
    assert (await replica.get(owner.task.task_id)).owner == "worker-1"
    await replica.requeue(owner)
    again = await task_where(replica, owner.task.task_id, lambda task: task.state == FAILED)
    assert again.reason == "QUEUED_TOO_LONG"


@pytest.mark.parametrize("action", ENDS)
async def test_an_unanswered_wait_ends_by_policy(replica: Checkpoint, action: Any) -> None:
    task_id = await waiting(replica, policy=policy(action, 1.0, phase="wait"))
    task = await task_where(replica, task_id, lambda task: task.state != WAITING_USER)
    assert (state_name(task.state), task.reason) == (ENDS[action], "WAIT_EXPIRED")
    assert not task.HasField("wait")
    entries = await replica.entries(task_id)
    is_asked_again = action == "RETRY"
    assert ("tool_outcome" in kinds(entries)) != is_asked_again
    assert bool(fold(entries_to_domain(entries)).open_intents) == is_asked_again


async def test_a_whole_task_that_takes_too_long_may_fail(replica: Checkpoint) -> None:
    limits = task_pb2.Limits(timeout=duration(0.3))
    task_id = (await replica.create(limits=limits, policy=policy("FAIL", phase="task"))).task_id
    task = await task_where(replica, task_id, lambda task: task.state != QUEUED)
    assert (task.state, task.reason) == (FAILED, "DEADLINE_PASSED")


@pytest.mark.parametrize("action", ["", *ENDS])
async def test_a_worker_without_progress_loses_the_task_by_policy(replica: Checkpoint, action: Any) -> None:
    owner = await replica.claim((await replica.create(policy=policy(action, phase="progress"))).task_id)
    assert await lose(replica, owner.task.task_id, owner.claims, "WORKER_STUCK") == [owner.task.task_id]
    task = await replica.get(owner.task.task_id)
    assert (state_name(task.state), task.reason) == (ENDS.get(action, "QUEUED"), "WORKER_STUCK")
    moves = kinds(await replica.entries(task.task_id))
    assert moves[-1] == {
        "RETRY": "RUNNING>RETRY_SCHEDULED",
        "": "RUNNING>QUEUED",
    }.get(action, f"QUEUED>{ENDS.get(action)}")


@pytest.mark.parametrize("action", ["GO_ON", *ENDS])
async def test_a_granted_unopened_task_follows_its_policy(replica: Checkpoint, action: Any) -> None:
    task_id = (await replica.create(policy=policy(action, 5.0, phase="start"))).task_id
    token, claims = await replica.grant(task_id)
    moved = await lose(replica, task_id, claims, "START_TIMEOUT")
    task = await replica.get(task_id)
    if action == "GO_ON":
        assert (list(moved), task.state, task.reason) == ([], QUEUED, "SUBMITTED")
        return
    assert (list(moved), state_name(task.state), task.reason) == ([task_id], ENDS[action], "START_TIMEOUT")
    with pytest.raises(WrongState):
        await replica.open(token, claims)


async def test_a_superseded_claim_moves_nothing(replica: Checkpoint) -> None:
    task_id = (await replica.create(policy=policy("FAIL", 5.0, phase="start"))).task_id
    _, former = await replica.grant(task_id)
    await replica.grant(task_id)
    assert await lose(replica, task_id, former, "START_TIMEOUT") == []
    assert (await replica.get(task_id)).state == QUEUED


async def test_offers_carry_the_tasks_own_patience(replica: Checkpoint) -> None:
    response = policy("RETRY", 7.0, phase="start")
    response.timeouts.progress.after.CopyFrom(duration(9.0))
    response.lease_ttl.CopyFrom(duration(4.0))
    response.renew_interval.CopyFrom(duration(1.0))
    response.reconnect_grace.CopyFrom(duration(0.0))
    await replica.create(policy=response)
    await replica.create()
    answered = await replica.stub.ListClaimable(
        pb.ListClaimableRequest(limit=10, tenants=[replica.tenant]), timeout=TIMEOUT_SECONDS
    )
    own, none = answered.offers
    assert (own.start_timeout.seconds, own.progress_timeout.seconds, own.lease_ttl.seconds) == (7, 9, 4)
    assert (own.renew_interval.seconds, own.HasField("reconnect_grace"), own.reconnect_grace.nanos) == (1, True, 0)
    assert not none.HasField("lease_ttl")
    assert not none.HasField("renew_interval")
    assert not none.HasField("reconnect_grace")
    assert not none.HasField("start_timeout")
    assert not none.HasField("progress_timeout")


async def test_waits_for_a_person_and_for_an_event_last_apart(replica: Checkpoint) -> None:
    apart = task_pb2.TaskPolicy()
    apart.timeouts.wait_person.after.CopyFrom(duration(600))
    apart.timeouts.wait_event.after.CopyFrom(duration(60))
    question = task_pb2.Wait(kind=task_pb2.WAIT_KIND_QUESTION, call_id="1.0", question="Which?")
    event = task_pb2.Wait(kind=task_pb2.WAIT_KIND_EVENT, call_id="1.0", correlation_id=str(uuid4()))
    for wait, state, seconds in ((question, WAITING_USER, 600), (event, task_pb2.TASK_STATE_WAITING_EXTERNAL, 60)):
        owner = await replica.claim((await replica.create(policy=apart)).task_id)
        await owner.commit(reserve=reserve())
        intent = ledger_pb2.ToolIntent(call_id="1.0", tool_use_id="u", tool="ask")
        move = pb.Transition(to_state=state, reason="ASKED", wait=wait, wait_timeout=duration(3600))
        await owner.commit(answer(), entry(1, tool_intent=intent), transition=move)
        waiting = (await replica.get(owner.task.task_id)).wait
        assert waiting.deadline_time.seconds - waiting.begin_time.seconds == seconds


async def test_the_error_class_is_in_its_transition(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    move = pb.Transition(
        to_state=RETRY_SCHEDULED, reason="MODEL_UNAVAILABLE", retry_delay=duration(60), error_class="OVERLOADED"
    )
    await owner.commit(transition=move)
    last = (await replica.entries(owner.task.task_id))[-1].body.transition
    assert (last.error_class, last.reason) == ("OVERLOADED", "MODEL_UNAVAILABLE")
    assert last.next_retry_time == (await replica.get(owner.task.task_id)).next_retry_time


async def test_a_task_with_a_start_time_is_offered_from_then(replica: Checkpoint) -> None:
    start = datetime.now(UTC) + timedelta(hours=1)
    limits = task_pb2.Limits(timeout=duration(600))
    spec = {"start_time": timestamp(start), "limits": limits, "policy": policy("FAIL", 30.0)}
    task = await replica.create("later", **spec)
    assert (await replica.create("later", **spec)).task_id == task.task_id
    at_once = await replica.create(start_time=timestamp(datetime.now(UTC) - timedelta(hours=1)), limits=limits)
    assert task.state == QUEUED
    assert moment(task.spec.start_time) == start
    assert moment(task.deadline_time) == start + timedelta(seconds=600)
    ((queued_until,),) = await replica.query("select queued_until from ledger.tasks where task_id = %s", task.task_id)
    assert queued_until == start + timedelta(seconds=30)
    assert moment(at_once.deadline_time) == moment(at_once.create_time) + timedelta(seconds=600)
    assert await offered(replica) == [at_once.task_id]
    await replica.query("update ledger.tasks set starts_at = now() where task_id = %s", task.task_id)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while task.task_id not in await offered(replica):
            await asyncio.sleep(0.05)
    assert (await replica.get(task.task_id)).sequence == task.sequence


async def test_a_delayed_task_is_cancelled_at_once(
    replica: Checkpoint,
) -> None:
    later = timestamp(datetime.now(UTC) + timedelta(hours=1))
    task = await replica.create(start_time=later)
    assert (await replica.cancel(task.task_id)).state == task_pb2.TASK_STATE_CANCELLED
    request = pb.AppendForeignRequest(
        task_id=task.task_id,
        request_id="again",
        actor="operator",
        operator_request=ledger_pb2.OperatorRequest(reason="now", requeue=ledger_pb2.OperatorRequest.Requeue()),
    )
    await replica.stub.AppendForeign(request, timeout=TIMEOUT_SECONDS)
    assert await offered(replica) == [task.task_id]


async def test_a_fork_of_a_task_that_is_held_back_is_not(replica: Checkpoint) -> None:
    task = await replica.create(start_time=timestamp(datetime.now(UTC) + timedelta(hours=1)))
    request = tasks_pb.ForkTaskRequest(request_id="f", task_id=task.task_id, actor="bob")
    forked = (await replica.stub.ForkTask(request, timeout=TIMEOUT_SECONDS)).task
    assert not forked.spec.HasField("start_time")
    assert await offered(replica) == [forked.task_id]
