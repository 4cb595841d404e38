"""Operators' waits in the ledger: they begin between two claims, and one answer or the deadline ends them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure.domain.errors import InvalidRequest, StaleEpoch, WrongState
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.wire.common import duration, moment, timestamp
from tests.conformance.test_ledger_operators import ask, close_out, requeue
from tests.conformance.test_ledger_waits import in_state, say
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, entry, kinds, reserve, words

pytestmark = pytest.mark.server
QUEUED, RUNNING, FAILED = task_pb2.TASK_STATE_QUEUED, task_pb2.TASK_STATE_RUNNING, task_pb2.TASK_STATE_FAILED
WAITING_USER, TIMED_OUT = task_pb2.TASK_STATE_WAITING_USER, task_pb2.TASK_STATE_TIMED_OUT
RETRY_SCHEDULED, CANCELLED = task_pb2.TASK_STATE_RETRY_SCHEDULED, task_pb2.TASK_STATE_CANCELLED


async def begin(replica: Any, task_id: str, seconds: float = 3600.0, request_id: str = "", **more: Any) -> Any:
    until = timestamp(datetime.now(UTC) + timedelta(seconds=seconds))
    wait = ledger_pb2.OperatorRequest.BeginWait(question="the supplier's reply", until=until, **more)
    return await ask(replica, task_id, request_id, begin_wait=wait)


async def test_a_queued_task_waits_at_once_and_continues(replica: Checkpoint) -> None:
    task = await begin(replica, (await replica.create()).task_id)
    assert (task.state, task.reason, task.message) == (WAITING_USER, "OPERATOR_WAIT", "the provider is back")
    assert (task.wait.kind, task.wait.question) == (task_pb2.WAIT_KIND_OPERATOR, "the supplier's reply")
    assert (list(task.wait.options), task.wait.call_id) == (["continue"], "")
    assert timedelta(seconds=3590) < moment(task.wait.deadline_time) - moment(task.wait.begin_time)
    for refused in ({"decision": "approve"}, {"reply": "go"}):
        with pytest.raises(InvalidRequest):
            await say(replica, task, **refused)
    assert (await say(replica, task, decision="continue", comment="it came")).state == QUEUED
    entries = await replica.entries(task.task_id)
    assert kinds(entries)[-4:] == ["operator_request", "QUEUED>WAITING_USER", "wait_resolution", "WAITING_USER>QUEUED"]
    assert entries[-3].actor == "olga"
    owner = await replica.claim(task.task_id)
    assert (await owner.commit(words())).state == RUNNING


async def test_a_running_task_waits_when_its_claim_is_released(replica: Checkpoint) -> None:
    """RUNNING if and only if held: no worker can take the task between its release and its wait."""
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(reserve=reserve())
    task = await begin(replica, owner.task.task_id)
    assert (task.state, task.HasField("wait")) == (RUNNING, False)
    await replica.requeue(owner, "OPERATOR_TRANSFER")
    task = await replica.get(task.task_id)
    assert (task.state, task.owner, task.wait.question) == (WAITING_USER, "", "the supplier's reply")
    assert kinds(await replica.entries(task.task_id))[-2:] == ["RUNNING>QUEUED", "QUEUED>WAITING_USER"]
    with pytest.raises(StaleEpoch):
        await owner.commit(words())
    assert (await say(replica, task, decision="continue")).state == QUEUED
    later = await replica.claim(task.task_id)
    await replica.requeue(later)
    assert (await replica.get(task.task_id)).state == QUEUED  # the wait begins once


async def test_a_call_that_is_open_stays_open_over_the_wait(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(
        words(), entry(1, tool_intent=ledger_pb2.ToolIntent(call_id="1.0", tool="t", arguments_json="{}"))
    )
    await begin(replica, owner.task.task_id)
    await replica.requeue(owner, "OPERATOR_TRANSFER")
    task = await replica.get(owner.task.task_id)
    assert (await say(replica, task, decision="continue")).state == QUEUED
    again = await replica.claim(task.task_id)
    made = tool_pb2.Outcome(status=tool_pb2.OUTCOME_STATUS_SUCCEEDED, content="done")
    outcome = ledger_pb2.ToolOutcome(call_id="1.0", outcome=made)
    assert (await again.commit(entry(1, tool_outcome=outcome))).state == RUNNING


async def test_a_retry_becomes_a_wait(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    parked = pb.Transition(to_state=RETRY_SCHEDULED, reason="MODEL_UNAVAILABLE", retry_delay=duration(600))
    await owner.commit(transition=parked)
    assert (await begin(replica, owner.task.task_id)).state == WAITING_USER


@pytest.mark.parametrize(
    ("at_deadline", "state"),
    [(task_pb2.WAIT_DEADLINE_POLICY_GO_ON, QUEUED), (task_pb2.WAIT_DEADLINE_POLICY_TIME_OUT, TIMED_OUT)],
)
async def test_the_operator_chooses_the_deadline_policy(replica: Checkpoint, at_deadline: Any, state: Any) -> None:
    """The policy of the task has another action for waits for a person, which does not count here."""
    policy = task_pb2.TaskPolicy()
    policy.timeouts.wait_person.action = task_pb2.TIMEOUT_ACTION_FAIL
    policy.timeouts.wait_person.after.FromSeconds(86_400)
    task = await begin(replica, (await replica.create(policy=policy)).task_id, 5.0, at_deadline=at_deadline)
    assert task.state == WAITING_USER
    assert (await in_state(replica, task.task_id, state)).HasField("wait") is False


@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_task_that_waited_before_its_start_still_starts_later(replica: Checkpoint, is_answered: bool) -> None:
    start, policy = timestamp(datetime.now(UTC) + timedelta(hours=2)), task_pb2.TaskPolicy()
    policy.timeouts.queued.after.FromSeconds(600)
    task = await replica.create(start_time=start, policy=policy)
    times = "select starts_at, queued_until, queued_at from ledger.tasks where task_id = %s"
    before = await replica.query(times, task.task_id)
    task = await begin(replica, task.task_id, 3600.0 if is_answered else 5.0)
    assert task.state == WAITING_USER
    if is_answered:
        await say(replica, task, decision="continue")
    await in_state(replica, task.task_id, QUEUED)
    assert await replica.query(times, task.task_id) == before
    assert before[0][0] == moment(start)
    claimable = await replica.stub.ListClaimable(
        pb.ListClaimableRequest(limit=10, tenants=[replica.tenant]), timeout=TIMEOUT_SECONDS
    )
    assert not claimable.offers


async def test_a_wait_whose_deadline_has_passed_never_begins(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await begin(replica, owner.task.task_id)
    passed = ledger_pb2.OperatorRequest.BeginWait(question="q", until=timestamp(datetime.now(UTC)))
    stored = ledger_pb2.OperatorRequest(reason="r", begin_wait=passed).SerializeToString()
    statement = "update ledger.tasks set operator_wait = %s where task_id = %s"
    await replica.query(statement, stored, owner.task.task_id)
    await replica.requeue(owner)
    assert (await replica.get(owner.task.task_id)).state == QUEUED


async def test_a_task_that_waits_or_ends_gets_no_operators_wait(replica: Checkpoint) -> None:
    waiting = await begin(replica, (await replica.create()).task_id)
    with pytest.raises(WrongState):
        await begin(replica, waiting.task_id)
    ended = await replica.create()
    await replica.cancel(ended.task_id)
    with pytest.raises(WrongState):
        await begin(replica, ended.task_id)
    owner = await replica.claim((await replica.create()).task_id)
    await replica.cancel(owner.task.task_id)
    with pytest.raises(WrongState):
        await begin(replica, owner.task.task_id)
    for seconds in (-5.0, 32 * 86_400.0):
        with pytest.raises(InvalidRequest, match="until"):
            await begin(replica, (await replica.create()).task_id, seconds)


async def test_an_end_wins_over_a_wait_that_has_not_begun(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await begin(replica, owner.task.task_id)
    await replica.cancel(owner.task.task_id)
    await replica.requeue(owner, "OPERATOR_TRANSFER")
    assert (await in_state(replica, owner.task.task_id, CANCELLED)).HasField("wait") is False
    assert (await requeue(replica, owner.task.task_id)).state == QUEUED  # the next attempt knows nothing of the wait


async def test_a_repeat_of_the_request_is_one_wait(replica: Checkpoint) -> None:
    task_id = (await replica.create()).task_id
    until = timestamp(datetime.now(UTC) + timedelta(hours=1))
    wait = ledger_pb2.OperatorRequest.BeginWait(question="q", until=until)
    first = await ask(replica, task_id, "once", begin_wait=wait)
    assert (await say(replica, first, decision="continue")).state == QUEUED
    assert (await ask(replica, task_id, "once", begin_wait=wait)).state == QUEUED
    assert kinds(await replica.entries(task_id)).count("operator_request") == 1


async def test_a_waiting_task_is_closed_out(replica: Checkpoint) -> None:
    task = await begin(replica, (await replica.create()).task_id)
    assert (await close_out(replica, task.task_id, FAILED)).state == FAILED


async def test_only_the_ledger_begins_an_operators_wait(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    wait = task_pb2.Wait(kind=task_pb2.WAIT_KIND_OPERATOR, question="q", options=["continue"])
    with pytest.raises(InvalidRequest, match="BeginWait"):
        await owner.commit(transition=pb.Transition(to_state=WAITING_USER, reason="OPERATOR_WAIT", wait=wait))
