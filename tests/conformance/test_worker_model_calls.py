"""Model calls of control functions on real services: reserved, recorded once, billed, and shown like agents' calls."""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devstack.service_process import ServiceProcess
from tenure.domain import entries as facts
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import TaskState
from tenure.domain.task import AgentSpec, BudgetPolicy, ControlWork, Limits, TaskPolicy, TaskSpec
from tenure.domain.timeouts import PhaseTimeout, TimeoutAction, Timeouts
from tenure.runtime.request_context import DEFAULT_TENANT
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2
from tenure.wire.common import state_name
from tenure.wire.task import spec_to_wire
from tests.conformance.test_worker_billing import all_are_speaking, bills
from tests.support.fix_simulator import REPOSITORY
from tests.support.fix_worker import SHARED_QUEUE, WorkerBench
from tests.support.model_functions import INPUT_TOKENS
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.sweeps import first
from tests.support.written_lines import whole_records

CONTROL_MODULE = "tests.support.model_functions"
COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
SOON = TaskPolicy(retry=RetryPolicy(max_attempts=2, initial_seconds=0.01, factor=1.0, cap_seconds=0.01))


class ModelFunctions:
    """Tasks of functions that call the simulator."""

    def __init__(self, bench: WorkerBench, folder: Path, queue: str) -> None:
        self.bench, self.folder, self.queue = bench, folder, queue
        self.file = f"record-{uuid.uuid4().hex}"

    async def worker(self, failpoints: str = "") -> ServiceProcess:
        """A worker of the test's own."""
        self.queue = self.bench.queue
        return await self.bench.start_worker(failpoints=failpoints, loops="control", control_modules=CONTROL_MODULE)

    async def submit(
        self,
        function: str = "conversing",
        *,
        model: str = "sim-hello",
        limits: Limits | None = None,
        policy: TaskPolicy = SOON,
        **more: Any,
    ) -> str:
        files = {"trace": str(self.folder / "trace"), "gate": str(self.folder / "gate"), "file": self.file}
        given = {**files, "model": model, **more}
        spec = TaskSpec(
            goal="the goal",
            agent=AgentSpec(loop="control", model=model),  # sets no default cap for a model without a price
            limits=limits or Limits(),
            policy=policy,
            queue=self.queue,
            control=ControlWork(function, json.dumps(given)),
        )
        request = pb.CreateTaskRequest(request_id=str(uuid.uuid4()), spec=spec_to_wire(spec))
        return str((await self.bench.ledger.CreateTask(request, timeout=CALL_SECONDS)).task.task_id)

    def made(self) -> list[str]:
        path = self.folder / "trace"
        return path.read_text().split() if path.exists() else []

    async def has_made(self, step: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while step not in self.made():
                await asyncio.sleep(0.02)

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    def effects(self) -> list[str]:
        path = self.bench.stack.layout.records / DEFAULT_TENANT / f"{self.file}.jsonl"
        return [record["line"] for record in whole_records(path)]

    async def kinds(self, task_id: str, step: int) -> list[str]:
        """The kinds of a step's entries without transitions, in order."""
        kinds = [type(entry.body).__name__ for entry in await self.bench.entries(task_id) if entry.step == step]
        return [kind for kind in kinds if kind != "Transition"]

    async def check_bill(self, task_id: str) -> None:
        """Every call of the provider is on the bill; those with an answer are billed exactly."""
        task, ledger = await self.bench.task(task_id), await bills(self.bench, [task_id])
        calls = {call["attempt"]: call for call in self.bench.model_calls(task_id)}
        answered = {
            f"{task_id}/{entry.step}/{entry.body.attempt_number}"
            for entry in await self.bench.entries(task_id)
            if isinstance(entry.body, facts.AssistantMessage)
        }
        assert calls.keys() <= ledger.keys()
        for name in answered:
            assert [getattr(ledger[name].usage, count) for count in COUNTS] == [calls[name][count] for count in COUNTS]
            assert ledger[name].provider_request_id == calls[name]["request_id"]
        counted = sum(getattr(bill.usage, count) for bill in ledger.values() for count in COUNTS)
        assert task.budget.used_tokens == counted
        assert task.budget.reserved_tokens == 0


@pytest.fixture
def functions(
    bench: WorkerBench, shared_worker: ServiceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ModelFunctions:
    add, own = bench.stack.add_worker, {"PYTHONPATH": str(REPOSITORY), "MODEL_URL": bench.simulator.url}
    monkeypatch.setattr(bench.stack, "add_worker", lambda more: add({**more, **own}))
    return ModelFunctions(bench, tmp_path, SHARED_QUEUE)


async def test_calls_are_recorded_with_their_results_and_billed(functions: ModelFunctions) -> None:
    task_id = await functions.submit()
    task = await functions.bench.ended(task_id)
    assert state_name(task.state) == TaskState.SUCCEEDED, task.message
    result = json.loads(task.result)
    assert result["goal"] == "the goal"
    assert result["granted"] == 4096
    assert await functions.kinds(task_id, 2) == ["ModelAttempt", "AssistantMessage", "ControlStep"]
    answers = await functions.bench.bodies(task_id, facts.AssistantMessage)
    assert [answer.content[0]["text"] for answer in answers] == result["texts"]
    steps = await functions.bench.bodies(task_id, facts.ControlStep)
    assert [step.name for step in steps] == ["prepare", "first", "second"]
    assert functions.effects() == [result["texts"][0]]
    assert len(functions.bench.model_calls(task_id)) == 2
    await functions.check_bill(task_id)


@pytest.mark.parametrize(
    ("failpoint", "attempts", "lost"),
    [
        ("worker.after_model=1#kill9", 2, 1),
        pytest.param("worker.after_reserve=1#kill9", 2, 1, marks=pytest.mark.faults),
        pytest.param("worker.before_model=1#kill9", 2, 1, marks=pytest.mark.faults),
        pytest.param("worker.before_model=2#kill9", 1, 0, marks=pytest.mark.faults),
        pytest.param("worker.after_intent=1#kill9", 1, 0, marks=pytest.mark.faults),
    ],
)
async def test_a_killed_worker_costs_at_most_its_own_call(
    functions: ModelFunctions, failpoint: str, attempts: int, lost: int
) -> None:
    """The first call: killed before it, after it, and later, when its result is recorded."""
    dying = await functions.worker(failpoint)
    task_id = await functions.submit()
    await functions.bench.died(dying)
    await functions.worker()
    task = await functions.bench.ended(task_id)
    assert (state_name(task.state), task.claim_count) == (TaskState.SUCCEEDED, 2), task.message
    kinds = await functions.kinds(task_id, 2)
    assert kinds.count("ModelAttempt") == attempts
    assert kinds.count("AttemptLost") == lost
    assert kinds[-3:] == ["ModelAttempt", "AssistantMessage", "ControlStep"]
    assert len([name for name in functions.made() if name.startswith("call-2/")]) <= 2
    assert functions.made().count("prepare") == 1
    assert len(functions.effects()) == 1
    await functions.check_bill(task_id)


@pytest.mark.faults
async def test_model_call_of_a_killed_worker_is_made_again(functions: ModelFunctions) -> None:
    victim = await functions.worker()
    functions.bench.simulator.order_fault(drip_ms=400, count=1)
    task_id = await functions.submit(model="sim-worker-wordy")
    await all_are_speaking(functions.bench, 10, tasks=1)
    await functions.worker()
    victim.kill()
    task = await functions.bench.ended(task_id)
    assert state_name(task.state) == TaskState.SUCCEEDED, task.message
    kinds = await functions.kinds(task_id, 2)
    assert kinds == ["ModelAttempt", "AttemptLost", "ModelAttempt", "AssistantMessage", "ControlStep"]
    lost = (await bills(functions.bench, [task_id]))[f"{task_id}/2/1"]
    (call,) = [call for call in functions.bench.model_calls(task_id) if call["attempt"] == f"{task_id}/2/1"]
    assert lost.lost
    assert lost.usage.input_tokens == call["input_tokens"], "the function reported the usage of the call"
    await functions.check_bill(task_id)


@pytest.mark.faults
async def test_a_lost_claim_reports_the_usage_of_its_call(functions: ModelFunctions) -> None:
    await functions.worker()
    functions.bench.simulator.order_fault(drip_ms=400, count=1)
    task_id = await functions.submit(model="sim-worker-wordy")
    await all_are_speaking(functions.bench, 10, tasks=1)
    epoch = (await functions.bench.task(task_id)).epoch
    await functions.worker()
    request = admin_pb.TransferTaskRequest(task_id=task_id, epoch=epoch, reason="needed elsewhere", actor="test")
    await functions.bench.coordinator.TransferTask(request, timeout=CALL_SECONDS)
    name = f"{task_id}/2/1"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (bill := (await bills(functions.bench, [task_id]))[name]).HasField("estimated_usage"):
            await asyncio.sleep(0.05)
    (call,) = [call for call in functions.bench.model_calls(task_id) if call["attempt"] == name]
    assert (bill.lost, bill.provider_request_id) == (True, call["request_id"])
    assert bill.estimated_usage.output_tokens <= bill.usage.output_tokens <= call["output_tokens"]
    assert state_name((await functions.bench.ended(task_id)).state) == TaskState.SUCCEEDED
    await functions.check_bill(task_id)


async def test_a_drain_and_a_cancel_settle_the_call_in_flight(functions: ModelFunctions) -> None:
    draining = await functions.worker()
    functions.bench.simulator.order_fault(drip_ms=400, count=2)
    task_id = await functions.submit(model="sim-worker-wordy")
    await all_are_speaking(functions.bench, 10, tasks=1)
    await functions.worker()
    assert await draining.drain() == 0
    await all_are_speaking(functions.bench, 10, tasks=1, attempt=f"{task_id}/2/2")
    await functions.bench.cancel(task_id)
    task = await functions.bench.ended(task_id)
    assert state_name(task.state) == TaskState.CANCELLED
    assert (TaskState.QUEUED, "WORKER_DRAINED") in await functions.bench.transitions(task_id)
    interrupted = await functions.bench.bodies(task_id, facts.ModelFailure)
    calls = functions.bench.model_calls(task_id)
    assert [failure.error_class for failure in interrupted] == ["INTERRUPTED", "INTERRUPTED"]
    assert [failure.usage.input_tokens for failure in interrupted] == [call["input_tokens"] for call in calls]
    assert all(failure.usage.output_tokens >= 10 for failure in interrupted)
    await functions.check_bill(task_id)


async def test_an_overloaded_model_is_asked_again(functions: ModelFunctions) -> None:
    functions.bench.simulator.order_fault(status=529, count=2)
    task_id = await functions.submit()
    task = await functions.bench.ended(task_id)
    assert state_name(task.state) == TaskState.SUCCEEDED, task.message
    failures = await functions.bench.bodies(task_id, facts.ModelFailure)
    assert [(failure.error_class, failure.status_code) for failure in failures] == [("OVERLOADED", 529)] * 2
    numbers = [attempt.attempt_number for attempt in await functions.bench.bodies(task_id, facts.ModelAttempt)]
    assert numbers == [1, 2, 3, 1]
    await functions.check_bill(task_id)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("failpoint", "settled"),
    first([("worker.before_failure", "AttemptLost"), ("worker.after_failure", "ModelFailure")]),
)
async def test_a_kill_between_two_attempts_settles_the_first_once(
    functions: ModelFunctions, failpoint: str, settled: str
) -> None:
    dying = await functions.worker(f"{failpoint}=1#kill9")
    functions.bench.simulator.order_fault(status=529, count=1)
    task_id = await functions.submit()
    await functions.bench.died(dying)
    await functions.worker()
    task = await functions.bench.ended(task_id)
    assert state_name(task.state) == TaskState.SUCCEEDED, task.message
    kinds = ["ModelAttempt", settled, "ModelAttempt", "AssistantMessage", "ControlStep"]
    assert await functions.kinds(task_id, 2) == kinds
    await functions.check_bill(task_id)


async def test_a_refused_call_fails_its_step_and_stays_failed(functions: ModelFunctions) -> None:
    functions.bench.simulator.order_fault(status=400, count=1)
    task_id = await functions.submit("catching")
    task = await functions.bench.ended(task_id)
    assert state_name(task.state) == TaskState.SUCCEEDED, task.message
    assert json.loads(task.result) == {"error_class": "INVALID_REQUEST", "retryable": False}
    assert await functions.kinds(task_id, 1) == ["ModelAttempt", "ModelFailure", "ControlStep"]
    (failed, _) = await functions.bench.bodies(task_id, facts.ControlStep)
    assert failed.failure.error_class == "INVALID_REQUEST"
    assert len(functions.bench.model_calls(task_id)) == 1


async def test_a_long_wait_is_not_waited_on_a_worker(functions: ModelFunctions) -> None:
    task_id = await functions.submit("wrong", how="later")
    task = await functions.bench.in_state(task_id, TaskState.RETRY_SCHEDULED)
    assert task.reason == "MODEL_RATE_LIMITED"
    (failure,) = await functions.bench.bodies(task_id, facts.ControlFailure)
    assert (failure.error_class, failure.retryable, failure.retry_after_seconds) == ("RATE_LIMITED", True, 61)
    (failed,) = await functions.bench.bodies(task_id, facts.ModelFailure)
    assert (failed.status_code, failed.retry_after_seconds) == (429, 61)
    await functions.bench.cancel(task_id)
    assert state_name((await functions.bench.ended(task_id)).state) == TaskState.CANCELLED


async def test_connection_errors_are_retried_and_never_end_the_task(functions: ModelFunctions) -> None:
    task_id = await functions.submit("wrong", how="raises")
    task = await functions.bench.in_state(task_id, TaskState.RETRY_SCHEDULED)
    assert task.reason == "MODEL_UNAVAILABLE"
    assert "CONNECTION" in task.message
    bodies = [entry.body for entry in await functions.bench.entries(task_id)]
    waits = [getattr(body, "to_state", None) for body in bodies].index(TaskState.RETRY_SCHEDULED)
    first = bodies[:waits]  # the task may have tried again since
    assert [body.usage.total for body in first if isinstance(body, facts.ModelFailure)] == [10] * 5
    assert [body.attempt_number for body in first if isinstance(body, facts.ModelAttempt)] == list(range(1, 6))
    await functions.bench.cancel(task_id)
    assert state_name((await functions.bench.ended(task_id)).state) == TaskState.CANCELLED


@pytest.mark.parametrize(("how", "used"), [("no answer", 0), ("no JSON", 15), ("usage", 0)])
async def test_an_answer_that_cannot_be_recorded_is_billed(functions: ModelFunctions, how: str, used: int) -> None:
    task_id = await functions.submit("wrong", how=how)
    task = await functions.bench.ended(task_id)
    assert (state_name(task.state), task.reason) == (TaskState.FAILED, "FUNCTION_FAILED"), task.message
    assert (task.budget.used_tokens, task.budget.reserved_tokens) == (used, 0)
    assert functions.made() == ["wrong"]


async def test_a_reached_cap_ends_the_task_with_its_last_text(functions: ModelFunctions) -> None:
    task_id = await functions.submit(limits=Limits(max_tokens=INPUT_TOKENS + 256))
    task = await functions.bench.ended(task_id)
    assert (state_name(task.state), task.reason) == (TaskState.COST_EXCEEDED, "TOKEN_LIMIT"), task.message
    (attempt,) = await functions.bench.bodies(task_id, facts.ModelAttempt)
    assert attempt.max_output_tokens == 256, "the budget granted less than the function asked for"
    (answer,) = await functions.bench.bodies(task_id, facts.AssistantMessage)
    assert task.result == answer.content[0]["text"]
    await functions.check_bill(task_id)


async def test_a_task_at_its_cap_asks_and_goes_on_with_the_grant(functions: ModelFunctions) -> None:
    policy = replace(SOON, on_budget=BudgetPolicy.ASK)
    task_id = await functions.submit(limits=Limits(max_tokens=INPUT_TOKENS + 256), policy=policy)
    task = await functions.bench.in_state(task_id, TaskState.WAITING_USER)
    assert task.reason == "BUDGET_REQUESTED"
    grant = ledger_pb2.OperatorRequest(
        reason="more", grant_budget=ledger_pb2.OperatorRequest.GrantBudget(extra_tokens=2000)
    )
    request = pb.AppendForeignRequest(
        task_id=task_id, request_id=str(uuid.uuid4()), actor="test", operator_request=grant
    )
    await functions.bench.ledger.AppendForeign(request, timeout=CALL_SECONDS)
    ended = await functions.bench.ended(task_id)
    assert state_name(ended.state) == TaskState.SUCCEEDED, ended.message
    assert len(functions.bench.model_calls(task_id)) == 2
    assert functions.made().count("prepare") == 1
    await functions.check_bill(task_id)


async def test_model_without_a_price_is_refused_under_a_cap(functions: ModelFunctions) -> None:
    task_id = await functions.submit(model="house-model", limits=Limits(max_nano_usd=10**9))
    task = await functions.bench.ended(task_id)
    assert (state_name(task.state), task.reason) == (TaskState.FAILED, "MODEL_UNPRICED"), task.message
    assert functions.bench.model_calls(task_id) == []


async def test_steps_and_calls_share_the_step_limit(functions: ModelFunctions) -> None:
    task_id = await functions.submit(limits=Limits(max_steps=3))
    task = await functions.bench.ended(task_id)
    assert (state_name(task.state), task.reason) == (TaskState.COST_EXCEEDED, "STEP_LIMIT")
    assert len(functions.bench.model_calls(task_id)) == 1


async def test_a_slow_call_times_out_by_the_policy(functions: ModelFunctions) -> None:
    functions.bench.simulator.order_fault(drip_ms=400, count=1)
    timeouts = Timeouts(model_call=PhaseTimeout(5.0, TimeoutAction.FAIL))
    task_id = await functions.submit(model="sim-worker-wordy", policy=replace(SOON, timeouts=timeouts))
    task = await functions.bench.ended(task_id)
    assert (state_name(task.state), task.reason) == (TaskState.FAILED, "MODEL_TIMEOUT"), task.message
    (failure,) = await functions.bench.bodies(task_id, facts.ModelFailure)
    assert (failure.error_class, failure.message) == ("TIMEOUT", "the model's answer was not complete within 5 s")
    assert failure.usage.total > 0
    await functions.check_bill(task_id)


@pytest.mark.faults
async def test_a_function_may_cancel_its_own_work(functions: ModelFunctions) -> None:
    """The step and the call are settled, and a later execution knows them as failed."""
    await functions.worker("worker.before_close_out=1#kill9")
    functions.bench.simulator.order_fault(drip_ms=400, count=1)
    task_id = await functions.submit("impatient", model="sim-worker-wordy", patience=5.0)
    await functions.has_made("gate")
    functions.open_gate()
    await functions.bench.died(functions.bench.workers[-1])
    await functions.worker()
    task = await functions.bench.ended(task_id)
    assert (state_name(task.state), task.claim_count) == (TaskState.SUCCEEDED, 2), task.message
    assert await functions.kinds(task_id, 1) == ["ControlStep"]
    assert await functions.kinds(task_id, 2) == ["ModelAttempt", "ModelFailure", "ControlStep"]
    assert await functions.kinds(task_id, 3) == ["ModelAttempt", "AssistantMessage", "ControlStep"]
    assert functions.made().count("impatient") == 4
    await functions.check_bill(task_id)


async def test_a_function_may_return_while_its_call_runs(functions: ModelFunctions) -> None:
    """The call is settled with what it used, in the commit that ends the task."""
    task_id = await functions.submit("hasty")
    task = await functions.bench.ended(task_id)
    assert (state_name(task.state), task.claim_count) == (TaskState.SUCCEEDED, 1), task.message
    assert await functions.kinds(task_id, 1) == ["ModelAttempt", "ModelFailure"]
    assert (task.budget.used_tokens, task.budget.reserved_tokens) == (10, 0)


async def test_watchers_see_the_text_while_it_is_written(functions: ModelFunctions) -> None:
    worker = await functions.worker()
    functions.bench.simulator.order_fault(drip_ms=100, count=1)
    task_id = await functions.submit(model="sim-worker-wordy")
    await functions.has_made("call-2/1")
    text = ""
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(functions.bench.live_pieces(task_id, worker)) as pieces:
        async for piece in pieces:
            assert (piece.step, piece.attempt_number, piece.block) == (2, 1, 0)
            text += piece.text
            if len(text) > 20:
                break
    assert ("word " * 1500).startswith(text)
    assert await functions.kinds(task_id, 2) == ["ModelAttempt"], "the answer is not recorded yet"
    await functions.bench.cancel(task_id)
    assert state_name((await functions.bench.ended(task_id)).state) == TaskState.CANCELLED
