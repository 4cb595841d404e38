"""Waits for budget in the ledger: a task at a cap asks, one answer or a grant to its tree continues it, or it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenure.domain.errors import BudgetExhausted, InvalidRequest, WrongState
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.common import duration
from tests.conformance.test_ledger_money import CENT, OPUS, grant, used
from tests.conformance.test_ledger_sub_agents import call, finish, ids, outcome_of, wait
from tests.conformance.test_ledger_waits import in_state, say
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, MakeCheckpoint, answer, entry, kinds, reserve

pytestmark = pytest.mark.server
QUEUED, WAITING_USER = task_pb2.TASK_STATE_QUEUED, task_pb2.TASK_STATE_WAITING_USER
COST_EXCEEDED = task_pb2.TASK_STATE_COST_EXCEEDED
NEXT: Any = {"step": 2, "input_tokens": 100, "output": 100, "least": 100}
"""A call that needs 200 tokens at least."""


def limits(tokens: int = 1000, **more: Any) -> Any:
    return task_pb2.Limits(max_tokens=tokens, **more)


def budget_wait(request: Any, timeout_seconds: float = 3600.0) -> Any:
    begun = task_pb2.Wait(
        kind=task_pb2.WAIT_KIND_BUDGET,
        question="May the task use more budget?",
        options=["approve", "deny"],
        context="so far",
        budget_request=request,
    )
    return pb.Transition(
        to_state=WAITING_USER, reason="BUDGET_REQUESTED", wait=begun, wait_timeout=duration(timeout_seconds)
    )


async def denied(owner: Any, spent: int = 900) -> Any:
    """The request of a task whose second call does not fit any more."""
    await owner.commit(reserve=reserve(output=spent))
    await owner.commit(answer(text="so far", tokens=spent))
    return (await owner.commit(reserve=reserve(**NEXT))).reserve.denied


async def asking(owner: Any, timeout_seconds: float = 3600.0, spent: int = 900) -> Any:
    """A task that waits for budget, as its owner left it."""
    refused = await denied(owner, spent)
    response = await owner.commit(transition=budget_wait(refused.budget_request, timeout_seconds))
    assert response.state == WAITING_USER
    return await owner.replica.get(owner.task.task_id)


async def asking_root(replica: Any, timeout_seconds: float = 3600.0, **more: Any) -> Any:
    owner = await replica.claim((await replica.create(limits=limits(), **more)).task_id)
    return await asking(owner, timeout_seconds)


async def test_a_task_at_its_cap_shows_the_requested_budget(replica: Checkpoint) -> None:
    task = await asking_root(replica)
    request = task.wait.budget_request
    assert (task.reason, task.wait.context, task.owner) == ("BUDGET_REQUESTED", "so far", "")
    assert (request.limit, request.own_cap, request.needed_tokens) == ("TOKEN_LIMIT", False, 200)
    assert (request.budget.used_tokens, request.budget.max_tokens, request.budget.reserved_tokens) == (900, 1000, 0)
    assert request.suggested_tokens == 100 + 1000 // 4


async def test_a_grant_raises_the_roots_cap_and_queues_the_task(replica: Checkpoint) -> None:
    task = await asking_root(replica)
    resumed = await say(replica, task, "once", decision="approve", extra_budget_tokens=500)
    again = await say(replica, task, "once", decision="approve", extra_budget_tokens=500)
    assert (resumed.state, resumed.budget.max_tokens, again.budget.max_tokens) == (QUEUED, 1500, 1500)
    entries = await replica.entries(task.task_id)
    assert kinds(entries)[-2:] == ["wait_resolution", "WAITING_USER>QUEUED"]
    assert (entries[-2].actor, entries[-2].body.wait_resolution.extra_budget_tokens) == ("bob", 500)
    owner = await replica.claim(task.task_id)
    assert (await owner.commit(reserve=reserve(**NEXT))).reserve.HasField("granted")


async def test_an_approval_without_amounts_grants_the_suggestion(replica: Checkpoint) -> None:
    task = await asking_root(replica)
    assert (await say(replica, task, decision="approve")).budget.max_tokens == 1350
    resolution = (await replica.entries(task.task_id))[-2].body.wait_resolution
    assert resolution.extra_budget_tokens == 350


async def test_a_refusal_ends_the_task_at_its_cap(replica: Checkpoint) -> None:
    task = await asking_root(replica)
    ended = await say(replica, task, decision="deny", comment="too dear")
    assert (ended.state, ended.reason, ended.result) == (COST_EXCEEDED, "TOKEN_LIMIT", "so far")
    assert "too dear" in ended.message
    assert kinds(await replica.entries(task.task_id))[-2:] == ["wait_resolution", "WAITING_USER>COST_EXCEEDED"]
    assert (await grant(replica, task.task_id, tokens=500)).state == QUEUED


async def test_a_request_that_expires_ends_the_task_at_its_cap(replica: Checkpoint) -> None:
    retries = task_pb2.Timeouts(wait=task_pb2.PhaseTimeout(action=task_pb2.TIMEOUT_ACTION_RETRY))
    task = await asking_root(replica, 1.0, policy=task_pb2.TaskPolicy(timeouts=retries))
    ended = await in_state(replica, task.task_id, COST_EXCEEDED)
    assert (ended.reason, ended.result) == ("TOKEN_LIMIT", "so far")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"decision": "approve", "extra_budget_tokens": 99}, BudgetExhausted),
        ({"decision": "approve", "extra_budget_nano_usd": 5}, InvalidRequest),
        ({"decision": "deny", "extra_budget_tokens": 500}, InvalidRequest),
        ({"decision": "allow"}, InvalidRequest),
        ({"reply": "yes"}, InvalidRequest),
        ({"wait_id": "w1", "decision": "approve"}, WrongState),
    ],
)
async def test_an_unfit_grant_changes_nothing(replica: Checkpoint, given: Any, error: Any) -> None:
    task = await asking_root(replica)
    with pytest.raises(error):
        await say(replica, task, **given)
    assert await replica.get(task.task_id) == task


async def test_a_grant_of_money_raises_the_cap_in_money(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create(limits=limits(10**6, max_nano_usd=CENT))).task_id)
    await owner.commit(reserve=reserve(input_tokens=100, output=300, model=OPUS))
    await owner.commit(used(input_tokens=100, output_tokens=300))
    refused = (await owner.commit(reserve=reserve(**{**NEXT, "model": OPUS}))).reserve.denied
    await owner.commit(transition=budget_wait(refused.budget_request))
    task = await replica.get(owner.task.task_id)
    request = task.wait.budget_request
    assert (request.limit, request.suggested_tokens) == ("MONEY_LIMIT", 0)
    resumed = await say(replica, task, decision="approve", extra_budget_nano_usd=CENT)
    assert (resumed.state, resumed.budget.max_nano_usd) == (QUEUED, 2 * CENT)


async def family(replica: Any, **more: Any) -> Any:
    """A parent that waits, and the owners of its four sub-agents, whose own caps together exceed the root's."""
    owner = await replica.claim((await replica.create(limits=limits(3000), **more)).task_id)
    await owner.commit(reserve=reserve())
    await owner.commit(answer(), call(max_tokens=1400), call(("c", "d"), "1.1", max_tokens=1400))
    await owner.commit(transition=wait())
    root_id = owner.task.task_id
    return root_id, [await replica.claim(one) for one in (*ids(root_id, 2), *ids(root_id, 2, "1.1"))]


