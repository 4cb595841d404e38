"""Laws of what operators do to tasks in the ledger: a next attempt by one request only, an end with their reason."""

from __future__ import annotations

import base64
import re
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from services.checkpoint.queries import QUERIES
from tenure.domain.errors import AlreadyExists, BudgetExhausted, InvalidRequest, StaleEpoch, WrongState
from tenure.domain.fold import fold
from tenure.domain.next_action import CallModel, next_action
from tenure.runtime.store.postgres import BoundedConnection, send_int8
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.wire.ledger import entries_to_domain
from tests.support.fix_checkpoint import (
    TIMEOUT_SECONDS,
    Checkpoint,
    MakeCheckpoint,
    answer,
    entry,
    kinds,
    reserve,
    words,
)

pytestmark = pytest.mark.server
QUEUED, RUNNING, FAILED = task_pb2.TASK_STATE_QUEUED, task_pb2.TASK_STATE_RUNNING, task_pb2.TASK_STATE_FAILED
SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED
CANCELLED, COST_EXCEEDED = task_pb2.TASK_STATE_CANCELLED, task_pb2.TASK_STATE_COST_EXCEEDED
Requeue, CloseOut = ledger_pb2.OperatorRequest.Requeue, ledger_pb2.OperatorRequest.CloseOut


async def ask(
    replica: Any, task_id: Any, request_id: str = "", reason: str = "the provider is back", **act: Any
) -> Any:
    request = pb.AppendForeignRequest(
        task_id=task_id,
        request_id=request_id or str(uuid4()),
        actor="olga",
        operator_request=ledger_pb2.OperatorRequest(reason=reason, **act),
    )
    return (await replica.stub.AppendForeign(request, timeout=TIMEOUT_SECONDS)).task


async def requeue(replica: Any, task_id: Any, request_id: str = "", **extras: Any) -> Any:
    return await ask(replica, task_id, request_id, requeue=Requeue(**extras))


async def close_out(replica: Any, task_id: Any, to_state: Any = FAILED, result: str = "", **more: Any) -> Any:
    return await ask(replica, task_id, close_out=CloseOut(to_state=to_state, result=result), **more)


async def ended(replica: Any, state: Any = FAILED, **spec: Any) -> Any:
    """A task that ended like this in its first step, after a model's answer and a call of unknown fate."""
    owner = await replica.claim((await replica.create(**spec)).task_id)
    await owner.commit(reserve=reserve())
    intent = ledger_pb2.ToolIntent(call_id="1.0", tool="t", arguments_json="{}")
    await owner.commit(answer(text="so far"), entry(1, tool_intent=intent))
    in_doubt = tool_pb2.Outcome(status=tool_pb2.OUTCOME_STATUS_IN_DOUBT, content="unknown")
    outcome = ledger_pb2.ToolOutcome(call_id="1.0", outcome=in_doubt)
    end = pb.Transition(to_state=state, reason="MODEL_UNAVAILABLE", message="gone", result="so far")
    await owner.commit(entry(1, tool_outcome=outcome), transition=end)
    return owner


@pytest.mark.parametrize("state", ["FAILED", "TIMED_OUT", "CANCELLED", "COST_EXCEEDED"])
async def test_an_ended_task_begins_its_next_attempt(replica: Checkpoint, state: str) -> None:
    owner = await ended(replica, task_pb2.TaskState.Value(f"TASK_STATE_{state}"))
    before = await replica.get(owner.task.task_id)
    task = await requeue(replica, owner.task.task_id)
    assert (task.state, task.attempt, task.reason, task.message) == (
        QUEUED,
        2,
        "OPERATOR_REQUEUE",
        "the provider is back",
    )
    assert (task.result, task.HasField("end_time"), task.cancel_requested) == ("", False, False)
    assert (task.step, task.usage, task.budget.used_tokens) == (before.step, before.usage, before.budget.used_tokens)
    *_, wanted, moved = await replica.entries(task.task_id)
    assert kinds([wanted, moved]) == ["operator_request", f"{state}>QUEUED"]
    assert [(one.attempt, one.actor, one.epoch) for one in (wanted, moved)] == [(2, "olga", 0)] * 2


