"""Agents that repeat a failing call, on real services: they read it, and their tasks end or ask."""

from __future__ import annotations

import uuid

import pytest

from tenure.domain import entries as facts
from tenure.domain.conversation import text_of
from tenure.domain.progress import MARK
from tenure.domain.states import TaskState
from tenure.domain.task import AgentSpec, ControlWork, NoProgressPolicy, TaskPolicy, TaskSpec
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.wire.common import state_name
from tenure.wire.task import spec_to_wire
from tests.support.fix_worker import WorkerBench
from tests.support.patience import CALL_SECONDS
from tests.support.sweeps import first

TOOLS = ("read_file",)


async def notes_of(bench: WorkerBench, task_id: str) -> dict[str, str]:
    outcomes = await bench.bodies(task_id, facts.ToolOutcome)
    return {body.call_id: body.outcome.note for body in outcomes if body.outcome.note}


async def fourth_answer(bench: WorkerBench, task_id: str) -> str:
    return text_of((await bench.bodies(task_id, facts.AssistantMessage))[3].content)


@pytest.mark.parametrize("failpoints", first(["worker.after_execute=3#kill9", "", "worker.before_close_out=1#kill9"]))
async def test_call_that_always_fails_is_bought_six_times(bench: WorkerBench, failpoints: str) -> None:
    """Two hundred model calls were bought before."""
    await bench.start_worker(failpoints=failpoints)
    if failpoints:
        await bench.start_worker()
    task_id = await bench.submit("sim-worker-stuck", tools=TOOLS)
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.reason) == (TaskState.FAILED, "NO_PROGRESS"), task.message
    assert 'read_file {"path": "none.txt"} was made 6 times' in task.message
    assert len(bench.model_calls(task_id)) == 6
    assert list(await notes_of(bench, task_id)) == ["3.0"]
    assert MARK in await fourth_answer(bench, task_id), "the model read it in the outcome of its call"


async def test_task_asks_and_goes_on(bench: WorkerBench) -> None:
    await bench.start_worker()
    policy = TaskPolicy(on_no_progress=NoProgressPolicy.ASK)
    task_id = await bench.submit("sim-worker-stuck", tools=TOOLS, policy=policy)
    task = await bench.in_state(task_id, TaskState.WAITING_USER)
    assert (task.reason, len(bench.model_calls(task_id))) == ("NO_PROGRESS", 6)
    assert "was made 6 times" in task.wait.question
    await bench.answer(task, "continue")
    await bench.reached(task_id, facts.ModelAttempt, 11)
    again = await bench.in_state(task_id, TaskState.WAITING_USER)
    assert (again.reason, len(bench.model_calls(task_id))) == ("NO_PROGRESS", 11)
    await bench.cancel(task_id)
    assert state_name((await bench.ended(task_id)).state) == TaskState.CANCELLED


async def test_agent_in_python_is_braked(bench: WorkerBench) -> None:
    await bench.start_worker(loops="control", control_modules="tests.support.python_agents")
    agent = AgentSpec(loop="control", model="sim-python")
    spec = TaskSpec("Look up order 7", agent=agent, queue=bench.queue, control=ControlWork("stuck"))
    request = pb.CreateTaskRequest(request_id=str(uuid.uuid4()), spec=spec_to_wire(spec))
    task_id = str((await bench.ledger.CreateTask(request, timeout=CALL_SECONDS)).task.task_id)
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.reason) == (TaskState.FAILED, "NO_PROGRESS"), task.message
    assert "order 7 does not exist" in task.message
    assert len(bench.model_calls(task_id)) == 6
    assert len(await notes_of(bench, task_id)) == 1
    assert MARK in await fourth_answer(bench, task_id), "the model read it in the failure"
