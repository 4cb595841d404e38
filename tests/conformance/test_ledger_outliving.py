"""Model attempts that outlive their worker: they stay open for the next owner, who settles them."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.domain.errors import InvalidRequest, NotFound
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2
from tests.support.fix_checkpoint import Checkpoint, answer, entry, kinds, reserve, words

LIMITS = task_pb2.Limits(max_tokens=1000)
STAYS_OPEN = ["model_attempt", "RUNNING>QUEUED", "QUEUED>RUNNING"]


async def reserved(replica: Any, *, outlives: bool = True) -> Any:
    """An owner with an open model attempt."""
    task = await replica.create(limits=LIMITS)
    owner = await replica.claim(task.task_id, joins=True)
    await owner.commit(reserve=reserve(outlives=outlives))
    return owner


def give_back() -> Any:
    return pb.Transition(to_state=task_pb2.TASK_STATE_QUEUED, reason="WORKER_DRAINED")


async def leave(replica: Any, owner: Any, how: str) -> None:
    """The ways on which an owner loses its claim and the task goes on."""
    match how:
        case "requeue":
            assert await replica.requeue(owner)
        case "drain":
            await owner.commit(transition=give_back())
        case "takeover":
            pass


@pytest.mark.parametrize("how", ["requeue", "drain", "takeover"])
async def test_the_next_owner_settles_an_outliving_attempt(replica: Checkpoint, how: str) -> None:
    owner = await reserved(replica)
    task_id = owner.task.task_id
    await leave(replica, owner, how)
    assert (await replica.get(task_id)).budget.reserved_tokens == 200
    joiner = await replica.claim(task_id, "worker-2", joins=True)
    assert kinds(joiner.entries)[-3:] == STAYS_OPEN
    assert joiner.entries[-3].body.model_attempt.outlives_worker
    await joiner.commit(answer(tokens=30))
    task = await replica.get(task_id)
    assert (task.budget.used_tokens, task.budget.reserved_tokens) == (30, 0)
    ((bills, lost),) = await replica.query(
        "select count(*), bool_or(lost) from ledger.token_usage where task_id = %s", task_id
    )
    assert (bills, lost) == (1, False)


@pytest.mark.parametrize("how", ["requeue", "drain", "takeover"])
async def test_an_owner_that_cannot_join_loses_the_attempt(replica: Checkpoint, how: str) -> None:
    owner = await reserved(replica)
    await leave(replica, owner, how)
    other = await replica.claim(owner.task.task_id, "worker-2")
    assert "attempt_lost" in kinds(other.entries)
    task = await replica.get(owner.task.task_id)
    assert (task.budget.used_tokens, task.budget.reserved_tokens) == (100, 0)


@pytest.mark.parametrize("how", ["requeue", "drain", "takeover"])
async def test_a_call_of_the_worker_itself_is_lost_as_ever(replica: Checkpoint, how: str) -> None:
    owner = await reserved(replica, outlives=False)
    await leave(replica, owner, how)
    other = await replica.claim(owner.task.task_id, "worker-2", joins=True)
    assert "attempt_lost" in kinds(other.entries)
    assert (await replica.get(owner.task.task_id)).budget.reserved_tokens == 0


async def test_a_repeated_open_keeps_the_attempt_to_join(replica: Checkpoint) -> None:
    owner = await reserved(replica)
    again = await replica.open(owner.token, owner.claims, joins=True)
    assert kinds(again.entries)[-1] == "model_attempt"
    await again.commit(answer(tokens=30))
    without = await replica.open(owner.token, owner.claims)
    assert "attempt_lost" not in kinds(without.entries)


async def test_a_cancel_while_queued_settles_the_attempt(replica: Checkpoint) -> None:
    """The bill is the input until the model runner reports the usage under the claim that began the call."""
    owner = await reserved(replica)
    task_id = owner.task.task_id
    assert await replica.requeue(owner, output_tokens=20)
    await replica.cancel(task_id)
    entries = await replica.entries(task_id)
    assert kinds(entries)[-3:] == ["cancel_request", "attempt_lost", "QUEUED>CANCELLED"]
    assert entries[-1].body.transition.budget.used_tokens == 100
    usage = task_pb2.TokenUsage(input_tokens=90, output_tokens=70)
    report = pb.ReportUsageRequest(
        token=owner.token, step=1, attempt_number=1, usage=usage, provider_request_id="req_1"
    )
    await replica.stub.ReportUsage(report, timeout=60)
    task = await replica.get(task_id)
    assert (task.budget.used_tokens, task.budget.reserved_tokens) == (160, 0)


async def test_a_later_claim_may_report_a_call_that_it_began(replica: Checkpoint) -> None:
    """The owner that reserved died before its request; the next owner's began the call. Earlier claims never did."""
    first = await replica.claim((await replica.create(limits=LIMITS)).task_id, joins=True)
    task_id = first.task.task_id
    assert await replica.requeue(first)
    owner = await replica.claim(task_id, "worker-2", joins=True)
    await owner.commit(reserve=reserve(outlives=True))
    assert await replica.requeue(owner)
    joiner = await replica.claim(task_id, "worker-3", joins=True)
    assert await replica.requeue(joiner)
    await replica.cancel(task_id)
    usage = task_pb2.TokenUsage(input_tokens=90, output_tokens=70)
    report = pb.ReportUsageRequest(token=first.token, step=1, attempt_number=1, usage=usage)
    with pytest.raises(NotFound):
        await replica.stub.ReportUsage(report, timeout=60)
    report.token.CopyFrom(joiner.token)
    await replica.stub.ReportUsage(report, timeout=60)
    assert (await replica.get(task_id)).budget.used_tokens == 160