async def test_the_next_attempt_continues_under_a_higher_epoch(
    replica: Checkpoint,
) -> None:
    stale = await ended(replica)
    await requeue(replica, stale.task.task_id)
    with pytest.raises(StaleEpoch):
        await stale.commit(words())
    owner = await replica.claim(stale.task.task_id, "worker-2")
    point = fold(entries_to_domain(owner.entries))
    assert point.outcomes["1.0"].content == "unknown"
    assert next_action(point) == CallModel(2, 1)
    await owner.commit(reserve=reserve(step=2))
    await owner.commit(answer(step=2))
    await owner.end(result="all")
    task = await replica.get(stale.task.task_id)
    assert (task.state, task.attempt, task.result, task.claim_count) == (task_pb2.TASK_STATE_SUCCEEDED, 2, "all", 2)


async def test_a_next_attempt_has_its_own_timeout_and_no_lost_workers(replica: Checkpoint) -> None:
    limits = task_pb2.Limits()
    limits.timeout.FromSeconds(3600)
    owner = await ended(replica, limits=limits)
    task_id = owner.task.task_id
    await replica.query(
        "update ledger.tasks set deadline_at = now(), deaths = 4, dead_owners = '{w}' where tenant = %s", replica.tenant
    )
    task = await requeue(replica, task_id)
    left = task.deadline_time.ToNanoseconds() - task.update_time.ToNanoseconds()
    assert left == 3600 * 10**9
    assert await replica.query("select deaths, dead_owners from ledger.tasks where tenant = %s", replica.tenant) == [
        (0, [])
    ]


async def test_a_cancelled_task_that_is_requeued_is_no_longer_to_end(replica: Checkpoint) -> None:
    task_id = (await replica.create()).task_id
    await replica.cancel(task_id, "c-1")
    await requeue(replica, task_id)
    assert (await replica.cancel(task_id, "c-1")).state == QUEUED  # a repeat of what was done before
    owner = await replica.claim(task_id)
    assert not owner.task.cancel_requested
    assert (await replica.cancel(task_id, "c-2")).cancel_requested


async def test_a_requeue_is_done_once_per_request_id(replica: Checkpoint) -> None:
    task_id = (await ended(replica)).task.task_id
    first = await requeue(replica, task_id, "r-1", extra_tokens=5)
    assert await requeue(replica, task_id, "r-1", extra_tokens=5) == first
    with pytest.raises(AlreadyExists):
        await requeue(replica, task_id, "r-1", extra_tokens=6)


async def test_only_failed_or_retry_scheduled_tasks_are_requeued(replica: Checkpoint) -> None:
    queued = (await replica.create()).task_id
    running = (await replica.claim((await replica.create()).task_id)).task.task_id
    succeeded = await replica.claim((await replica.create()).task_id)
    await succeeded.end()
    for task_id, state in ((queued, "QUEUED"), (running, "RUNNING"), (succeeded.task.task_id, "SUCCEEDED")):
        with pytest.raises(WrongState) as refused:
            await requeue(replica, task_id)
        assert refused.value.metadata == {"state": state}
        assert "operator_request" not in kinds(await replica.entries(task_id))


async def test_a_retry_scheduled_task_is_queued_in_the_same_attempt(
    replica: Checkpoint,
) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    transition = pb.Transition(to_state=task_pb2.TASK_STATE_RETRY_SCHEDULED, reason="MODEL_UNAVAILABLE")
    transition.retry_delay.FromSeconds(600)
    await owner.commit(transition=transition)
    task = await requeue(replica, owner.task.task_id)
    assert (task.state, task.attempt, task.HasField("next_retry_time")) == (QUEUED, 1, False)


