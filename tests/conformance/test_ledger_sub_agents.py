"""Sub-agents in the ledger: created once with the intent of their call; their parent is queued once, whatever races."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID, uuid5

import pytest

from tenure.domain.errors import InvalidRequest
from tenure.domain.fold import fold
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.wire.common import duration, moment
from tenure.wire.ledger import entries_to_domain
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, MakeCheckpoint, answer, entry, kinds, reserve

QUEUED = task_pb2.TASK_STATE_QUEUED
RUNNING = task_pb2.TASK_STATE_RUNNING
WAITING = task_pb2.TASK_STATE_WAITING_EXTERNAL
SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED
CANCELLED = task_pb2.TASK_STATE_CANCELLED
FAILED = task_pb2.TASK_STATE_FAILED
SPAWN = "spawn_sub_agents"


def call(goals: Any = ("a", "b"), call_id: str = "1.0", **more: Any) -> Any:
    arguments = json.dumps({"goals": list(goals), **more})
    intent = ledger_pb2.ToolIntent(call_id=call_id, tool_use_id=f"use-{call_id}", tool=SPAWN, arguments_json=arguments)
    return entry(int(call_id.split(".", maxsplit=1)[0]), tool_intent=intent)


def wait(call_id: str = "1.0", timeout_seconds: float = 3600.0) -> Any:
    wait = task_pb2.Wait(
        kind=task_pb2.WAIT_KIND_SUB_AGENTS, call_id=call_id, at_deadline=task_pb2.WAIT_DEADLINE_POLICY_GO_ON
    )
    return pb.Transition(
        to_state=WAITING, reason="SUB_AGENTS_AWAITED", wait=wait, wait_timeout=duration(timeout_seconds)
    )


def ids(task_id: Any, count: Any, call_id: str = "1.0") -> Any:
    return [str(uuid5(UUID(task_id), f"{call_id}/{index}")) for index in range(count)]


async def spawner(replica: Any, *facts: Any, **spec: Any) -> Any:
    """An owner that has spawned, and the answer to its commit."""
    owner = await replica.claim((await replica.create(**spec)).task_id)
    await owner.commit(reserve=reserve())
    return owner, await owner.commit(answer(text="so far"), *(facts or (call(),)))


async def waiting(replica: Any, *facts: Any, timeout_seconds: float = 3600.0, **spec: Any) -> Any:
    """A parent that waits, as its owner left it."""
    owner, _ = await spawner(replica, *facts, **spec)
    await owner.commit(transition=wait(timeout_seconds=timeout_seconds))
    return await replica.get(owner.task.task_id)


async def in_state(replica: Any, task_id: Any, *states: Any) -> Any:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (task := await replica.get(task_id)).state not in states:
            await asyncio.sleep(0.02)
        return task


async def finish(
    replica: Any, task_id: Any, result: str = "done", state: Any = SUCCEEDED, reason: str = "FINAL_ANSWER"
) -> None:
    owner = await replica.claim(task_id)
    await owner.commit(transition=pb.Transition(to_state=state, reason=reason, result=result, message="it broke"))


async def outcome_of(replica: Any, task_id: Any) -> Any:
    """The one outcome of the parent's call."""
    entries = await replica.entries(task_id)
    (entry,) = [one.body.tool_outcome for one in entries if one.body.HasField("tool_outcome")]
    return entry.outcome


async def results(replica: Any, task_id: Any) -> Any:
    outcome = await outcome_of(replica, task_id)
    return [one["result"] for one in json.loads(outcome.content)["sub_agents"]]


