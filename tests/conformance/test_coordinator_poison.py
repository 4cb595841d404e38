"""Law of poisons: a task that kills its workers ends as CRASH_LOOP, and takes no other task with it."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from tenure.v1 import checkpoint_service_pb2 as ledger_pb
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.v1 import task_pb2
from tests.support.fix_coordinator import Fleet
from tests.support.patience import PATIENCE_SECONDS
from tests.support.scripted_worker import ScriptedWorker
from tests.support.service_process import ServiceProcess

FAILED, SUCCEEDED = task_pb2.TASK_STATE_FAILED, task_pb2.TASK_STATE_SUCCEEDED
STEP_SECONDS = 1.0
"""The time of a step. The poison is quicker, so its neighbours make no progress."""


@pytest.mark.faults
async def test_a_poisoned_task_ends_as_crash_loop_and_others_succeed(fleet: Fleet) -> None:
    """One worker at a time, which takes all tasks: no other worker takes a neighbour away."""
    replica = await fleet.coordinator(reconnect_grace_seconds="0.1")
    neighbours = await fleet.submit_many(3)
    poison = await fleet.submit()
    neighbours |= await fleet.submit_many(4)
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
        working = group.create_task(_workers_that_die_of(poison, fleet, replica))
        ended = await fleet.task_where(poison, lambda task: task.HasField("end_time"))
        for task_id in neighbours:
            await fleet.task_where(task_id, lambda task: task.HasField("end_time"))
        working.cancel()
    assert (ended.state, ended.reason) == (FAILED, "CRASH_LOOP")
    tasks = [await fleet.task(task_id) for task_id in neighbours]
    assert [task.state for task in tasks] == [SUCCEEDED] * len(neighbours)
    deaths = [each.reason for task_id in neighbours for each in await fleet.transitions(task_id)].count("WORKER_LOST")
    assert deaths >= len(neighbours), "the poison had no neighbours: nothing was shown"


async def _workers_that_die_of(poison: str, fleet: Fleet, replica: ServiceProcess) -> None:
    """A worker after the other, each under a new name, as a supervisor starts them."""
    for number in count(1):
        worker = await fleet.worker(replica, slots=16, worker_id=f"host-{number}")
        await _works_until_it_dies(worker, poison)
        await worker.break_off()


async def _works_until_it_dies(worker: ScriptedWorker, poison: str) -> None:
    """Begins every task it is granted; returns, and so dies, a moment after the poison is one of them."""
    async with asyncio.TaskGroup() as group:
        steps = []
        while True:
            grant = await worker.next_grant()
            header = await worker.open(grant)
            if grant.task_id == poison:
                await asyncio.sleep(STEP_SECONDS / 4)  # those granted with it are begun too
                break
            steps.append(group.create_task(_next_step(worker, grant, header.task.step + 1)))
        for step in steps:
            step.cancel()


async def _next_step(worker: ScriptedWorker, grant: pb.Grant, step: int) -> None:
    """One step, and the end after another."""
    await asyncio.sleep(STEP_SECONDS)
    reserve = ledger_pb.Reserve(
        step=step, attempt_number=1, model="m", input_tokens=1, min_output_tokens=1, max_output_tokens=8
    )
    await worker.commit(grant, 1, reserve=reserve)
    await asyncio.sleep(STEP_SECONDS)
    ended = ledger_pb.Transition(to_state=SUCCEEDED, reason="FINAL_ANSWER", result="done")
    await worker.commit(grant, 2, transition=ended)
    await worker.release(grant, "CLOSED")
