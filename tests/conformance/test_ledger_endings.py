"""Endings that others ask for: recorded at once, and carried out by an owner or a coordinator."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from tenure.domain.errors import AlreadyExists, WrongState
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, answer, entry, kinds, reserve, words
from tests.support.patience import PATIENCE_SECONDS

CANCELLED = task_pb2.TASK_STATE_CANCELLED
TIMED_OUT = task_pb2.TASK_STATE_TIMED_OUT


def intent() -> Any:
    return entry(1, tool_intent=ledger_pb2.ToolIntent(call_id="1.0", tool="t", arguments_json="{}"))


def parked(state: Any) -> Any:
    transition = pb.Transition(to_state=state, reason="WAITS")
    if state == task_pb2.TASK_STATE_RETRY_SCHEDULED:
        transition.retry_delay.FromSeconds(60)
    return transition


async def endings(replica: Any, grace_seconds: float = 0.0) -> Any:
    grace = Duration()
    grace.FromNanoseconds(int(grace_seconds * 1e9))
    request = pb.ListEndingsRequest(limit=100, grace=grace)
    answer = await replica.stub.ListEndings(request, timeout=TIMEOUT_SECONDS)
    return [ending for ending in answer.endings if ending.tenant == replica.tenant]


async def offers(replica: Any) -> Any:
    request = pb.ListClaimableRequest(limit=10, tenants=[replica.tenant])
    return list((await replica.stub.ListClaimable(request, timeout=TIMEOUT_SECONDS)).offers)


async def test_a_queued_task_is_cancelled_at_once(replica: Checkpoint) -> None:
    task = await replica.create()
    cancelled = await replica.cancel(task.task_id, reason="not needed")
    assert (cancelled.state, cancelled.reason, cancelled.message) == (CANCELLED, "CANCEL_REQUESTED", "not needed")
    entries = await replica.entries(task.task_id)
    assert kinds(entries)[-2:] == ["cancel_request", "QUEUED>CANCELLED"]
    assert entries[-1].actor == "alice"
    assert await offers(replica) == []


@pytest.mark.parametrize("state", ["WAITING_USER", "WAITING_EXTERNAL", "RETRY_SCHEDULED"])
async def test_a_waiting_task_is_cancelled_at_once_with_its_last_text(replica: Checkpoint, state: str) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(reserve=reserve())
    await owner.commit(answer(text="so far"), transition=parked(task_pb2.TaskState.Value(f"TASK_STATE_{state}")))
    cancelled = await replica.cancel(owner.task.task_id)
    assert (cancelled.state, cancelled.result) == (CANCELLED, "so far")


@pytest.mark.parametrize("cancelled", ["before", "after"])
async def test_a_summary_is_not_the_result_of_a_cancelled_task(replica: Checkpoint, cancelled: str) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(reserve=reserve())
    await owner.commit(answer(text="so far"), reserve=reserve(step=2))
    if cancelled == "before":
        await replica.cancel(owner.task.task_id)
    summary = ledger_pb2.Compaction.Summary(through_step=1, text="in short")
    summed_up = (answer(step=2, text="in short"), entry(2, compaction=ledger_pb2.Compaction(summary=summary)))
    await owner.commit(*summed_up, transition=parked(task_pb2.TASK_STATE_RETRY_SCHEDULED))
    task = await replica.cancel(owner.task.task_id)
    assert (task.state, task.result) == (CANCELLED, "so far")


@pytest.mark.parametrize("state", ["WAITING_USER", "WAITING_EXTERNAL", "RETRY_SCHEDULED"])
async def test_a_waiting_task_with_an_open_call_is_closed_out(replica: Checkpoint, state: str) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(intent(), transition=parked(task_pb2.TaskState.Value(f"TASK_STATE_{state}")))
    task = await replica.cancel(owner.task.task_id)
    assert (task.state, task.cancel_requested) == (task_pb2.TASK_STATE_QUEUED, True)
    assert await offers(replica) == []
    (ending,) = await endings(replica, grace_seconds=30)
    assert (ending.task_id, ending.to_state, ending.message) == (task.task_id, CANCELLED, "enough")
    coordinator = await replica.claim(task.task_id, holder="coordinator/1")
    assert coordinator.task.cancel_requested


async def test_the_owner_of_a_running_task_gets_the_cancel(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    task = await replica.cancel(owner.task.task_id)
    assert (task.state, task.cancel_requested) == (task_pb2.TASK_STATE_RUNNING, True)
    response = await owner.commit(words(), reserve=reserve())
    assert response.cancel_requested
    assert response.reserve.denied.reason == "CANCEL_REQUESTED"
    assert (await owner.end(CANCELLED, result="half")).state == CANCELLED


async def test_an_acknowledged_cancel_wins_over_the_owners_end(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await replica.cancel(owner.task.task_id)
    response = await owner.end(result="all of it")
    assert response.state == CANCELLED
    assert (await replica.get(owner.task.task_id)).result == "all of it"


async def test_a_running_task_is_listed_for_ending_once(replica: Checkpoint, other_replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await replica.cancel(owner.task.task_id)
    assert await endings(replica, grace_seconds=30) == []
    results = await asyncio.gather(*[endings(side) for side in (replica, other_replica) for _ in range(4)])
    assert sum(len(one) for one in results) == 1


async def test_a_task_lost_during_a_cancel_is_cancelled(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await replica.cancel(owner.task.task_id)
    await replica.requeue(owner)
    assert kinds(await replica.entries(owner.task.task_id))[-2:] == ["RUNNING>QUEUED", "QUEUED>CANCELLED"]


async def test_a_coordinator_ends_a_running_task_under_its_own_claim(
    replica: Checkpoint,
) -> None:
    worker = await replica.claim((await replica.create()).task_id)
    await worker.commit(intent())
    await replica.cancel(worker.task.task_id)
    coordinator = await replica.claim(worker.task.task_id, holder="coordinator/1")
    outcome = ledger_pb2.ToolOutcome(call_id="1.0")
    response = await coordinator.commit(
        entry(1, tool_outcome=outcome), transition=pb.Transition(to_state=CANCELLED, reason="CANCEL_REQUESTED")
    )
    assert response.state == CANCELLED


async def test_cancelling_again_is_answered_as_the_first_time(replica: Checkpoint) -> None:
    task = await replica.create()
    first = await replica.cancel(task.task_id, "c-1")
    assert await replica.cancel(task.task_id, "c-1") == first
    assert await replica.cancel(task.task_id, "c-2") == first
    assert kinds(await replica.entries(task.task_id)).count("cancel_request") == 1


async def test_a_task_that_ended_otherwise_is_not_cancelled(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await owner.end()
    with pytest.raises(WrongState) as refused:
        await replica.cancel(owner.task.task_id)
    assert refused.value.metadata == {"state": "SUCCEEDED"}
    with pytest.raises(WrongState):
        await replica.say(owner.task.task_id, "too late")


async def test_an_external_entry_is_appended_once_per_request_id(replica: Checkpoint) -> None:
    task = await replica.create()
    await asyncio.gather(*[replica.say(task.task_id, "hello", "m-1") for _ in range(5)])
    assert kinds(await replica.entries(task.task_id)).count("user_message") == 1
    with pytest.raises(AlreadyExists):
        await replica.say(task.task_id, "something else", "m-1")


async def until(replica: Any, task_id: Any, state: Any) -> None:
    """Watch the ledger until the task is in this state."""
    async for some in replica.stub.WatchEntries(pb.WatchEntriesRequest(task_id=task_id), timeout=TIMEOUT_SECONDS):
        if some.entries and some.entries[-1].body.transition.to_state == state:
            return


async def test_a_queued_task_past_its_deadline_times_out(replica: Checkpoint) -> None:
    limits = task_pb2.Limits()
    limits.timeout.FromMilliseconds(50)
    task = await replica.create(limits=limits)
    await until(replica, task.task_id, TIMED_OUT)
    assert (await replica.get(task.task_id)).reason == "DEADLINE_PASSED"


async def test_an_owner_closes_its_task_as_timed_out(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await replica.query("update ledger.tasks set deadline_at = now() where tenant = %s", replica.tenant)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (await replica.get(owner.task.task_id)).cancel_requested:
            await asyncio.sleep(0.01)
    assert (await owner.end(CANCELLED)).state == TIMED_OUT


async def test_a_task_that_waits_for_a_person_does_not_time_out(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(transition=parked(task_pb2.TASK_STATE_WAITING_USER))
    other = await replica.create()
    await replica.query("update ledger.tasks set deadline_at = now() where tenant = %s", replica.tenant)
    await until(replica, other.task_id, TIMED_OUT)
    assert (await replica.get(owner.task.task_id)).state == task_pb2.TASK_STATE_WAITING_USER


async def test_several_lost_workers_in_one_step_are_a_crash_loop(replica: Checkpoint) -> None:
    task = await replica.create()
    for owner in ("w1", "w2", "w3", "w1", "w2"):
        await replica.requeue(await replica.claim(task.task_id, holder=owner))
    ended = await replica.get(task.task_id)
    assert (ended.state, ended.reason) == (task_pb2.TASK_STATE_FAILED, "CRASH_LOOP")
    assert ended.message == "owners died 5 times in a row without a new step: w1, w2, w3"


async def test_a_new_step_resets_the_lost_workers(replica: Checkpoint) -> None:
    task = await replica.create()
    for holder in ("w1", "w2", "w3", "w4"):
        await replica.requeue(await replica.claim(task.task_id, holder=holder))
    owner = await replica.claim(task.task_id, holder="w5")
    await owner.commit(reserve=reserve())
    await replica.requeue(owner)
    assert await replica.query("select deaths, dead_owners from ledger.tasks where tenant = %s", replica.tenant) == [
        (1, ["w5"])
    ]


async def test_an_ending_that_fails_is_offered_with_growing_delays(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(intent())
    await replica.cancel(owner.task.task_id)
    for age, seconds in (("1 second", 2), ("20 seconds", 10), ("10 minutes", 30)):
        [(before,)] = await replica.query(
            f"update ledger.tasks set offered_until = null, ending_at = now() - interval '{age}' "
            "where task_id = %s returning now()",
            owner.task.task_id,
        )
        assert len(await endings(replica)) == 1
        assert await endings(replica) == []
        [(until, after)] = await replica.query(
            "select offered_until, now() from ledger.tasks where tenant = %s", replica.tenant
        )
        assert (until - before).total_seconds() >= seconds
        # Half of its age, which grew meanwhile.
        assert (until - after).total_seconds() <= seconds + (after - before).total_seconds() / 2


async def test_an_orderly_release_is_not_a_lost_worker(replica: Checkpoint) -> None:
    task = await replica.create()
    for _ in range(6):
        await replica.requeue(await replica.claim(task.task_id), reason="WORKER_DRAINED")
    assert (await replica.get(task.task_id)).state == task_pb2.TASK_STATE_QUEUED


async def test_a_task_may_ask_to_time_out_when_its_lease_is_lost(replica: Checkpoint) -> None:
    policy = task_pb2.TaskPolicy(on_lease_lost=task_pb2.LEASE_LOST_POLICY_TIME_OUT)
    owner = await replica.claim((await replica.create(policy=policy)).task_id)
    await replica.requeue(owner)
    ended = await replica.get(owner.task.task_id)
    assert (ended.state, ended.reason) == (TIMED_OUT, "LEASE_EXPIRED")


async def test_an_ending_in_progress_is_not_offered_again(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(intent())
    await replica.cancel(owner.task.task_id)
    (ending,) = await endings(replica)
    await replica.claim(ending.task_id, holder="coordinator/1")  # it opens the task, and is at its tools now
    assert await endings(replica) == []