async def test_sub_agents_are_created_with_the_intent_in_one_budget(
    replica: Checkpoint,
) -> None:
    limits = task_pb2.Limits(max_tokens=9000)
    owner, response = await spawner(replica, labels={"a": "b"}, limits=limits)
    parent = await replica.get(owner.task.task_id)
    entries = await replica.entries(parent.task_id)
    assert kinds(entries)[-2:] == ["tool_intent", "sub_agents_spawned"]
    spawned = entries[-1].body.sub_agents_spawned
    assert list(spawned.task_ids) == ids(parent.task_id, 2)
    assert [one.body for one in response.foreign_entries] == [entries[-1].body]
    for index, task_id in enumerate(spawned.task_ids):
        child = await replica.get(task_id)
        assert (child.state, child.reason, child.spec.goal) == (QUEUED, "SPAWNED", "ab"[index])
        assert (child.parent_task_id, child.root_task_id) == (parent.task_id, parent.task_id)
        assert (child.depth, child.spawn_call_id, dict(child.spec.labels)) == (1, "1.0", {"a": "b"})
        left = 9000 - parent.budget.used_tokens
        assert child.spec.limits.max_tokens == spawned.max_tokens == left // 3
        assert child.budget == parent.budget
        by = (await replica.entries(task_id))[0].body.submitted.spawned_by
        assert (by.task_id, by.call_id, by.index) == (parent.task_id, "1.0", index)
        assert moment(child.deadline_time) <= moment(parent.deadline_time)


async def test_the_last_sub_agent_wakes_its_parent_with_results(replica: Checkpoint) -> None:
    parent = await waiting(replica, call(("a", "b", "c")))
    first, second, third = parent.wait.sub_agent_task_ids
    assert (parent.state, parent.owner) == (WAITING, "")
    await finish(replica, third, "three")
    await finish(replica, first, "one")
    assert (await replica.get(parent.task_id)).state == WAITING
    await finish(replica, second, "half", state=FAILED, reason="MODEL_REJECTED")
    woken = await in_state(replica, parent.task_id, QUEUED)
    assert woken.reason == "WAIT_RESOLVED"
    assert await results(replica, parent.task_id) == ["one", "[failed: MODEL_REJECTED: it broke]", "three"]
    entry = json.loads((await outcome_of(replica, parent.task_id)).content)["sub_agents"][1]
    assert (entry["task_id"], entry["partial_result"]) == (second, "half")
    entries = await replica.entries(parent.task_id)
    assert kinds(entries)[-3:] == ["wait_resolution", "tool_outcome", "WAITING_EXTERNAL>QUEUED"]
    owner = await replica.claim(parent.task_id)
    assert fold(entries_to_domain(owner.entries)).open_intents == []


async def test_a_parent_resumed_before_its_wait_spawns_no_others(
    replica: Checkpoint,
) -> None:
    owner, _ = await spawner(replica)
    parent = owner.task.task_id
    await replica.requeue(owner)
    for task_id in ids(parent, 2):
        await finish(replica, task_id)
    again = await replica.claim(parent)
    (left,) = fold(entries_to_domain(again.entries)).open_intents
    assert left.call_id == "1.0"
    response = await again.commit(transition=wait())
    assert response.state == QUEUED  # they had ended already: the parent does not wait
    assert await results(replica, parent) == ["done", "done"]
    assert await replica.query("select count(*) from ledger.tasks where depth > 0 and tenant = %s", replica.tenant) == [
        (2,)
    ]