async def until(replica: Any, task_id: str, holds: Any) -> Any:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not holds(task := await replica.get(task_id)):
            await asyncio.sleep(0.02)
        return task


async def asking_siblings(replica: Any) -> Any:
    """Sub-agents have used up the root's budget, and two others ask for more."""
    root_id, owners = await family(replica)
    for owner in owners[:2]:
        await owner.commit(reserve=reserve(output=1200))
        await owner.commit(answer(tokens=1300))
    return root_id, [await asking(owner, spent=spent) for owner, spent in zip(owners[2:], (200, 60), strict=True)]


async def test_a_sub_agent_at_its_own_cap_needs_its_own_answer(replica: Checkpoint) -> None:
    root_id, (owner, *_) = await family(replica)
    task = await asking(owner, spent=1250)
    assert (task.wait.budget_request.own_cap, task.wait.budget_request.budget.max_tokens) == (True, 1400)
    await grant(replica, root_id, tokens=1000)
    renewed = await until(replica, task.task_id, lambda now: now.update_time != task.update_time)
    assert (renewed.state, renewed.wait.wait_id) == (WAITING_USER, task.wait.wait_id)
    resumed = await say(replica, task, decision="approve", extra_budget_tokens=100)
    assert (resumed.state, resumed.budget.max_tokens) == (QUEUED, 4100)
    again = await replica.claim(task.task_id)
    assert (await again.commit(reserve=reserve(**NEXT))).reserve.HasField("granted")


