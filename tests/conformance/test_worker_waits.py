"""Waiting tasks under workers that die at the worst moments: one wait, one answer, one effect."""

from __future__ import annotations

import uuid
from typing import Any

from tenure.domain import entries as facts
from tenure.domain.states import TaskState
from tenure.domain.task import AgentSpec, TaskSpec
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.wire.common import state_name
from tenure.wire.task import spec_to_wire
from tests.support.fix_worker import WorkerBench
from tests.support.patience import CALL_SECONDS


async def submit(bench: Any, model: Any, **agent: Any) -> Any:
    spec = TaskSpec(goal=f"record-{uuid.uuid4().hex}", agent=AgentSpec(model=model, **agent), queue=bench.queue)
    request = pb.CreateTaskRequest(request_id=str(uuid.uuid4()), spec=spec_to_wire(spec))
    return (await bench.ledger.CreateTask(request, timeout=CALL_SECONDS)).task.task_id


async def answer(bench: Any, task: Any, decision: Any) -> None:
    said = pb.WaitAnswer(wait_id=task.wait.wait_id, call_digest=task.wait.call_digest, decision=decision)
    request = pb.AppendForeignRequest(task_id=task.task_id, request_id=str(uuid.uuid4()), actor="bob", wait_answer=said)
    await bench.ledger.AppendForeign(request, timeout=CALL_SECONDS)


async def test_a_worker_that_dies_before_a_wait_leaves_it_to_the_next(bench: WorkerBench) -> None:
    await bench.start_worker(failpoints="worker.after_intent=1#kill9")
    task_id = await submit(bench, "sim-approval")
    await bench.start_worker()
    task = await bench.in_state(task_id, TaskState.WAITING_USER)
    assert task.owner == ""
    await answer(bench, task, "deny")
    ended = await bench.ended(task_id)
    assert (state_name(ended.state), "deny" in ended.result) == ("SUCCEEDED", True)
    assert len(bench.model_calls(task_id)) == 2
    assert len(await bench.bodies(task_id, facts.WaitResolution)) == 1


async def test_an_approved_call_runs_once_despite_a_crash(bench: WorkerBench) -> None:
    """Who executes it dies after the effect and before the outcome is committed: it is answered from the record."""
    dying = await bench.start_worker(failpoints="worker.after_execute=2#kill9")  # the first time it only asked
    task_id = await submit(bench, "sim-worker-unsafe", approve_tools=("append_record_unsafe",))
    task = await bench.in_state(task_id, TaskState.WAITING_USER)
    assert await bench.effects(task_id) == []
    await answer(bench, task, "allow")
    await bench.died(dying)
    await bench.start_worker()
    assert state_name((await bench.ended(task_id)).state) == "SUCCEEDED"
    assert await bench.effects(task_id) == ["once"]
    assert len(await bench.bodies(task_id, facts.WaitResolution)) == 1


async def test_an_event_reaches_the_model(bench: WorkerBench) -> None:
    await bench.start_worker()
    task_id = await bench.submit("sim-event")  # its goal names the event
    task = await bench.in_state(task_id, TaskState.WAITING_EXTERNAL)
    assert task.wait.correlation_id == task.spec.goal
    request = pb.SendSignalRequest(
        correlation_id=task.spec.goal, request_id="r", actor="outside", payload_json='{"n": 1}'
    )
    await bench.ledger.SendSignal(request, timeout=CALL_SECONDS)
    assert '"n": 1' in (await bench.ended(task_id)).result
