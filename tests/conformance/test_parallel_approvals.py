"""Calls of one answer that need approval wait together: each is decided by itself, and a kill keeps the answers."""

from __future__ import annotations

import json
import uuid

from tenure.domain import entries as facts
from tenure.domain.states import TaskState
from tenure.domain.task import AgentSpec, TaskSpec
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.wire.common import state_name
from tenure.wire.task import spec_to_wire
from tests.support.fix_worker import WorkerBench
from tests.support.patience import CALL_SECONDS

TOOL = "append_record_unsafe"


async def begin(bench: WorkerBench) -> task_pb2.Task:
    agent = AgentSpec(model="sim-worker-two-calls", approve_tools=(TOOL,))
    spec = TaskSpec(f"record-{uuid.uuid4().hex}", agent=agent, queue=bench.queue)
    request = pb.CreateTaskRequest(request_id=str(uuid.uuid4()), spec=spec_to_wire(spec))
    task_id = str((await bench.ledger.CreateTask(request, timeout=CALL_SECONDS)).task.task_id)
    return await bench.in_state(task_id, TaskState.WAITING_USER)


async def decide(
    bench: WorkerBench, task: task_pb2.Task, call: task_pb2.WaitingCall, word: str, edited: str = ""
) -> None:
    one = task_pb2.CallDecision(
        call_id=call.call_id, decision=word, call_digest=call.call_digest, edited_arguments_json=edited
    )
    await bench._say(task.task_id, wait_answer=pb.WaitAnswer(wait_id=task.wait.wait_id, calls=[one]))


async def test_kill_keeps_the_decisions_on_equal_calls(bench: WorkerBench) -> None:
    await bench.start_worker(failpoints="worker.after_execute=2#kill9")
    task = await begin(bench)
    first, second = task.wait.calls
    assert (first.call_id, second.call_id, first.call_digest == second.call_digest) == ("1.0", "1.1", True)
    assert task.wait.question == f"May these 2 calls of {TOOL} be made?"
    edited = json.dumps(json.loads(second.arguments_json) | {"line": "other"})
    await decide(bench, task, second, "edit", edited)  # the worker that runs the call is killed
    await bench.start_worker()
    await bench.reached(task.task_id, facts.ToolOutcome)
    again = await bench.in_state(task.task_id, TaskState.WAITING_USER)
    assert (again.wait.call_id, list(again.wait.calls)) == ("1.0", [])
    await bench.answer(again, "deny")
    ended = await bench.ended(task.task_id)
    assert state_name(ended.state) == TaskState.SUCCEEDED, ended.message
    outcomes = {body.call_id: body.outcome for body in await bench.bodies(task.task_id, facts.ToolOutcome)}
    assert (outcomes["1.0"].status, outcomes["1.0"].note) == ("NOT_ALLOWED", "")
    assert outcomes["1.1"].note == f"A person changed the arguments of {TOOL} before it was run: {edited}"
    denied, _, ran = ended.result.partition(" | ")
    assert ("denied" in denied, "A person changed the arguments" in ran) == (True, True)