async def test_an_answer_to_one_sub_agent_resumes_its_siblings(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    root_id, (one, other) = await asking_siblings(replica)
    assert not one.wait.budget_request.own_cap
    resumed = await say(replica, one, decision="approve", extra_budget_tokens=1000)
    assert (resumed.state, resumed.budget.max_tokens) == (QUEUED, 4000)
    sibling = await in_state(replica, other.task_id, QUEUED)
    assert (sibling.reason, sibling.HasField("wait")) == ("BUDGET_GRANTED", False)
    resolution = (await replica.entries(other.task_id))[-2]
    assert (resolution.actor, resolution.body.wait_resolution.extra_budget_tokens) == ("checkpoint", 0)
    assert (await replica.get(root_id)).state == task_pb2.TASK_STATE_WAITING_EXTERNAL


async def test_a_grant_to_the_root_resumes_all_that_ask(replica: Checkpoint) -> None:
    root_id, tasks = await asking_siblings(replica)
    await grant(replica, root_id, tokens=20)
    for task in tasks:  # too little: they see it, and wait on
        shown = await until(replica, task.task_id, lambda task: task.wait.budget_request.budget.max_tokens == 3020)
        assert (shown.state, shown.wait.wait_id) == (WAITING_USER, task.wait.wait_id)
    await grant(replica, root_id, tokens=1000)
    for task in tasks:
        await in_state(replica, task.task_id, QUEUED)


async def test_a_grant_before_the_wait_begins_is_not_missed(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create(limits=limits())).task_id)
    refused = await denied(owner)
    await grant(replica, owner.task.task_id, tokens=500)
    response = await owner.commit(transition=budget_wait(refused.budget_request))
    assert response.state == QUEUED
    moved = kinds(await replica.entries(owner.task.task_id))[-3:]
    assert moved == ["RUNNING>WAITING_USER", "wait_resolution", "WAITING_USER>QUEUED"]


async def test_racing_grants_and_waits_leave_no_task_waiting(replica: Checkpoint) -> None:
    for _ in range(8):
        owner = await replica.claim((await replica.create(limits=limits())).task_id)
        refused = await denied(owner)
        await asyncio.gather(
            grant(replica, owner.task.task_id, tokens=500),
            owner.commit(transition=budget_wait(refused.budget_request)),
        )
        await in_state(replica, owner.task.task_id, QUEUED)


async def test_a_task_with_open_calls_cannot_wait_for_budget(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create(limits=limits())).task_id)
    refused = await denied(owner)
    intent = ledger_pb2.ToolIntent(call_id="1.0", tool_use_id="u", tool="pay", arguments_json="{}")
    with pytest.raises(InvalidRequest):
        await owner.commit(entry(1, tool_intent=intent), transition=budget_wait(refused.budget_request))


async def test_a_cancelled_task_no_longer_asks(replica: Checkpoint) -> None:
    task = await asking_root(replica)
    assert (await replica.cancel(task.task_id)).state == task_pb2.TASK_STATE_CANCELLED
    with pytest.raises(WrongState):
        await say(replica, task, decision="approve")