async def test_a_repeated_commit_spawns_once(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(reserve=reserve())
    request = owner.request(answer(), call())
    first = await replica.stub.Commit(request, timeout=TIMEOUT_SECONDS)
    second = await replica.stub.Commit(request, timeout=TIMEOUT_SECONDS)
    assert first == second
    assert len(first.foreign_entries) == 1
    assert await replica.query("select count(*) from ledger.tasks where depth > 0 and tenant = %s", replica.tenant) == [
        (2,)
    ]


@pytest.mark.parametrize(
    ("facts", "spec", "expected"),
    [
        ({"goals": ["x"] * 9}, {}, "one call may start at most 8"),
        ({"goals": ["a\ud800"]}, {}, "goals must be"),
        ({"goals": ["a"], "tools": ["b"]}, {"agent": {"tools": {"names": [SPAWN, "c"]}}}, "do not have: b"),
        ({"goals": ["a", "b"]}, {"policy": {"sub_agents": {"max_living": 2}}}, "exceed 2"),
    ],
)
async def test_a_spawn_that_is_refused_is_an_outcome_and_fails_no_task(
    replica: Checkpoint, facts: Any, spec: Any, expected: str
) -> None:
    owner, response = await spawner(replica, call(**facts), **spec)
    (added,) = response.foreign_entries
    outcome = added.body.tool_outcome.outcome
    assert expected in outcome.content
    assert outcome.status in {tool_pb2.OUTCOME_STATUS_NOT_ALLOWED, tool_pb2.OUTCOME_STATUS_INVALID_ARGUMENTS}
    assert (await replica.get(owner.task.task_id)).state == RUNNING
    assert await replica.query("select count(*) from ledger.tasks where tenant = %s", replica.tenant) == [(1,)]
    await owner.commit(reserve=reserve(step=2))


async def test_unknown_tools_for_sub_agents_are_a_tool_outcome(
    replica: Checkpoint,
) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    tools = [tool_pb2.ToolDefinition(name=name, input_schema_json="{}") for name in (SPAWN, "read_file")]
    await owner.commit(entry(1, tools_defined=ledger_pb2.ToolsDefined(tools=tools)), reserve=reserve())
    mistaken, right = call(tools=["raed_file"]), call(("c",), "1.1", tools=["read_file"])
    response = await owner.commit(answer(text="so far"), mistaken, right)
    refused, spawned = (added.body for added in response.foreign_entries)
    assert refused.tool_outcome.call_id == "1.0"
    assert refused.tool_outcome.outcome.status == tool_pb2.OUTCOME_STATUS_NOT_ALLOWED
    assert "no tool 'raed_file'; did you mean read_file?" in refused.tool_outcome.outcome.content
    assert spawned.sub_agents_spawned.call_id == "1.1"
    assert (await replica.get(owner.task.task_id)).state == RUNNING


async def test_tools_that_are_defined_with_the_call_count(replica: Checkpoint) -> None:
    """The first call of a control function is in the same commit."""
    control = {"function": "month_end"}
    owner = await replica.claim((await replica.create(goal="", control=control)).task_id)
    tools = [tool_pb2.ToolDefinition(name=name, input_schema_json="{}") for name in (SPAWN, "read_file")]
    defined = entry(1, tools_defined=ledger_pb2.ToolsDefined(tools=tools))
    response = await owner.commit(defined, call(tools=["raed_file"]))
    (refused,) = (added.body for added in response.foreign_entries)
    assert "no tool 'raed_file'; did you mean read_file?" in refused.tool_outcome.outcome.content


async def test_agents_at_the_greatest_depth_have_no_sub_agents(replica: Checkpoint) -> None:
    task_id = (await replica.create()).task_id
    for depth in range(4):
        owner = await replica.claim(task_id)
        await owner.commit(reserve=reserve())
        response = await owner.commit(answer(), call(("deeper",)))
        assert response.foreign_entries[0].body.HasField("sub_agents_spawned" if depth < 3 else "tool_outcome")
        (task_id,) = ids(task_id, 1)


async def test_a_taken_name_refuses_its_spawn_only(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(reserve=reserve())
    await replica.create(request_id=f"sub-agent/{ids(owner.task.task_id, 2)[1]}")
    response = await owner.commit(answer(), call())
    assert "request_ids are used" in response.foreign_entries[0].body.tool_outcome.outcome.content


async def test_a_call_that_needs_approval_spawns_once_approved(replica: Checkpoint) -> None:
    owner, response = await spawner(replica, agent={"approve_tools": [SPAWN]})
    assert not response.foreign_entries
    wait_wanted = task_pb2.Wait(
        kind=task_pb2.WAIT_KIND_TOOL_APPROVAL, call_id="1.0", options=["allow", "deny", "edit"], tool=SPAWN,
        arguments_json=json.dumps({"goals": ["a", "b"]}),
    )  # fmt: skip
    user = task_pb2.TASK_STATE_WAITING_USER
    await owner.commit(transition=pb.Transition(to_state=user, reason="TOOL_NEEDS_APPROVAL", wait=wait_wanted))
    parent = await replica.get(owner.task.task_id)
    said = pb.WaitAnswer(
        wait_id=parent.wait.wait_id,
        call_digest=parent.wait.call_digest,
        decision="edit",
        edited_arguments_json='{"goals": ["c"]}',
    )
    request = pb.AppendForeignRequest(task_id=parent.task_id, request_id="r-1", actor="bob", wait_answer=said)
    await replica.stub.AppendForeign(request, timeout=TIMEOUT_SECONDS)
    await replica.stub.AppendForeign(request, timeout=TIMEOUT_SECONDS)
    (child,) = ids(parent.task_id, 1)
    assert (await replica.get(child)).spec.goal == "c"
    again = await replica.claim(parent.task_id)
    await again.commit(transition=wait())
    await finish(replica, child)
    await in_state(replica, parent.task_id, QUEUED)


async def test_approved_tokens_raise_the_sub_agents_and_roots_cap(replica: Checkpoint) -> None:
    parent, _ = await spawner(replica, limits=task_pb2.Limits(max_tokens=9000))
    task_id = ids(parent.task.task_id, 2)[0]
    child = await replica.claim(task_id)
    cap = (await replica.get(task_id)).spec.limits.max_tokens
    await child.commit(reserve=reserve())
    wanted = entry(1, tool_intent=ledger_pb2.ToolIntent(call_id="1.0", tool_use_id="u", tool="request_approval"))
    await child.commit(answer(tokens=10), wanted)
    large = reserve(step=2, input_tokens=cap)
    assert (await child.commit(reserve=large)).reserve.denied.reason == "TOKEN_LIMIT"
    approval = task_pb2.Wait(kind=task_pb2.WAIT_KIND_APPROVAL, call_id="1.0", options=["approve", "deny"])
    user = task_pb2.TASK_STATE_WAITING_USER
    await child.commit(transition=pb.Transition(to_state=user, reason="APPROVAL_REQUESTED", wait=approval))
    wait_id = (await replica.get(task_id)).wait.wait_id
    said = pb.WaitAnswer(wait_id=wait_id, decision="approve", extra_budget_tokens=500)
    request = pb.AppendForeignRequest(task_id=task_id, request_id="r-1", actor="bob", wait_answer=said)
    for _ in range(2):
        await replica.stub.AppendForeign(request, timeout=TIMEOUT_SECONDS)
    assert (await replica.get(parent.task.task_id)).budget.max_tokens == 9500
    own = "select own_max_tokens from ledger.tasks where task_id = %s"
    assert await replica.query(own, task_id) == [(cap + 500,)]
    again = await replica.claim(task_id)
    assert (await again.commit(reserve=large)).reserve.HasField("granted")


async def test_late_sub_agents_are_cancelled_at_the_deadline(replica: Checkpoint) -> None:
    parent = await waiting(replica)
    first, late = parent.wait.sub_agent_task_ids
    await finish(replica, first, "one")
    holder = await replica.claim(late)
    await replica.query("update ledger.tasks set wait_deadline_at = now() where task_id = %s", parent.task_id)
    woken = await in_state(replica, parent.task_id, QUEUED)
    assert woken.reason == "WAIT_EXPIRED"
    assert await results(replica, parent.task_id) == ["one", "[timeout]"]
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not (await replica.get(late)).cancel_requested:
            await asyncio.sleep(0.02)
    await holder.commit(transition=pb.Transition(to_state=SUCCEEDED, reason="FINAL_ANSWER", result="too late"))
    stopped = await replica.get(late)
    assert (stopped.state, stopped.reason, stopped.result) == (CANCELLED, "NOT_AWAITED", "too late")
    assert kinds(await replica.entries(parent.task_id)).count("tool_outcome") == 1


async def test_a_cancel_reaches_the_whole_tree(replica: Checkpoint) -> None:
    parent = await waiting(replica)
    first, second = parent.wait.sub_agent_task_ids
    middle = await replica.claim(first)
    await middle.commit(reserve=reserve())
    await middle.commit(answer(), call(("deep",)))
    await middle.commit(transition=wait())
    (deep,) = ids(first, 1)
    await replica.cancel(parent.task_id)
    for task_id in (parent.task_id, first, second, deep):
        task = await in_state(replica, task_id, CANCELLED)
        assert task.reason == ("CANCEL_REQUESTED" if task_id == parent.task_id else "PARENT_ENDED")
    assert (await outcome_of(replica, parent.task_id)).status == tool_pb2.OUTCOME_STATUS_CANCELLED


async def test_a_parent_that_ends_otherwise_stops_its_sub_agents(replica: Checkpoint) -> None:
    owner, _ = await spawner(replica)
    closed = ledger_pb2.ToolOutcome(call_id="1.0", outcome=tool_pb2.Outcome(status=tool_pb2.OUTCOME_STATUS_NOT_RUN))
    end = pb.Transition(to_state=task_pb2.TASK_STATE_COST_EXCEEDED, reason="TOKEN_LIMIT", result="so far")
    await owner.commit(entry(1, tool_outcome=closed), transition=end)
    for task_id in ids(owner.task.task_id, 2):
        assert (await in_state(replica, task_id, CANCELLED)).reason == "PARENT_ENDED"


async def test_a_requeued_sub_agent_outlives_its_call_not_a_cancel(
    replica: Checkpoint,
) -> None:
    parent = await waiting(replica, call(("a",)))
    (child,) = parent.wait.sub_agent_task_ids
    await finish(replica, child, state=FAILED, reason="MODEL_REJECTED")
    owner = await replica.claim((await in_state(replica, parent.task_id, QUEUED)).task_id)
    inner_request = ledger_pb2.OperatorRequest(reason="again", requeue=ledger_pb2.OperatorRequest.Requeue())
    request = pb.AppendForeignRequest(task_id=child, request_id="r-1", actor="bob", operator_request=inner_request)
    await replica.stub.AppendForeign(request, timeout=TIMEOUT_SECONDS)
    await replica.requeue(owner)
    await notice_of_every_sub_agent(replica)
    assert (await replica.get(child)).state == QUEUED
    await replica.cancel(parent.task_id)
    assert (await in_state(replica, child, CANCELLED)).attempt == 2


async def notice_of_every_sub_agent(replica: Any) -> None:
    """Until no news is left."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await replica.query("select 1 from ledger.family_news limit 1"):
            await asyncio.sleep(0.02)


async def test_a_wait_for_sub_agents_follows_its_commit(
    replica: Checkpoint,
) -> None:
    parent = await waiting(replica)
    said = pb.WaitAnswer(wait_id=parent.wait.wait_id, decision="approve")
    request = pb.AppendForeignRequest(task_id=parent.task_id, request_id="r-1", actor="bob", wait_answer=said)
    with pytest.raises(InvalidRequest):
        await replica.stub.AppendForeign(request, timeout=TIMEOUT_SECONDS)
    owner = await replica.claim((await replica.create()).task_id)
    with pytest.raises(InvalidRequest):
        await owner.commit(call(), transition=wait())


async def test_concurrent_ends_wake_each_parent_once(
    checkpoint: MakeCheckpoint,
) -> None:
    """Two replicas, many trees in one moment: no deadlock, nothing forgotten, each call with one outcome."""
    replica = await checkpoint()
    other_replica = await checkpoint(dsn=replica.dsn)
    parents = [await waiting(replica, call(("a", "b", "c"))) for _ in range(6)]
    holders = {
        task_id: await (replica, other_replica)[number % 2].claim(task_id)
        for parent in parents
        for number, task_id in enumerate(parent.wait.sub_agent_task_ids)
    }
    at = "update ledger.tasks set wait_deadline_at = now() + interval '50 ms' where task_id = any(%s::uuid[])"
    await replica.query(at, [one.task_id for one in parents[::3]])
    done = pb.Transition(to_state=SUCCEEDED, reason="FINAL_ANSWER", result="x")
    ends = [holder.commit(transition=done) for holder in holders.values()]
    cancels = [other_replica.cancel(parent.task_id) for parent in parents[1::3]]
    said = await asyncio.gather(*ends, *cancels)
    assert len(said) == len(ends) + len(cancels)
    await notice_of_every_sub_agent(replica)
    for number, parent in enumerate(parents):
        task = await in_state(replica, parent.task_id, QUEUED, CANCELLED)
        assert task.state == CANCELLED or number % 3 != 1
        response = kinds(await replica.entries(parent.task_id))
        assert response.count("tool_outcome") == 1
        assert response.count("wait_resolution") == (task.state == QUEUED or "wait_resolution" in response)
    counted = await replica.query("select deadlocks from pg_stat_database where datname = current_database()")
    assert counted == [(0,)]
