"""Escalations in the ledger: each step once, whatever number of replicas sweep, and gone with the wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenure.domain.errors import InvalidRequest
from tenure.v1 import task_pb2
from tenure.wire.common import duration, moment
from tests.conformance.test_ledger_budget_waits import asking_root
from tests.conformance.test_ledger_operator_waits import begin
from tests.conformance.test_ledger_waits import QUEUED, TIMED_OUT, WAITING_USER, in_state, say, waiting
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, MakeCheckpoint, kinds


def policy(*steps: Any) -> Any:
    return task_pb2.TaskPolicy(escalations=task_pb2.WaitEscalations(person=steps))


def step(after_seconds: float, **action: Any) -> Any:
    return task_pb2.EscalationStep(after=duration(after_seconds), **action)


async def steps_taken(replica: Any, task_id: str, count: int) -> Any:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (task := await replica.get(task_id)).wait.steps_taken < count:
            await asyncio.sleep(0.02)
        return task


async def escalations(replica: Any, task_id: str) -> list[Any]:
    entries = await replica.entries(task_id)
    return [one.body.wait_escalated for one in entries if one.body.HasField("wait_escalated")]


async def test_two_replicas_take_each_step_once(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    await checkpoint(dsn=replica.dsn)
    steps = [step(1), step(1.2, assignee="lead"), step(1.4, queue="urgent"), step(1.6, priority=1), step(900)]
    task = await waiting(replica, policy=policy(*steps))
    assert task.wait.next_step == steps[0]
    assert (moment(task.wait.next_step_time) - moment(task.wait.begin_time)).total_seconds() == 1
    task = await steps_taken(replica, task.task_id, 4)
    assert (task.state, task.wait.assignee, task.wait.next_step) == (WAITING_USER, "lead", steps[4])
    taken = await escalations(replica, task.task_id)
    assert [(one.step_number, one.step) for one in taken] == list(enumerate(steps[:4], start=1))
    assert {one.wait_id for one in taken} == {task.wait.wait_id}
    row = f"select queue, priority from ledger.tasks where task_id = '{task.task_id}'"
    assert await replica.query(row) == [("urgent", 1)]
    changes = "select state, count(*) from ledger.changes where reason = 'WAIT_ESCALATED' group by state"
    assert await replica.query(changes) == [("WAITING_USER", 4)]


async def test_an_answer_ends_the_escalation(replica: Checkpoint) -> None:
    task = await waiting(replica, policy=policy(step(900)))
    await say(replica, task, decision="approve")
    task = await in_state(replica, task.task_id, QUEUED)
    row = f"select wait_step_at from ledger.tasks where task_id = '{task.task_id}'"
    assert await replica.query(row) == [(None,)]


async def test_a_close_out_step_keeps_the_partial_result(replica: Checkpoint) -> None:
    task = await waiting(replica, policy=policy(step(1, close_out=True)))
    ended = await in_state(replica, task.task_id, TIMED_OUT)
    assert (ended.reason, ended.result) == ("CLOSED_BY_ESCALATION", "so far")
    entries = kinds(await replica.entries(task.task_id))
    assert entries[-4:] == ["wait_escalated", "wait_resolution", "tool_outcome", "WAITING_USER>TIMED_OUT"]


async def test_a_wait_for_budget_is_escalated_too(replica: Checkpoint) -> None:
    task = await asking_root(replica, policy=policy(step(1, queue="urgent"), step(900)))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not (task := await replica.get(task.task_id)).wait.steps_taken:
            await asyncio.sleep(0.02)
    assert (task.reason, task.wait.steps_taken) == ("BUDGET_REQUESTED", 1)
    task = await say(replica, task, decision="approve")
    assert (task.state, task.queue, task.spec.queue) == (QUEUED, "urgent", "default")


async def test_a_close_out_step_ends_a_wait_for_budget(replica: Checkpoint) -> None:
    task = await asking_root(replica, policy=policy(step(1, close_out=True)))
    ended = await in_state(replica, task.task_id, TIMED_OUT)
    assert (ended.reason, ended.HasField("wait")) == ("CLOSED_BY_ESCALATION", False)
    entries = kinds(await replica.entries(task.task_id))
    assert entries[-3:] == ["wait_escalated", "wait_resolution", "WAITING_USER>TIMED_OUT"]


async def test_the_wait_of_an_operator_takes_its_steps(replica: Checkpoint) -> None:
    steps = [step(1, assignee="lead"), step(1.2, queue="urgent"), step(1.4, close_out=True)]
    task = await begin(replica, (await replica.create(policy=policy(*steps))).task_id)
    assert (task.wait.kind, task.wait.next_step) == (task_pb2.WAIT_KIND_OPERATOR, steps[0])
    ended = await in_state(replica, task.task_id, TIMED_OUT)
    assert (ended.reason, ended.queue, ended.HasField("wait")) == ("CLOSED_BY_ESCALATION", "urgent", False)
    assert [one.step for one in await escalations(replica, task.task_id)] == steps
    entries = kinds(await replica.entries(task.task_id))
    assert entries[-2:] == ["wait_resolution", "WAITING_USER>TIMED_OUT"]


async def test_a_step_after_the_deadline_is_not_planned(replica: Checkpoint) -> None:
    task = await waiting(replica, policy=policy(step(60)), timeout_seconds=60)
    assert not task.wait.HasField("next_step")


async def test_wrong_steps_are_refused_at_submit(replica: Checkpoint) -> None:
    with pytest.raises(InvalidRequest, match="escalations"):
        await replica.create(policy=policy(step(5), step(5)))