async def test_a_sub_agents_own_cap_warns_at_80_percent(replica: Checkpoint) -> None:
    _, (owner, *_) = await family(replica)
    await owner.commit(reserve=reserve(output=1119))
    await owner.commit(answer(tokens=1119))
    await owner.commit(reserve=reserve(step=2, input_tokens=1, output=10))
    warned = await owner.commit(answer(step=2, tokens=1))
    [warning] = [one.body.budget_warning for one in warned.foreign_entries]
    assert (warning.limit, warning.own.used_tokens, warning.own.max_tokens) == ("TOKEN_LIMIT", 1120, 1400)
    assert warning.budget.max_tokens == 3000


async def test_the_sub_agents_that_ended_at_a_cap_run_again(replica: Checkpoint) -> None:
    root_id, (first, *others) = await family(replica)
    await first.commit(transition=pb.Transition(to_state=COST_EXCEEDED, reason="TOKEN_LIMIT", result="half"))
    await grant(replica, root_id, tokens=1000)
    again = await in_state(replica, first.task.task_id, QUEUED)
    assert (again.attempt, again.reason) == (2, "BUDGET_GRANTED")
    assert kinds(await replica.entries(again.task_id))[-2:] == ["operator_request", "COST_EXCEEDED>QUEUED"]
    for owner in others:
        await finish(replica, owner.task.task_id)
    assert (await replica.get(root_id)).state == task_pb2.TASK_STATE_WAITING_EXTERNAL
    await finish(replica, first.task.task_id, "whole")
    await in_state(replica, root_id, QUEUED)
    assert "whole" in (await outcome_of(replica, root_id)).content


async def test_a_grant_before_a_sub_agent_ends_is_not_missed(replica: Checkpoint) -> None:
    """The ledger of a sub-agent has no entry of a grant to the root."""
    root_id, owners = await family(replica)
    for owner in owners[:2]:
        await owner.commit(reserve=reserve(output=1200))
        await owner.commit(answer(tokens=1300))
    first, second = owners[2:]
    assert (await denied(first, spent=200)).reason == "TOKEN_LIMIT"
    ends = pb.Transition(to_state=COST_EXCEEDED, reason="TOKEN_LIMIT")
    await grant(replica, root_id, tokens=1000)
    with pytest.raises(WrongState) as refused:
        await first.commit(transition=ends)
    assert refused.value.reason == "UNREAD_GRANT"
    again = await replica.open(first.token, first.claims)
    assert (await again.commit(reserve=reserve(**NEXT))).reserve.HasField("granted")
    assert (await second.commit(transition=ends)).state == COST_EXCEEDED  # no model call of it was denied


async def test_a_grant_continues_sub_agents_of_every_open_call(replica: Checkpoint) -> None:
    """The parent waits for the sub-agents of its first call; those of its second have ended at a cap."""
    root_id, (_, _, owner, _) = await family(replica)
    assert (await replica.get(root_id)).wait.call_id == "1.0"
    await owner.commit(transition=pb.Transition(to_state=COST_EXCEEDED, reason="TOKEN_LIMIT", result="half"))
    await grant(replica, root_id, tokens=1000)
    assert (await in_state(replica, owner.task.task_id, QUEUED)).attempt == 2


async def test_a_grant_changes_no_outcome_that_was_read(replica: Checkpoint) -> None:
    """The parent has the outcome of its first call, and is queued with its second call open."""
    root_id, (first, second, third, _) = await family(replica)
    for owner in (first, second, third):
        await owner.commit(transition=pb.Transition(to_state=COST_EXCEEDED, reason="TOKEN_LIMIT", result="half"))
    await in_state(replica, root_id, QUEUED)
    await grant(replica, root_id, tokens=1000)
    await in_state(replica, third.task.task_id, QUEUED)
    attempts = [(await replica.get(owner.task.task_id)).attempt for owner in (first, second, third)]
    assert attempts == [1, 1, 2]