async def test_a_requeue_that_ends_the_task_bills_what_was_reported(replica: Checkpoint) -> None:
    owner = await reserved(replica)
    await replica.cancel(owner.task.task_id)
    assert await replica.requeue(owner, output_tokens=20)
    assert kinds(await replica.entries(owner.task.task_id))[-3:] == [
        "RUNNING>QUEUED",
        "attempt_lost",
        "QUEUED>CANCELLED",
    ]
    assert (await replica.get(owner.task.task_id)).budget.used_tokens == 120


@pytest.mark.parametrize("state", [task_pb2.TASK_STATE_CANCELLED, task_pb2.TASK_STATE_RETRY_SCHEDULED])
async def test_no_attempt_is_open_beyond_queued_and_running(replica: Checkpoint, state: Any) -> None:
    owner = await reserved(replica)
    transition = pb.Transition(to_state=state, reason="LEAVES")
    if state == task_pb2.TASK_STATE_RETRY_SCHEDULED:
        transition.retry_delay.FromSeconds(3600)
    await owner.commit(transition=transition)
    assert kinds(await replica.entries(owner.task.task_id))[-2] == "attempt_lost"
    assert (await replica.get(owner.task.task_id)).budget.reserved_tokens == 0


async def test_a_drain_may_settle_the_attempt_itself(replica: Checkpoint) -> None:
    owner = await reserved(replica)
    failure = ledger_pb2.ModelFailure(attempt_number=1, error_class="INTERRUPTED", message="stopped", retryable=True)
    await owner.commit(entry(1, model_failure=failure), transition=give_back())
    joiner = await replica.claim(owner.task.task_id, joins=True)
    assert "attempt_lost" not in kinds(joiner.entries)
    assert (await replica.get(owner.task.task_id)).budget.reserved_tokens == 0


async def test_an_open_attempt_forbids_a_second_one(replica: Checkpoint) -> None:
    owner = await reserved(replica)
    assert await replica.requeue(owner)
    joiner = await replica.claim(owner.task.task_id, joins=True)
    with pytest.raises(InvalidRequest):
        await joiner.commit(reserve=reserve(attempt=2))
    await joiner.commit(words("a message while the call runs"), answer(tokens=5), reserve=reserve(step=2))