async def test_a_task_without_budget_is_requeued_only_with_more(replica: Checkpoint) -> None:
    owner = await ended(replica, COST_EXCEEDED, limits=task_pb2.Limits(max_tokens=1000, max_steps=1))
    task_id = owner.task.task_id
    with pytest.raises(BudgetExhausted, match="steps"):
        await requeue(replica, task_id)
    await replica.query("update ledger.budgets set used_tokens = 1000 where tenant = %s", replica.tenant)
    with pytest.raises(BudgetExhausted, match="tokens"):
        await requeue(replica, task_id, extra_steps=1)
    task = await requeue(replica, task_id, extra_tokens=500, extra_steps=1)
    assert task.budget.max_tokens == 1500
    next_owner = await replica.claim(task_id)
    response = await next_owner.commit(reserve=reserve(step=2))
    assert response.reserve.HasField("granted")
    denied = await next_owner.commit(answer(step=2), reserve=reserve(step=3))
    assert denied.reserve.denied.reason == "STEP_LIMIT"


async def test_sql_cannot_change_an_ended_task(replica: Checkpoint) -> None:
    owner = await ended(replica)
    for change in (
        "state = 'QUEUED', ended_at = null",
        "state = 'QUEUED', ended_at = null, attempt = attempt + 1",  # its result would be that of the attempt before
        "state = 'QUEUED', ended_at = null, attempt = attempt + 2, result = ''",
        "attempt = attempt + 1",
        "result = 'another'",
        "reason = 'another'",
    ):
        with pytest.raises(psycopg.errors.CheckViolation):
            await replica.query(f"update ledger.tasks set {change} where task_id = %s", owner.task.task_id)
    task = await replica.create()
    with pytest.raises(psycopg.errors.CheckViolation):
        await replica.query("update ledger.tasks set attempt = 2 where task_id = %s", task.task_id)
    assert (await replica.get(owner.task.task_id)).state == FAILED


async def test_a_queued_task_is_closed_out_with_the_operators_message(replica: Checkpoint) -> None:
    task_id = (await replica.create()).task_id
    task = await close_out(replica, task_id, reason="superseded", result="see ticket 7")
    seen = (task.state, task.reason, task.message, task.result)
    assert seen == (FAILED, "OPERATOR_CLOSE_OUT", "superseded", "see ticket 7")
    entries = await replica.entries(task_id)
    assert kinds(entries)[-2:] == ["operator_request", "QUEUED>FAILED"]
    assert entries[-1].actor == "olga"


async def test_a_running_tasks_owner_carries_out_the_close_out(
    replica: Checkpoint,
) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    task = await close_out(replica, owner.task.task_id, result="ours")
    assert (task.state, task.cancel_requested) == (RUNNING, True)
    assert (await owner.commit(words())).cancel_requested
    assert (await owner.end(CANCELLED, result="half")).state == FAILED
    assert (await replica.get(owner.task.task_id)).result == "ours"


