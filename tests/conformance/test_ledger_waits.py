"""Waits in the ledger: begun with an owner's move, answered once whatever is repeated or races, gone with the task."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from tenure.domain.entries import ToolOutcome
from tenure.domain.errors import AlreadyExists, InvalidRequest, WrongState
from tenure.domain.fold import fold
from tenure.domain.waits import call_digest
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.wire.common import duration, moment
from tenure.wire.ledger import entries_to_domain
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, answer, entry, kinds, reserve

QUEUED = task_pb2.TASK_STATE_QUEUED
WAITING_USER = task_pb2.TASK_STATE_WAITING_USER
TIMED_OUT = task_pb2.TASK_STATE_TIMED_OUT
CANCELLED = task_pb2.TASK_STATE_CANCELLED


def intent(call_id: str = "1.0", tool: str = "request_approval") -> Any:
    intent = ledger_pb2.ToolIntent(call_id=call_id, tool_use_id=f"use-{call_id}", tool=tool, arguments_json='{"a": 1}')
    return entry(1, tool_intent=intent)


def approval(call_id: str = "1.0", **fields: Any) -> Any:
    values = {"kind": task_pb2.WAIT_KIND_APPROVAL, "question": "Ship it?", "options": ["approve", "deny"]}
    return task_pb2.Wait(call_id=call_id, **{**values, **fields})


def leave_of_a_person(call_id: str = "1.0") -> Any:
    return approval(
        call_id,
        kind=task_pb2.WAIT_KIND_TOOL_APPROVAL,
        options=["allow", "deny", "edit"],
        tool="pay",
        arguments_json='{"a": 1}',
    )


def move(wait: Any, timeout_seconds: float = 3600.0) -> Any:
    return pb.Transition(
        to_state=WAITING_USER, reason="APPROVAL_REQUESTED", wait=wait, wait_timeout=duration(timeout_seconds)
    )


async def waiting(
    replica: Any, wait: Any = None, *, intents: Any = ("1.0",), timeout_seconds: float = 3600.0, **spec: Any
) -> Any:
    """A task that waits, as its owner left it."""
    owner = await replica.claim((await replica.create(**spec)).task_id)
    await owner.commit(reserve=reserve())
    facts = [answer(text="so far"), *(intent(call) for call in intents)]
    response = await owner.commit(*facts, transition=move(wait or approval(), timeout_seconds))
    assert response.state == WAITING_USER
    return await replica.get(owner.task.task_id)


async def say(replica: Any, task: Any, request_id: str = "", actor: str = "bob", **said: Any) -> Any:
    request = pb.AppendForeignRequest(
        task_id=task.task_id,
        request_id=request_id or str(uuid4()),
        actor=actor,
        wait_answer=pb.WaitAnswer(**{"wait_id": task.wait.wait_id, "call_digest": task.wait.call_digest, **said}),
    )
    return (await replica.stub.AppendForeign(request, timeout=TIMEOUT_SECONDS)).task


async def in_state(replica: Any, task_id: Any, state: Any) -> Any:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (task := await replica.get(task_id)).state != state:
            await asyncio.sleep(0.02)
        return task


async def test_a_waiting_task_has_a_wait_and_no_owner(replica: Checkpoint) -> None:
    task = await waiting(replica, timeout_seconds=60)
    assert (task.state, task.owner, task.wait.question) == (WAITING_USER, "", "Ship it?")
    assert list(task.wait.options) == ["approve", "deny"]
    assert moment(task.wait.deadline_time) - moment(task.wait.begin_time) == timedelta(seconds=60)
    begun = (await replica.entries(task.task_id))[-1].body.transition
    assert begun.wait == task.wait
    offers = await replica.stub.ListClaimable(
        pb.ListClaimableRequest(limit=10, tenants=[replica.tenant]), timeout=TIMEOUT_SECONDS
    )
    assert not offers.offers
    listed = await replica.stub.ListTasks(tasks_pb.ListTasksRequest(), timeout=TIMEOUT_SECONDS)
    assert listed.tasks[0].wait == task.wait


async def test_an_answer_becomes_the_outcome_and_queues_the_task(
    replica: Checkpoint,
) -> None:
    task = await waiting(replica)
    resumed = await say(replica, task, decision="approve", comment="go ahead")
    assert (resumed.state, resumed.reason, resumed.HasField("wait")) == (QUEUED, "WAIT_RESOLVED", False)
    entries = await replica.entries(task.task_id)
    assert kinds(entries)[-3:] == ["wait_resolution", "tool_outcome", "WAITING_USER>QUEUED"]
    assert {one.actor for one in entries[-3:]} == {"bob"}
    decoded = json.loads(entries[-2].body.tool_outcome.outcome.content)
    assert (decoded["decision"], decoded["comment"], decoded["answered_by"]) == ("approve", "go ahead", "bob")
    assert decoded["answered_at"].startswith("20")
    owner = await replica.claim(task.task_id)
    point = fold(entries_to_domain(owner.entries))
    assert point.open_intents == []
    assert point.pending_content[0]["tool_use_id"] == "use-1.0"
    await owner.commit(reserve=reserve(step=2))


async def test_of_two_concurrent_approvals_one_is_refused(replica: Checkpoint, other_replica: Checkpoint) -> None:
    for _ in range(5):
        task = await waiting(replica)
        said = [say(side, task, decision=word) for side in (replica, other_replica) for word in ("approve", "deny")]
        results = await asyncio.gather(*said, return_exceptions=True)
        refused = [one for one in results if isinstance(one, WrongState)]
        assert [one.reason for one in refused] == ["WAIT_OVER"] * 3
        assert kinds(await replica.entries(task.task_id)).count("wait_resolution") == 1


async def test_a_repeated_answer_is_answered_again(
    replica: Checkpoint,
) -> None:
    task = await waiting(replica)
    results = await asyncio.gather(*(say(replica, task, "r-1", decision="approve") for _ in range(5)))
    assert {one.sequence for one in results} == {results[0].sequence}
    with pytest.raises(AlreadyExists) as refused:
        await say(replica, task, "r-1", decision="deny")
    assert refused.value.reason == "REQUEST_ID_REUSED"
    owner = await replica.claim(task.task_id)
    await owner.end()
    assert (await say(replica, task, "r-1", decision="approve")).state == task_pb2.TASK_STATE_SUCCEEDED
    with pytest.raises(WrongState) as over:
        await say(replica, task, decision="approve")
    assert over.value.reason == "WAIT_OVER"


@pytest.mark.parametrize(
    ("wait", "said"),
    [
        (approval(), {"decision": "perhaps"}),
        (approval(), {"decision": "approve", "edited_arguments_json": "{}"}),
        (leave_of_a_person(), {"reply": "why not"}),
        (leave_of_a_person(), {"decision": "edit"}),
        (leave_of_a_person(), {"decision": "edit", "edited_arguments_json": "[]"}),
        (leave_of_a_person(), {"decision": "allow", "edited_arguments_json": "{}"}),
    ],
)
async def test_an_unfit_answer_is_refused_and_the_wait_continues(replica: Checkpoint, wait: Any, said: Any) -> None:
    task = await waiting(replica, wait)
    with pytest.raises(InvalidRequest):
        await say(replica, task, **said)
    assert (await replica.get(task.task_id)) == task


async def test_an_extra_budget_raises_the_cap_with_an_entry(replica: Checkpoint) -> None:
    task = await waiting(replica, limits=task_pb2.Limits(max_tokens=1000))
    resumed = await say(replica, task, reply="yes, and take more", extra_budget_tokens=500)
    assert resumed.budget.max_tokens == 1500
    resolution = (await replica.entries(task.task_id))[-3].body.wait_resolution
    assert (resolution.extra_budget_tokens, resolution.answer) == (500, "yes, and take more")


async def test_a_call_that_was_allowed_stays_open_for_the_next_owner(replica: Checkpoint) -> None:
    task = await waiting(replica, leave_of_a_person())
    await say(replica, task, decision="edit", edited_arguments_json='{"a": 2}', comment="less")
    assert kinds(await replica.entries(task.task_id))[-2:] == ["wait_resolution", "WAITING_USER>QUEUED"]
    owner = await replica.claim(task.task_id)
    (left,) = fold(entries_to_domain(owner.entries)).open_intents
    assert (left.call_id, left.arguments_json) == ("1.0", '{"a": 2}')
    with pytest.raises(WrongState) as refused:
        await owner.end()
    assert refused.value.reason == "OPEN_INTENTS"


async def test_a_denied_calls_outcome_has_the_comment(
    replica: Checkpoint,
) -> None:
    task = await waiting(replica, leave_of_a_person())
    await say(replica, task, decision="deny", comment="too much")
    outcome = (await replica.entries(task.task_id))[-2].body.tool_outcome.outcome
    assert outcome.status == tool_pb2.OUTCOME_STATUS_NOT_ALLOWED
    assert "bob denied it" in outcome.content
    assert outcome.content.endswith("too much")


async def test_an_unanswered_wait_ends_the_task(replica: Checkpoint) -> None:
    task = await in_state(replica, (await waiting(replica, timeout_seconds=1)).task_id, TIMED_OUT)
    assert (task.reason, task.result) == ("WAIT_EXPIRED", "so far")
    entries = await replica.entries(task.task_id)
    assert kinds(entries)[-3:] == ["wait_resolution", "tool_outcome", "WAITING_USER>TIMED_OUT"]
    assert entries[-3].body.wait_resolution.answer_kind == ledger_pb2.WAIT_ANSWER_KIND_NO_ANSWER


async def test_a_wait_that_goes_on_needs_no_answer(replica: Checkpoint) -> None:
    wait = approval(at_deadline=task_pb2.WAIT_DEADLINE_POLICY_GO_ON)
    task = await in_state(replica, (await waiting(replica, wait, timeout_seconds=1)).task_id, QUEUED)
    assert task.reason == "WAIT_EXPIRED"
    outcome = (await replica.entries(task.task_id))[-2].body.tool_outcome.outcome
    assert json.loads(outcome.content)["answer"] == "no answer"


async def test_answers_racing_the_deadline_end_the_wait_once(replica: Checkpoint, other_replica: Checkpoint) -> None:
    wait = approval(at_deadline=task_pb2.WAIT_DEADLINE_POLICY_GO_ON)
    tasks = [await waiting(replica, wait) for _ in range(6)]
    await replica.query(
        "update ledger.tasks set wait_deadline_at = now() + interval '200 ms' where tenant = %s", replica.tenant
    )

    async def answered(task: Any, seconds: Any) -> None:
        await asyncio.sleep(seconds)
        try:
            await say(other_replica, task, decision="approve")
        except WrongState as refusal:
            assert refusal.reason == "WAIT_OVER"  # noqa: PT017  either is right, but nothing else

    await asyncio.gather(*(answered(task, 0.15 + number * 0.02) for number, task in enumerate(tasks)))
    for task in tasks:
        response = kinds(await replica.entries((await in_state(replica, task.task_id, QUEUED)).task_id))
        assert response.count("wait_resolution") == response.count("tool_outcome") == 1


async def test_a_waiting_task_with_an_open_call_is_cancelled_at_once(replica: Checkpoint) -> None:
    task = await waiting(replica)
    cancelled = await replica.cancel(task.task_id)
    assert (cancelled.state, cancelled.result, cancelled.HasField("wait")) == (CANCELLED, "so far", False)
    entries = await replica.entries(task.task_id)
    assert entries[-2].body.tool_outcome.outcome.status == tool_pb2.OUTCOME_STATUS_NOT_RUN
    with pytest.raises(WrongState) as over:
        await say(replica, task, decision="approve")
    assert over.value.reason == "WAIT_OVER"


async def test_a_cancel_racing_an_answer_leaves_a_whole_ledger(replica: Checkpoint) -> None:
    for _ in range(5):
        task = await waiting(replica)
        said = await asyncio.gather(
            replica.cancel(task.task_id), say(replica, task, decision="approve"), return_exceptions=True
        )
        assert not isinstance(said[0], Exception)
        assert (await replica.get(task.task_id)).state == CANCELLED
        assert kinds(await replica.entries(task.task_id)).count("tool_outcome") == 1


async def test_the_tasks_clock_stops_during_waits_for_a_person(
    replica: Checkpoint,
) -> None:
    task = await waiting(replica)
    first = moment(task.deadline_time)
    waited = timedelta(0)
    for step in (2, 3):
        begun = task.wait.begin_time
        await asyncio.sleep(0.2)
        await say(replica, task, decision="approve")
        resolved = (await replica.entries(task.task_id))[-1].record_time
        waited += moment(resolved) - moment(begun)
        assert moment((await replica.get(task.task_id)).deadline_time) == first + waited
        owner = await replica.claim(task.task_id)
        await owner.commit(reserve=reserve(step=step))
        call = f"{step}.0"
        intent = ledger_pb2.ToolIntent(call_id=call, tool_use_id=call, tool="ask_user", arguments_json="{}")
        await owner.commit(answer(step=step), entry(step, tool_intent=intent), transition=move(approval(call)))
        task = await replica.get(task.task_id)


async def test_a_task_that_waits_for_a_person_outlives_its_own_timeout(replica: Checkpoint) -> None:
    task = await waiting(replica, limits=task_pb2.Limits(timeout=duration(2)))
    await replica.query(
        "update ledger.tasks set deadline_at = now() - interval '1 h', waiting_since = now() - interval '2 h' "
        "where task_id = %s",
        task.task_id,
    )
    await asyncio.sleep(0.3)  # several sweeps: nothing is to happen
    resumed = await say(replica, task, decision="approve")
    assert resumed.state == QUEUED
    assert moment(resumed.deadline_time) > moment(resumed.update_time) + timedelta(minutes=50)


async def test_a_call_in_doubt_stops_the_clock_and_takes_no_answer(
    replica: Checkpoint,
) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(intent(tool="pay"), transition=pb.Transition(to_state=WAITING_USER, reason="TOOL_IN_DOUBT"))
    task = await replica.get(owner.task.task_id)
    assert not task.HasField("wait")
    task.wait.wait_id = "w1"
    with pytest.raises(WrongState):
        await say(replica, task, decision="approve")
    since = await replica.query("select waiting_since is not null from ledger.tasks where tenant = %s", replica.tenant)
    assert since == [(True,)]


async def test_several_calls_of_a_step_wait_one_after_another(replica: Checkpoint) -> None:
    task = await waiting(replica, intents=("1.0", "1.1"))
    await say(replica, task, decision="approve")
    owner = await replica.claim(task.task_id)
    assert [one.call_id for one in fold(entries_to_domain(owner.entries)).open_intents] == ["1.1"]
    await owner.commit(transition=move(approval("1.1")))
    second = await replica.get(task.task_id)
    assert second.wait.wait_id != task.wait.wait_id
    with pytest.raises(WrongState):
        await say(replica, task, decision="approve")
    assert (await say(replica, second, decision="deny")).state == QUEUED


@pytest.mark.parametrize(
    ("state", "wait"),
    [
        (WAITING_USER, approval("1.7")),
        (task_pb2.TASK_STATE_WAITING_EXTERNAL, approval()),
        (WAITING_USER, task_pb2.Wait(kind=task_pb2.WAIT_KIND_EVENT, call_id="1.0", correlation_id="c")),
        (WAITING_USER, task_pb2.Wait(call_id="1.0")),
        (WAITING_USER, approval("")),
        (WAITING_USER, approval(kind=task_pb2.WAIT_KIND_BUDGET)),
    ],
)
async def test_a_wait_that_does_not_fit_its_move_is_refused(replica: Checkpoint, state: Any, wait: Any) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(intent())
    with pytest.raises(InvalidRequest):
        await owner.commit(transition=pb.Transition(to_state=state, reason="WAITS", wait=wait))


async def test_an_answer_to_another_wait_names_the_current_one(replica: Checkpoint) -> None:
    task = await waiting(replica, leave_of_a_person())
    with pytest.raises(WrongState) as other:
        await say(replica, task, wait_id="w1", decision="allow")
    assert other.value.reason == "WAIT_OVER"
    present = other.value.metadata
    assert (present["wait_id"], present["call_digest"]) == (task.wait.wait_id, task.wait.call_digest)
    assert (present["tool"], present["arguments_json"]) == ("pay", '{"a": 1}')
    assert (await replica.get(task.task_id)).state == WAITING_USER


async def test_leave_is_given_only_to_the_call_that_was_shown(replica: Checkpoint) -> None:
    task = await waiting(replica, leave_of_a_person())
    with pytest.raises(InvalidRequest, match="call_digest"):
        await say(replica, task, call_digest="", decision="allow")
    with pytest.raises(WrongState) as other:
        await say(replica, task, call_digest=call_digest("pay", '{"a": 2}'), decision="allow")
    assert other.value.reason == "OTHER_CALL"
    assert other.value.metadata["call_digest"] == task.wait.call_digest == call_digest("pay", '{"a": 1}')
    assert (await replica.get(task.task_id)).state == WAITING_USER
    assert (await say(replica, task, decision="allow")).state == QUEUED


async def test_an_error_about_a_wait_fits_into_the_trailers_of_grpc(replica: Checkpoint) -> None:
    long = json.dumps({"text": "\U0001f600" * 20_000}, ensure_ascii=False)
    wait = leave_of_a_person()
    wait.arguments_json, wait.question = long, "\U0001f600" * 4000
    task = await waiting(replica, wait)
    with pytest.raises(WrongState) as other:
        await say(replica, task, wait_id="w1", decision="allow")
    assert other.value.metadata["wait_id"] == task.wait.wait_id


def two_calls() -> Any:
    calls = [task_pb2.WaitingCall(call_id=call, tool="pay", arguments_json='{"a": 1}') for call in ("1.0", "1.1")]
    wait = leave_of_a_person()
    wait.calls.extend(calls)
    return wait


def decision(call_id: str, word: str, **more: Any) -> Any:
    digest = call_digest("pay", '{"a": 1}')
    return task_pb2.CallDecision(**{"call_id": call_id, "decision": word, "call_digest": digest, **more})


async def settled(replica: Any, task: Any) -> dict[str, str]:
    entries = entries_to_domain(await replica.entries(task.task_id))
    return {one.body.call_id: one.body.outcome.status for one in entries if isinstance(one.body, ToolOutcome)}


async def test_calls_of_one_wait_are_decided_each(replica: Checkpoint) -> None:
    task = await waiting(replica, two_calls(), intents=("1.0", "1.1"))
    assert [call.call_digest for call in task.wait.calls] == [call_digest("pay", '{"a": 1}')] * 2
    edited = decision("1.1", "edit", edited_arguments_json='{"a": 2}', comment="less")
    both = [decision("1.0", "deny"), edited]
    assert (await say(replica, task, call_digest="", calls=both)).state == QUEUED
    point = fold(entries_to_domain(await replica.entries(task.task_id)))
    assert await settled(replica, task) == {"1.0": "NOT_ALLOWED"}
    assert (point.open_intents[0].call_id, point.open_intents[0].arguments_json) == ("1.1", '{"a": 2}')
    assert point.approval_notes == {
        "1.1": 'A person changed the arguments of request_approval before it was run: {"a": 2}\nless'
    }, "of equal calls, the note is that of the edited one"


@pytest.mark.parametrize("calls", [{"decision": "allow"}, {"calls": [decision("1.0", "allow")]}])
async def test_answer_for_one_call_leaves_the_others_open(replica: Checkpoint, calls: Any) -> None:
    task = await waiting(replica, two_calls(), intents=("1.0", "1.1"))
    said = {"call_digest": "", **calls} if "calls" in calls else calls
    assert (await say(replica, task, **said)).state == QUEUED
    point = fold(entries_to_domain(await replica.entries(task.task_id)))
    assert (sorted(point.open_calls), point.allowed_calls) == (["1.0", "1.1"], {"1.0"})


@pytest.mark.parametrize(
    ("calls", "error"),
    [
        ([decision("1.0", "allow"), decision("1.0", "deny")], InvalidRequest),
        ([decision("1.7", "allow")], InvalidRequest),
        ([decision("1.0", "maybe")], InvalidRequest),
        ([decision("1.0", "allow", call_digest="")], InvalidRequest),
        ([decision("1.0", "allow"), decision("1.1", "allow", call_digest="0" * 64)], WrongState),
    ],
    ids=["twice", "unknown call", "no option", "no digest", "another call"],
)
async def test_answer_with_one_wrong_decision_is_refused(replica: Checkpoint, calls: Any, error: Any) -> None:
    task = await waiting(replica, two_calls(), intents=("1.0", "1.1"))
    with pytest.raises(error):
        await say(replica, task, call_digest="", calls=calls)
    assert (await replica.get(task.task_id)).state == WAITING_USER
    assert await settled(replica, task) == {}


async def test_wait_for_several_calls_ends_with_all_of_them(replica: Checkpoint) -> None:
    """At its deadline, and when the task is cancelled."""
    wait = two_calls()
    wait.at_deadline = task_pb2.WAIT_DEADLINE_POLICY_GO_ON
    late = await waiting(replica, wait, intents=("1.0", "1.1"), timeout_seconds=1.0)
    await in_state(replica, late.task_id, QUEUED)
    assert await settled(replica, late) == {"1.0": "NOT_ALLOWED", "1.1": "NOT_ALLOWED"}
    task = await waiting(replica, two_calls(), intents=("1.0", "1.1"))
    cancel = ledger_pb2.CancelRequest(reason="no")
    request = pb.AppendForeignRequest(task_id=task.task_id, request_id=str(uuid4()), actor="bob", cancel_request=cancel)
    await replica.stub.AppendForeign(request, timeout=TIMEOUT_SECONDS)
    await in_state(replica, task.task_id, CANCELLED)
    assert await settled(replica, task) == {"1.0": "NOT_RUN", "1.1": "NOT_RUN"}
