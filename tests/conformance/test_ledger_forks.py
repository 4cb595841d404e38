"""Forks: a copy of another task's conversation, whole by itself, and lineage both ways."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tenure.domain import entries as facts
from tenure.domain.errors import AlreadyExists, NotFound, WrongState
from tenure.domain.fold import fold
from tenure.domain.next_action import CallModel, ExecuteTools, JoinModelCall, next_action
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import checkpoint_service_pb2_grpc, ledger_pb2, task_pb2, tool_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.wire.ledger import entries_to_domain
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, answer, entry, kinds, reserve

QUEUED = task_pb2.TASK_STATE_QUEUED
COPIED = ["tools_defined", "model_attempt", "assistant_message", "tool_intent", "tool_outcome"]


def asks_for_call(step: int = 1, stop_reason: str = "tool_use") -> Any:
    content = [{"type": "tool_use", "id": "use-1", "name": "t", "input": {}}]
    message = ledger_pb2.AssistantMessage(
        attempt_number=1,
        content_json=json.dumps(content),
        stop_reason=stop_reason,
        usage=task_pb2.TokenUsage(output_tokens=10),
    )
    intent = ledger_pb2.ToolIntent(call_id=f"{step}.0", tool_use_id="use-1", tool="t", arguments_json="{}")
    return entry(step, assistant_message=message), entry(step, tool_intent=intent)


def outcome(step: int = 1) -> Any:
    result = tool_pb2.Outcome(status=tool_pb2.OUTCOME_STATUS_SUCCEEDED, content="42")
    return entry(step, tool_outcome=ledger_pb2.ToolOutcome(call_id=f"{step}.0", outcome=result))


def tools(*names: Any) -> Any:
    defined = [tool_pb2.ToolDefinition(name=name, input_schema_json="{}") for name in names]
    return entry(0, tools_defined=ledger_pb2.ToolsDefined(tools=defined))


async def worked(replica: Checkpoint, **spec: Any) -> Any:
    """A running task: 1 submitted 2 queued 3 running 4 tools 5 attempt 6 answer 7 intent 8 outcome 9 attempt."""
    owner = await replica.claim((await replica.create(**spec)).task_id)
    await owner.commit(tools("t"), reserve=reserve())
    await owner.commit(*asks_for_call())
    await owner.commit(outcome(), reserve=reserve(step=2))
    return owner


async def ended(replica: Checkpoint, **spec: Any) -> Any:
    """The same, answered: 10 answer 11 succeeded."""
    owner = await worked(replica, **spec)
    await owner.commit(answer(step=2, text="It is 42."))
    await owner.end(result="It is 42.")
    return owner.task.task_id


async def fork(replica: Any, task_id: Any, request_id: str = "f-1", **fields: Any) -> Any:
    request = tasks_pb.ForkTaskRequest(request_id=request_id, task_id=task_id, actor="alice", **fields)
    response = await replica.stub.ForkTask(request, timeout=TIMEOUT_SECONDS)
    return response.task


async def point_of(replica: Any, task_id: Any) -> Any:
    return fold(entries_to_domain(await replica.entries(task_id)))


async def test_a_fork_at_the_end_has_the_whole_conversation(replica: Checkpoint) -> None:
    task_id = await ended(replica)
    before = await replica.get(task_id)
    forked = await fork(replica, task_id, message="And half of it?")
    assert (forked.state, forked.reason, forked.step, forked.attempt) == (QUEUED, "FORKED", 2, 1)
    assert (forked.forked_from.task_id, forked.forked_from.sequence) == (task_id, 11)
    assert (forked.usage, forked.budget.used_tokens, forked.epoch) == (task_pb2.TokenUsage(), 0, 0)
    entries = await replica.entries(forked.task_id)
    copied = [*COPIED, "model_attempt", "assistant_message"]
    assert kinds(entries) == ["submitted", "forked", *copied, ">QUEUED", "user_message"]
    assert [one.sequence for one in entries] == list(range(1, forked.sequence + 1))
    assert entries[1].body.forked.copied_entries == len(copied)
    assert {(one.epoch, one.claim_id, one.attempt) for one in entries} == {(0, "", 1)}
    assert [one.actor for one in entries[2:9]] == ["worker-1"] * 7
    assert entries[-1].actor == "alice"
    theirs = {one.sequence: one.body for one in await replica.entries(task_id)}
    assert [one.body for one in entries[2:9]] == [theirs[sequence] for sequence in (4, 5, 6, 7, 8, 9, 10)]
    point = await point_of(replica, forked.task_id)
    assert next_action(point) == CallModel(3, 1)
    assert point.pending_content == [{"type": "text", "text": "And half of it?"}]
    assert [message["role"] for message in point.messages] == ["user", "assistant", "user", "assistant"]
    assert await replica.get(task_id) == before


async def test_a_forks_owner_opens_reserves_and_ends_it(replica: Checkpoint) -> None:
    task_id = await ended(replica)
    forked = await fork(replica, task_id, message="And half of it?")
    owner = await replica.claim(forked.task_id)
    assert owner.known_sequence == len(owner.entries)
    await owner.commit(reserve=reserve(step=3))
    await owner.commit(answer(step=3, text="21", tokens=7))
    await owner.end(result="21")
    done = await replica.get(forked.task_id)
    assert (done.result, done.step, done.usage.output_tokens, done.budget.used_tokens) == ("21", 3, 7, 7)
    bills = await replica.query("select step from ledger.token_usage where task_id = %s::uuid", forked.task_id)
    assert bills == [(3,)]


async def test_a_running_task_is_forked_before_its_call_in_flight(replica: Checkpoint) -> None:
    owner = await worked(replica)
    forked = await fork(replica, owner.task.task_id)
    assert forked.forked_from.sequence == 8
    assert next_action(await point_of(replica, forked.task_id)) == CallModel(2, 1)
    await owner.commit(answer(step=2))
    await owner.end()


async def test_where_a_call_is_open_a_task_is_not_forked(replica: Checkpoint) -> None:
    owner = await worked(replica)
    with pytest.raises(WrongState) as refused:
        await fork(replica, owner.task.task_id, at_sequence=7)
    assert (refused.value.reason, refused.value.metadata) == ("NO_FORK_POINT", {"before": "4", "after": "8"})
    assert (await fork(replica, owner.task.task_id, at_sequence=8)).forked_from.sequence == 8


async def test_failed_calls_of_the_model_stay_behind(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    failure = ledger_pb2.ModelFailure(attempt_number=1, error_class="INVALID_REQUEST", message="no such model")
    await owner.commit(tools("t"), reserve=reserve())
    await owner.commit(
        entry(1, model_failure=failure),
        transition=pb.Transition(to_state=task_pb2.TASK_STATE_FAILED, reason="MODEL_REJECTED"),
    )
    forked = await fork(replica, owner.task.task_id, overrides=task_pb2.ForkOverrides(model="another"))
    assert kinds(await replica.entries(forked.task_id)) == ["submitted", "forked", "tools_defined", ">QUEUED"]
    assert forked.spec.agent.model == "another"
    assert next_action(await point_of(replica, forked.task_id)) == CallModel(1, 1)


@pytest.mark.parametrize("message", ["", "Then say what you can."])
async def test_a_refused_answer_is_requested_again_by_the_fork(replica: Checkpoint, message: str) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    refused = answer(text="I cannot.")
    refused.body.assistant_message.stop_reason = "refusal"
    await owner.commit(reserve=reserve())
    await owner.commit(refused, transition=pb.Transition(to_state=task_pb2.TASK_STATE_FAILED, reason="MODEL_REFUSED"))
    forked = await fork(replica, owner.task.task_id, message=message)
    point = await point_of(replica, forked.task_id)
    assert next_action(point) == CallModel(2, 1)
    assert [said["role"] for said in point.messages] == ["user"]


async def test_a_forks_tools_are_defined_anew_and_its_limits_restart(replica: Checkpoint) -> None:
    task_id = await ended(replica, limits=task_pb2.Limits(max_steps=2, max_tokens=5000))
    overrides = task_pb2.ForkOverrides(
        tools=task_pb2.ToolAllowlist(names=["x"]), limits=task_pb2.Limits(max_tokens=900)
    )
    forked = await fork(replica, task_id, message="on", overrides=overrides)
    assert (list(forked.spec.agent.tools.names), forked.budget.max_tokens) == (["x"], 900)
    assert "tools_defined" not in kinds(await replica.entries(forked.task_id))
    assert (await point_of(replica, forked.task_id)).tools is None
    owner = await replica.claim(forked.task_id)
    for step in (3, 4):
        assert (await owner.commit(reserve=reserve(step=step))).reserve.HasField("granted")
        await owner.commit(answer(step=step))
    assert (await owner.commit(reserve=reserve(step=5))).reserve.denied.reason == "STEP_LIMIT"


async def test_all_tools_are_allowed_again(replica: Checkpoint) -> None:
    agent = task_pb2.AgentSpec(tools=task_pb2.ToolAllowlist(names=["t"]))
    task_id = await ended(replica, agent=agent)
    kept = await fork(replica, task_id, "f-1", message="on")
    freed = await fork(replica, task_id, "f-2", message="on", overrides=task_pb2.ForkOverrides(all_tools=True))
    assert (kept.spec.agent.HasField("tools"), freed.spec.agent.HasField("tools")) == (True, False)


async def test_a_fork_is_made_once_per_request_id(replica: Checkpoint) -> None:
    task_id = await ended(replica)
    made = await asyncio.gather(*[fork(replica, task_id, message="on") for _ in range(5)])
    assert len({task.task_id for task in made}) == 1
    with pytest.raises(AlreadyExists) as refused:
        await fork(replica, task_id, message="something else")
    assert (refused.value.reason, refused.value.metadata) == ("REQUEST_ID_REUSED", {"task_id": made[0].task_id})
    with pytest.raises(AlreadyExists):
        await replica.create(request_id="f-1")


async def test_forks_are_listed_by_the_task_they_came_from(replica: Checkpoint) -> None:
    task_id = await ended(replica)
    first = await fork(replica, task_id, "f-1", message="one")
    second = await fork(replica, task_id, "f-2", message="two")
    third = await fork(replica, second.task_id, "f-3")
    listing = tasks_pb.ListTasksRequest(filter=task_pb2.TaskFilter(forked_from_task_id=task_id), page_size=1)
    results: list[Any] = []
    while not results or listing.page_token:
        page = await replica.stub.ListTasks(listing, timeout=TIMEOUT_SECONDS)
        results += [task.task_id for task in page.tasks]
        listing.page_token = page.next_page_token
    assert results == [second.task_id, first.task_id]
    assert third.forked_from.task_id == second.task_id
    assert kinds(await replica.entries(third.task_id)).count("forked") == 1


async def test_a_task_of_another_tenant_is_not_forked(replica: Checkpoint) -> None:
    task_id = await ended(replica)
    async with open_channel(replica.address, tenant="other") as channel:
        stub = checkpoint_service_pb2_grpc.CheckpointServiceStub(channel)
        request = tasks_pb.ForkTaskRequest(request_id="f", task_id=task_id, actor="mallory", message="on")
        with pytest.raises(NotFound):
            await stub.ForkTask(request, timeout=TIMEOUT_SECONDS)


async def test_a_call_of_the_fork_is_another_call(replica: Checkpoint) -> None:
    """The step counts on, so the call ids go on too; with the task's own id they are idempotency keys of its own."""
    owner = await worked(replica)
    forked = await fork(replica, owner.task.task_id)
    other = await replica.claim(forked.task_id)
    await other.commit(reserve=reserve(step=2))
    await other.commit(*asks_for_call(step=2))
    move = next_action(await point_of(replica, forked.task_id))
    assert isinstance(move, ExecuteTools)
    assert [intent.call_id for intent in move.intents] == ["2.0"]
    with pytest.raises(WrongState):
        await other.end()
    await other.commit(outcome(step=2))
    assert isinstance(next_action(await point_of(replica, owner.task.task_id)), JoinModelCall)
    assert not any(
        isinstance(one.body, facts.Forked) for one in entries_to_domain(await replica.entries(owner.task.task_id))
    )