async def test_the_newest_request_for_an_end_counts(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await close_out(replica, owner.task.task_id, result="ours")
    await replica.cancel(owner.task.task_id)
    await owner.end(FAILED, result="half")
    task = await replica.get(owner.task.task_id)
    assert (task.state, task.reason, task.result) == (CANCELLED, "CANCEL_REQUESTED", "half")


async def test_an_operator_closes_a_task_out_as_succeeded(replica: Checkpoint) -> None:
    queued = (await replica.create()).task_id
    waiting = await replica.claim((await replica.create()).task_id)
    await waiting.commit(transition=pb.Transition(to_state=task_pb2.TASK_STATE_WAITING_USER, reason="WAITS"))
    running = await replica.claim((await replica.create()).task_id)
    for task_id in (queued, waiting.task.task_id, running.task.task_id):
        await close_out(replica, task_id, SUCCEEDED, "see ticket 7", reason="done by hand")
    assert (await running.end(FAILED, result="half")).state == SUCCEEDED
    for task_id in (queued, waiting.task.task_id, running.task.task_id):
        task = await replica.get(task_id)
        seen = (task.state, task.reason, task.message, task.result)
        assert seen == (SUCCEEDED, "OPERATOR_CLOSE_OUT", "done by hand", "see ticket 7")
    assert kinds(await replica.entries(waiting.task.task_id))[-2:] == ["operator_request", "WAITING_USER>SUCCEEDED"]
    with pytest.raises(InvalidRequest, match="result"):
        await close_out(replica, (await replica.create()).task_id, SUCCEEDED)


async def test_a_task_with_a_schema_succeeds_only_with_json(replica: Checkpoint) -> None:
    task_id = (await replica.create(result_schema_json='{"type": "object"}')).task_id
    with pytest.raises(InvalidRequest, match="result"):
        await close_out(replica, task_id, SUCCEEDED, "see ticket 7")
    task = await close_out(replica, task_id, SUCCEEDED, '{"ticket": 7}')
    assert (task.state, task.result, task.result_json) == (SUCCEEDED, '{"ticket": 7}', '{"ticket": 7}')


async def test_a_close_out_has_four_states_and_fails_after_the_end(replica: Checkpoint) -> None:
    owner = await ended(replica)
    with pytest.raises(WrongState):
        await close_out(replica, owner.task.task_id)
    task = await replica.create()
    for state in (COST_EXCEEDED, QUEUED):
        with pytest.raises(InvalidRequest):
            await close_out(replica, task.task_id, state)
    with pytest.raises(InvalidRequest):
        await close_out(replica, task.task_id, reason="")


async def aging(replica: Any, **options: Any) -> Any:
    """(page of ids, token)"""
    page = await replica.stub.ListAging(pb.ListAgingRequest(**options), timeout=TIMEOUT_SECONDS)
    return [task.task_id for task in page.tasks], page.next_page_token


async def test_live_tasks_are_listed_by_age_and_state_in_pages(replica: Checkpoint) -> None:
    first, running, waiting, done = [(await replica.create()).task_id for _ in range(4)]
    await replica.claim(running)
    owner = await replica.claim(waiting)
    await owner.commit(transition=pb.Transition(to_state=task_pb2.TASK_STATE_WAITING_USER, reason="WAITS"))
    await replica.cancel(done)
    assert await aging(replica) == ([first, running, waiting], "")
    assert await aging(replica, states=[RUNNING, QUEUED]) == ([first, running], "")
    seen, token = await aging(replica, page_size=2)
    rest, end = await aging(replica, page_size=2, page_token=token)
    assert (seen + rest, end) == ([first, running, waiting], "")
    for text in ("none of theirs", f"soon {first}"):
        with pytest.raises(InvalidRequest, match="page_token"):
            await aging(replica, page_token=base64.urlsafe_b64encode(text.encode()).decode())
    with pytest.raises(InvalidRequest):
        await aging(replica, states=[FAILED])


async def test_idle_held_tasks_are_listed(replica: Checkpoint) -> None:
    quiet, busy = sorted([(await replica.create()).task_id for _ in range(2)])
    for task_id in (quiet, busy):
        await replica.claim(task_id)
    await replica.query("update ledger.tasks set updated_at = now() - interval '1 h' where task_id = %s", quiet)
    ten_minutes = pb.ListAgingRequest().idle
    ten_minutes.FromSeconds(600)
    held = task_pb2.AGING_VIEW_HELD
    assert await aging(replica, view=held) == ([quiet, busy], "")
    assert await aging(replica, view=held, idle=ten_minutes) == ([quiet], "")


@pytest.mark.parametrize(
    ("statement", "index", "parameters"),
    [
        ("aging_oldest", "tasks_states", {"states": ["QUEUED", "RUNNING"], "after": "-infinity"}),
        ("aging_held", "tasks_held", {"idle_seconds": 60.0}),
    ],
)
async def test_each_view_has_its_index(checkpoint: MakeCheckpoint, statement: str, index: str, parameters: Any) -> None:
    replica = await checkpoint()
    await replica.create()
    first = "00000000-0000-0000-0000-000000000000"
    values = {"tenant": replica.tenant, "after_task_id": first, "limit": 10, **parameters}
    async with await BoundedConnection.connect(replica.dsn, autocommit=True) as postgres:
        await postgres.execute("set search_path to ledger")
        await postgres.execute("set enable_seqscan to off")  # as in the service
        send_int8(postgres)
        plan = await (await postgres.execute(b"explain " + getattr(QUERIES, statement), values)).fetchall()
    text = "\n".join(line for (line,) in plan)
    assert re.search(f"Index Scan (Backward )?using {index}", text), text
    assert "Seq Scan" not in text
