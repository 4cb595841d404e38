"""Control work on real services: functions with the same lease, record, fence and close-out as agents."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from devstack.child_process import ServiceDied
from devstack.service_process import ServiceProcess
from tenure.domain import entries as facts
from tenure.domain.entries import SubAgentsSpawned
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import TaskState
from tenure.domain.task import AgentSpec, ControlWork, Limits, TaskPolicy, TaskSpec
from tenure.runtime.request_context import DEFAULT_TENANT
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.wire.common import state_name
from tenure.wire.task import spec_to_wire
from tests.support.fix_simulator import REPOSITORY
from tests.support.fix_worker import SHARED_QUEUE, WorkerBench
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.sweeps import one_of_each
from tests.support.written_lines import whole_records

CONTROL_MODULE = "tests.support.control_functions"
OFTEN = TaskPolicy(retry=RetryPolicy(max_attempts=100, initial_seconds=0.5, factor=1.0, cap_seconds=0.5))
SOON = TaskPolicy(retry=RetryPolicy(max_attempts=3, initial_seconds=0.01, factor=1.0, cap_seconds=0.01))
EFFECTS = ["keyed", "last", "total 6"]


class Functions:
    """Control tasks of one test: what they are given, and what they left behind."""

    def __init__(self, bench: WorkerBench, folder: Path, queue: str) -> None:
        self.bench, self.folder, self.queue = bench, folder, queue
        self.file = f"record-{uuid.uuid4().hex}"

    async def worker(
        self, *, failpoints: str = "", modules: str = CONTROL_MODULE, loops: str = "control"
    ) -> ServiceProcess:
        """One of the test's own, that has the functions and no model."""
        self.queue = self.bench.queue
        return await self.bench.start_worker(failpoints=failpoints, loops=loops, control_modules=modules)

    async def submit(
        self,
        function: str,
        given: Any = None,
        *,
        limits: Limits | None = None,
        policy: TaskPolicy = SOON,
        model: str = "",
    ) -> str:
        """By default it is given its files. `model`: of its sub-agents."""
        control = ControlWork(function, json.dumps(self.given() if given is None else given))
        spec = TaskSpec(
            goal="",
            agent=AgentSpec(loop="control", model=model),
            limits=limits or Limits(),
            policy=policy,
            queue=self.queue,
            control=control,
        )
        request = pb.CreateTaskRequest(request_id=str(uuid.uuid4()), spec=spec_to_wire(spec))
        return str((await self.bench.ledger.CreateTask(request, timeout=CALL_SECONDS)).task.task_id)

    def given(self, **more: Any) -> dict[str, Any]:
        files = {"trace": str(self.folder / "trace"), "gate": str(self.folder / "gate"), "file": self.file}
        return {**files, "numbers": [1, 2, 3], **more}

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    def made(self) -> list[str]:
        """The steps that were really made."""
        path = self.folder / "trace"
        return path.read_text().split() if path.exists() else []

    async def has_made(self, *steps: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.made() != list(steps):
                await asyncio.sleep(0.02)

    def effects(self) -> list[str]:
        path = self.bench.stack.layout.records / DEFAULT_TENANT / f"{self.file}.jsonl"
        return sorted(record["line"] for record in whole_records(path))


@pytest.fixture
def functions(
    bench: WorkerBench, shared_worker: ServiceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Functions:
    add = bench.stack.add_worker
    monkeypatch.setattr(bench.stack, "add_worker", lambda more: add({**more, "PYTHONPATH": str(REPOSITORY)}))
    return Functions(bench, tmp_path, SHARED_QUEUE)


async def test_a_function_is_run_to_its_result(functions: Functions) -> None:
    functions.open_gate()
    task_id = await functions.submit("records")
    task = await functions.bench.ended(task_id)
    assert (state_name(task.state), task.reason) == (TaskState.SUCCEEDED, "FUNCTION_RETURNED"), task.message
    assert json.loads(task.result) == {"total": 6, "said": True, "key": "4"}
    assert functions.made() == ["total", "gate"]
    assert functions.effects() == EFFECTS
    assert functions.bench.model_calls(task_id) == []


async def test_killed_workers_are_replaced_without_a_second_effect(functions: Functions) -> None:
    """One is killed in a step, which is made again; the next when the outcomes of its calls were known to it alone.

    The first moment after an execute is that of its step.
    """
    killed = await functions.worker()
    task_id = await functions.submit("records")
    await functions.has_made("total", "gate")
    killed.kill()
    dying = await functions.worker(failpoints="worker.after_execute=2#kill9")
    await functions.has_made("total", "gate", "gate")
    functions.open_gate()
    await functions.bench.died(dying)
    await functions.worker()
    task = await functions.bench.ended(task_id)
    assert (state_name(task.state), task.claim_count) == (TaskState.SUCCEEDED, 3), task.message
    assert functions.made() == ["total", "gate", "gate"]
    assert functions.effects() == EFFECTS
    steps = [step.name for step in await functions.bench.bodies(task_id, facts.ControlStep)]
    assert steps == ["total", "gate"]


@pytest.mark.faults
async def test_parallel_steps_are_recorded_in_order(functions: Functions) -> None:
    """Killed while the second waits: the first is recorded, the others are made again."""
    killed = await functions.worker()
    task_id = await functions.submit("parallel")
    await functions.bench.reached(task_id, facts.ControlStep, 2)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while sorted(functions.made()) != ["part-0", "part-1", "part-2", "prepare"]:
            await asyncio.sleep(0.02)
    killed.kill()
    functions.open_gate()
    await functions.worker()
    task = await functions.bench.ended(task_id)
    assert state_name(task.state) == TaskState.SUCCEEDED, task.message
    assert json.loads(task.result) == ["2", "3", "4"], "each step has a key of its own"
    made = functions.made()
    assert [made.count(name) for name in ("prepare", "part-0", "part-1", "part-2", "gather")] == [1, 1, 2, 2, 1]
    entries = [entry for entry in await functions.bench.entries(task_id) if isinstance(entry.body, facts.ControlStep)]
    assert [entry.step for entry in entries] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("given", "error_class"), [({"fails": 0}, "KeyError"), ({"exits": 2}, "SystemExit")], ids=str)
async def test_a_failed_parallel_step_stays_failed(
    functions: Functions, given: dict[str, int], error_class: str
) -> None:
    functions.open_gate()
    task_id = await functions.submit("parallel", functions.given(**given))
    task = await functions.bench.ended(task_id)
    assert state_name(task.state) == TaskState.SUCCEEDED, task.message
    (number,) = given.values()
    assert json.loads(task.result) == [f"part {number}", error_class]
    steps = await functions.bench.bodies(task_id, facts.ControlStep)
    assert [step.name for step in steps] == ["prepare", "part 0", "part 1", "part 2", "gather"]
    assert [step.failure is not None for step in steps[1:4]] == [index == number for index in range(3)]


async def test_a_resumed_function_has_its_sub_agents_once(
    functions: Functions,
) -> None:
    """Killed between the call and the wait for it; begun from the beginning twice, there and with the answers."""
    dying = await functions.worker(failpoints="worker.after_intent=1#kill9")
    goals = ["hello one", "hello two"]
    task_id = await functions.submit("spawning", functions.given(goals=goals), model="sim-by-goal")
    await functions.bench.died(dying)
    await functions.worker(loops="control,messages")
    task = await functions.bench.ended(task_id)
    assert state_name(task.state) == TaskState.SUCCEEDED, task.message
    [spawned] = await functions.bench.bodies(task_id, SubAgentsSpawned)
    tree = tasks_pb.ListTasksRequest(filter=task_pb2.TaskFilter(root_task_id=task_id))
    tasks = (await functions.bench.ledger.ListTasks(tree, timeout=CALL_SECONDS)).tasks
    assert {one.task_id for one in tasks} == {task_id, *spawned.task_ids}
    below = [await functions.bench.task(one) for one in spawned.task_ids]
    assert [(one.spec.goal, one.spec.agent.loop) for one in below] == [(goal, "messages") for goal in goals]
    assert json.loads(task.result) == [one.result for one in below]
    assert all(one.result for one in below)
    assert functions.made() == ["prepare", "gather"]
    assert task.claim_count >= 3
    assert len(await functions.bench.bodies(task_id, facts.ToolOutcome)) == 1


async def test_a_drain_gives_a_function_back_at_once(functions: Functions) -> None:
    draining = await functions.worker()
    task_id = await functions.submit("records")
    await functions.has_made("total", "gate")
    assert await draining.drain() == 0
    assert (TaskState.QUEUED, "WORKER_DRAINED") in await functions.bench.transitions(task_id)


async def test_a_cancel_reaches_a_function_in_its_step(functions: Functions) -> None:
    task_id = await functions.submit("records")
    await functions.has_made("total", "gate")
    await functions.bench.cancel(task_id)
    task = await functions.bench.ended(task_id)
    assert state_name(task.state) == TaskState.CANCELLED
    assert task.owner == ""
    assert (await functions.bench.entries(task_id))[-1].actor.startswith("worker"), "its own worker closed it out"


async def test_a_function_that_resists_cancellation_is_abandoned(functions: Functions) -> None:
    task_id = await functions.submit("stubborn")
    await functions.has_made("block")
    await functions.bench.cancel(task_id)
    assert state_name((await functions.bench.ended(task_id)).state) == TaskState.CANCELLED
    await functions.has_made("block", "cancelled")


async def test_a_passed_deadline_ends_a_function(functions: Functions) -> None:
    task_id = await functions.submit("records", limits=Limits(timeout_seconds=1.5))
    task = await functions.bench.ended(task_id)
    assert (state_name(task.state), task.reason) == (TaskState.TIMED_OUT, "DEADLINE_PASSED")


async def test_retry_keeps_caught_failures(functions: Functions) -> None:
    task_id = await functions.submit("failing", functions.given(how="retry"), policy=OFTEN)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while functions.made().count("last") < 2:
            await asyncio.sleep(0.02)
    functions.open_gate()
    task = await functions.bench.ended(task_id)
    assert state_name(task.state) == TaskState.SUCCEEDED, task.message
    assert json.loads(task.result) == "ValueError"
    assert functions.made().count("shaky") == 1
    moves = await functions.bench.transitions(task_id)
    assert (TaskState.RETRY_SCHEDULED, "FUNCTION_FAILED") in moves
    failed = await functions.bench.bodies(task_id, facts.ControlFailure)
    assert {(failure.error_class, failure.retryable) for failure in failed} == {("TryAgain", True)}


async def test_exception_fails_the_task_with_its_class(functions: Functions) -> None:
    task_id = await functions.submit("failing", functions.given(how="bug"))
    task = await functions.bench.ended(task_id)
    assert (state_name(task.state), task.reason) == (TaskState.FAILED, "FUNCTION_FAILED")
    assert "KeyError" in task.message
    assert functions.made() == ["shaky", "last"]


async def test_retries_come_to_an_end(functions: Functions) -> None:
    task_id = await functions.submit("failing", functions.given(how="retry"))
    task = await functions.bench.ended(task_id)
    assert (state_name(task.state), task.reason) == (TaskState.FAILED, "FUNCTION_FAILED")
    assert "after 2 retries" in task.message
    assert functions.made() == ["shaky", "last", "last", "last"]


async def test_a_function_that_changed_fails_by_name(functions: Functions) -> None:
    task = await functions.bench.ended(await functions.submit("changed"))
    assert (state_name(task.state), task.reason) == (TaskState.FAILED, "FUNCTION_DIVERGED")
    assert "first" in task.message
    assert "second" in task.message


@pytest.mark.parametrize(
    ("given", "state", "expected"),
    one_of_each(
        [
            ({"any": ["JSON", None]}, TaskState.SUCCEEDED, ""),
            ("too large", TaskState.FAILED, "ValueError"),
            ("too large a step", TaskState.FAILED, "ValueError"),
            ("no JSON", TaskState.FAILED, "TypeError"),
            ("both at once", TaskState.FAILED, "RuntimeError"),
            ("steps", TaskState.COST_EXCEEDED, "limit of 4 steps"),
        ],
        kind=lambda case: case[1],
    ),
    ids=str,
)
async def test_result_of_a_function_is_checked(
    functions: Functions, given: Any, state: TaskState, expected: str
) -> None:
    task_id = await functions.submit("returning", given, limits=Limits(max_steps=4))
    task = await functions.bench.ended(task_id)
    assert state_name(task.state) == state, task.message
    assert expected in task.message
    if state is TaskState.SUCCEEDED:
        assert json.loads(task.result) == given


async def test_only_workers_with_the_function_get_its_tasks(functions: Functions) -> None:
    await functions.bench.start_worker()
    functions.queue = functions.bench.queue
    task_id = await functions.submit("returning", 7)
    agents = await functions.bench.submit("sim-hello")
    assert state_name((await functions.bench.ended(agents)).state) == TaskState.SUCCEEDED
    assert state_name((await functions.bench.task(task_id)).state) == TaskState.QUEUED


async def test_a_worker_with_broken_modules_does_not_start(functions: Functions) -> None:
    with pytest.raises(ServiceDied, match="ended with code 2"):
        await functions.worker(modules="tests.no_such_module,json")
    assert "no_such_module" in functions.bench.workers[-1].log()
    assert "json has no FUNCTIONS" in functions.bench.workers[-1].log()
