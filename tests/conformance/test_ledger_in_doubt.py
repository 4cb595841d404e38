"""Laws of calls in doubt in the ledger: who may give a word on one, when, and where it leads."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from tenure.domain.errors import AlreadyExists, InvalidRequest, WrongState
from tenure.domain.fold import fold
from tenure.domain.in_doubt import DidNotHappen, Happened, Resolution
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.wire.ledger import entries_to_domain
from tenure.wire.tool import decision_to_wire
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, entry, kinds

pytestmark = pytest.mark.server
QUEUED, WAITING_USER = task_pb2.TASK_STATE_QUEUED, task_pb2.TASK_STATE_WAITING_USER
HAPPENED = Happened("paid")


def in_doubt(**attempts: int) -> list[tool_pb2.CallInDoubt]:
    """`_1_0=2`: attempt 2 of call 1.0."""
    return [
        tool_pb2.CallInDoubt(call_id=name.strip("_").replace("_", "."), call_attempt=attempt)
        for name, attempt in attempts.items()
    ]


def move(calls: Any, **fields: Any) -> Any:
    return pb.Transition(**{"to_state": WAITING_USER, "reason": "TOOL_IN_DOUBT", "calls_in_doubt": calls, **fields})


async def waiting(replica: Any, *calls: Any, intents: Any = ("1.0",)) -> Any:
    """A task that waits for a word on these calls."""
    owner = await replica.claim((await replica.create()).task_id)
    requests = [
        entry(1, tool_intent=ledger_pb2.ToolIntent(call_id=call_id, tool="pay", arguments_json="{}"))
        for call_id in intents
    ]
    await owner.commit(*requests, transition=move(calls))
    return await replica.get(owner.task.task_id)


async def say(
    replica: Any,
    task: Any,
    decision: Any = HAPPENED,
    call_id: str = "1.0",
    call_attempt: int = 1,
    request_id: str = "",
    actor: str = "olga",
) -> Any:
    word = ledger_pb2.OperatorRequest.ResolveCall(
        call_id=call_id, call_attempt=call_attempt, decision=decision_to_wire(decision)
    )
    request = pb.AppendForeignRequest(
        task_id=task.task_id,
        request_id=request_id or str(uuid4()),
        actor=actor,
        operator_request=ledger_pb2.OperatorRequest(reason="I looked", resolve_call=word),
    )
    return (await replica.stub.AppendForeign(request, timeout=TIMEOUT_SECONDS)).task


async def test_a_resolution_queues_the_task_for_its_next_owner(replica: Checkpoint) -> None:
    task = await waiting(replica, *in_doubt(_1_0=2))
    assert [(call.call_id, call.call_attempt) for call in task.calls_in_doubt] == [("1.0", 2)]
    resolved = await say(replica, task, call_attempt=2)
    assert (resolved.state, resolved.reason, list(resolved.calls_in_doubt)) == (QUEUED, "CALL_RESOLVED", [])
    assert resolved.message == "olga says that 1.0 happened: I looked"
    *_, waits, word, moved = await replica.entries(task.task_id)
    assert kinds([waits, word, moved]) == ["RUNNING>WAITING_USER", "operator_request", "WAITING_USER>QUEUED"]
    assert [call.call_id for call in waits.body.transition.calls_in_doubt] == ["1.0"]
    assert [(one.actor, one.epoch) for one in (word, moved)] == [("olga", 0)] * 2
    owner = await replica.claim(task.task_id)
    point = fold(entries_to_domain(owner.entries))
    assert point.resolutions == {"1.0": Resolution(2, HAPPENED, "I looked", "olga")}
    assert [intent.call_id for intent in point.open_intents] == ["1.0"]


async def test_a_word_is_recorded_once_per_request_id(replica: Checkpoint) -> None:
    task = await waiting(replica, *in_doubt(_1_0=1))
    first = await say(replica, task, request_id="r-1")
    assert await say(replica, task, request_id="r-1") == first
    assert kinds(await replica.entries(task.task_id)).count("operator_request") == 1
    with pytest.raises(AlreadyExists):
        await say(replica, task, DidNotHappen(), request_id="r-1")


async def test_of_two_concurrent_resolutions_one_counts(replica: Checkpoint, other_replica: Checkpoint) -> None:
    for _ in range(4):
        task = await waiting(replica, *in_doubt(_1_0=1))
        results = await asyncio.gather(
            say(replica, task, actor="olga"),
            say(other_replica, task, DidNotHappen(True), actor="otto"),
            return_exceptions=True,
        )
        (refused,) = (one for one in results if isinstance(one, Exception))
        assert isinstance(refused, WrongState)
        assert (refused.reason, refused.metadata["state"]) == ("NOT_IN_DOUBT", "QUEUED")
        assert kinds(await replica.entries(task.task_id)).count("operator_request") == 1


async def test_a_task_with_several_calls_in_doubt_waits_for_the_last(replica: Checkpoint) -> None:
    task = await waiting(replica, *in_doubt(_1_0=1, _1_2=3), intents=("1.0", "1.1", "1.2"))
    still = await say(replica, task)
    assert (still.state, [call.call_id for call in still.calls_in_doubt]) == (WAITING_USER, ["1.2"])
    for call_id in ("1.0", "1.1"):  # it has its resolution; it is open and not in doubt
        with pytest.raises(WrongState) as refused:
            await say(replica, task, call_id=call_id)
        assert (refused.value.reason, refused.value.metadata["call_id"]) == ("NOT_IN_DOUBT", call_id)
    assert (await say(replica, task, DidNotHappen(), "1.2", 3)).state == QUEUED
    owner = await replica.claim(task.task_id)
    assert set(fold(entries_to_domain(owner.entries)).resolutions) == {"1.0", "1.2"}


async def test_a_word_on_another_attempt_is_refused(replica: Checkpoint) -> None:
    task = await waiting(replica, *in_doubt(_1_0=2))
    with pytest.raises(WrongState) as refused:
        await say(replica, task, call_attempt=1)
    assert (refused.value.reason, refused.value.metadata["call_attempt"]) == ("OTHER_ATTEMPT", "2")
    assert await replica.get(task.task_id) == task


async def test_a_new_doubt_supersedes_the_old_resolution(replica: Checkpoint) -> None:
    task = await waiting(replica, *in_doubt(_1_0=1))
    await say(replica, task, DidNotHappen(True))
    owner = await replica.claim(task.task_id)
    await owner.commit(transition=move(in_doubt(_1_0=2)))
    with pytest.raises(WrongState):
        await say(replica, task, DidNotHappen(True))
    await say(replica, task, call_attempt=2)
    point = fold(entries_to_domain((await replica.claim(task.task_id)).entries))
    assert point.resolutions["1.0"] == Resolution(2, HAPPENED, "I looked", "olga")


async def test_an_owner_that_drops_a_resolution_makes_the_task_wait(replica: Checkpoint) -> None:
    task = await waiting(replica, *in_doubt(_1_0=1))
    await say(replica, task)
    await (await replica.claim(task.task_id)).commit(transition=move(in_doubt(_1_0=1)))
    again = await replica.get(task.task_id)
    assert (again.state, [call.call_attempt for call in again.calls_in_doubt]) == (WAITING_USER, [1])
    assert (await say(replica, task)).state == QUEUED


async def test_a_call_with_an_outcome_takes_no_resolution(replica: Checkpoint) -> None:
    task = await waiting(replica, *in_doubt(_1_0=1))
    await say(replica, task)
    owner = await replica.claim(task.task_id)
    outcome = tool_pb2.Outcome(status=tool_pb2.OUTCOME_STATUS_SUCCEEDED, content="paid", call_attempt=2)
    await owner.commit(entry(1, tool_outcome=ledger_pb2.ToolOutcome(call_id="1.0", outcome=outcome)))
    assert not fold(entries_to_domain(await replica.entries(task.task_id))).resolutions


async def test_without_named_calls_any_open_call_may_be_resolved(
    replica: Checkpoint,
) -> None:
    """Of an older version, or with a loop of its own: who opens the task next says what is still in doubt."""
    task = await waiting(replica, intents=("1.0", "1.1"))
    assert list(task.calls_in_doubt) == []
    with pytest.raises(WrongState) as refused:
        await say(replica, task, call_id="2.0")
    assert refused.value.reason == "NOT_IN_DOUBT"
    assert (await say(replica, task, call_id="1.1", call_attempt=7)).state == QUEUED


async def test_a_task_in_another_wait_takes_no_resolution(replica: Checkpoint) -> None:
    task = await replica.create()
    with pytest.raises(WrongState) as queued:
        await say(replica, task)
    assert (queued.value.reason, queued.value.metadata["state"]) == ("NOT_IN_DOUBT", "QUEUED")
    await replica.cancel(task.task_id)
    with pytest.raises(WrongState) as ended:
        await say(replica, task)
    assert (ended.value.reason, ended.value.metadata["state"]) == ("WRONG_STATE", "CANCELLED")


async def test_a_cancel_ends_a_wait_for_a_resolution(replica: Checkpoint) -> None:
    task = await waiting(replica, *in_doubt(_1_0=1))
    cancelled = await replica.cancel(task.task_id)
    assert (cancelled.state, cancelled.cancel_requested, list(cancelled.calls_in_doubt)) == (QUEUED, True, [])
    with pytest.raises(WrongState):
        await say(replica, task)


@pytest.mark.parametrize(
    ("fields", "calls"),
    [
        ({}, in_doubt(_1_1=1)),
        ({}, in_doubt(_1_0=1) * 2),
        ({"reason": "APPROVAL_REQUESTED"}, in_doubt(_1_0=1)),
        ({"to_state": task_pb2.TASK_STATE_WAITING_EXTERNAL}, in_doubt(_1_0=1)),
    ],
)
async def test_only_open_calls_are_waited_for_in_doubt(replica: Checkpoint, fields: Any, calls: Any) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    intent = ledger_pb2.ToolIntent(call_id="1.0", tool="pay", arguments_json="{}")
    with pytest.raises(InvalidRequest) as refused:
        await owner.commit(entry(1, tool_intent=intent), transition=move(calls, **fields))
    assert refused.value.violations[0].field == "transition.calls_in_doubt"
