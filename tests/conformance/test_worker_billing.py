"""The ledger's total against the simulator's own bill, with workers killed in the middle of their calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import pytest

from tenure.domain import entries as facts
from tenure.domain.budget import TokenUsage
from tenure.domain.states import TaskState
from tenure.domain.tools import OutcomeStatus
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import model_service_pb2 as models_pb
from tenure.wire.common import state_name
from tests.conformance.test_worker_model_runner import SENT, ScriptedRunner, answer
from tests.conformance.test_worker_model_runner import served as serving
from tests.support.fix_worker import WorkerBench
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.sweeps import first

TASKS: Final = 2
KILLS: Final = 3
MAX_OFF: Final = 0.01
INPUT: Final = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
COUNTS: Final = (*INPUT, "output_tokens")
SYSTEM: Final = "Be brief, and say what you do. " * 250
"""Two thousand tokens: a call's bill is mostly its input, as agents' bills are."""


async def bills(bench: Any, task_ids: Any) -> Any:
    listed = {}
    for task_id in task_ids:
        answer = await bench.ledger.ListBills(admin_pb.ListBillsRequest(task_id=task_id), timeout=CALL_SECONDS)
        listed.update({f"{task_id}/{bill.step}/{bill.attempt_number}": bill for bill in answer.bills})
    return listed


async def all_are_speaking(bench: Any, output_tokens: Any, tasks: Any = TASKS, attempt: str = "") -> None:
    """Waits until every task has a call that drips, and so was answered in part. `attempt`: only calls of this one."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            calls = await asyncio.to_thread(bench.simulator.running)
            dripping = [call for call in calls if call["fault"] == "drip_ms" and attempt in {"", call["attempt"]}]
            if len(dripping) == tasks and all(call["output_tokens"] >= output_tokens for call in dripping):
                return
            await asyncio.sleep(0.02)


@pytest.mark.faults
async def test_a_run_with_killed_workers_is_billed_within_one_percent(bench: WorkerBench) -> None:
    """Calls drip sixteen tokens a second, until their worker is killed; others are answered at once."""
    victim = await bench.start_worker()
    bench.simulator.order_fault(drip_ms=400, count=TASKS)
    task_ids = [await bench.submit("sim-worker-wordy", system=SYSTEM) for _ in range(TASKS)]
    for kill in range(KILLS):
        await all_are_speaking(bench, 10 + 10 * kill)  # a worker that starts earlier could claim the tasks itself
        successor = await bench.start_worker()
        if kill + 1 < KILLS:
            bench.simulator.order_fault(latency_ms=100, count=TASKS)
            bench.simulator.order_fault(drip_ms=400, count=TASKS)
        victim.kill()
        victim = successor
    tasks = [await bench.ended(task_id) for task_id in task_ids]
    assert [state_name(task.state) for task in tasks] == ["SUCCEEDED"] * TASKS
    calls = {call["attempt"]: call for task_id in task_ids for call in bench.model_calls(task_id)}
    ledger = await bills(bench, task_ids)

    assert ledger.keys() == calls.keys()
    lost = {name: bill for name, bill in ledger.items() if bill.lost}
    assert len(lost) == TASKS * KILLS
    for name, bill in ledger.items():
        exact = INPUT if bill.lost else COUNTS
        assert [getattr(bill.usage, count) for count in exact] == [calls[name][count] for count in exact], name
        assert bill.lost == (calls[name]["ending"] == "abandoned")

    billed = sum(call[count] for call in calls.values() for count in COUNTS)
    counted = sum(task.budget.used_tokens for task in tasks)
    assert counted == sum(getattr(bill.usage, count) for bill in ledger.values() for count in COUNTS)
    assert abs(counted - billed) <= MAX_OFF * billed, f"{counted} counted, {billed} billed"
    assert sum(task.budget.reserved_tokens for task in tasks) == 0


async def test_a_worker_that_lost_its_task_reports_its_usage(bench: WorkerBench) -> None:
    await bench.start_worker()
    bench.simulator.order_fault(drip_ms=400, count=1)
    task_id = await bench.submit("sim-worker-wordy", system=SYSTEM)
    await all_are_speaking(bench, 10, tasks=1)
    epoch = (await bench.task(task_id)).epoch
    await bench.start_worker()
    request = admin_pb.TransferTaskRequest(task_id=task_id, epoch=epoch, reason="needed elsewhere", actor="test")
    await bench.coordinator.TransferTask(request, timeout=CALL_SECONDS)
    name = f"{task_id}/1/1"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (bill := (await bills(bench, [task_id]))[name]).HasField("estimated_usage"):
            await asyncio.sleep(0.05)
    assert (await bench.ended(task_id)).budget.reserved_tokens == 0
    (call,) = [call for call in bench.model_calls(task_id) if call["attempt"] == name]
    assert bill.lost
    assert bill.provider_request_id == call["request_id"]
    assert [getattr(bill.usage, count) for count in INPUT] == [call[count] for count in INPUT]
    assert bill.estimated_usage.output_tokens <= bill.usage.output_tokens <= call["output_tokens"]
    listed = (await bills(bench, [task_id])).values()
    counted = sum(getattr(bill.usage, count) for bill in listed for count in COUNTS)
    assert (await bench.task(task_id)).budget.used_tokens == counted


@pytest.mark.faults
async def test_chat_call_of_a_killed_worker_is_billed(bench: WorkerBench) -> None:
    """A chat server states the input at the end, so the lost call is billed by its reservation, never below."""
    victim = await bench.start_worker()
    bench.simulator.order_fault(drip_ms=400)
    task_id = await bench.submit("openai/sim-worker-wordy")
    await all_are_speaking(bench, 10, 1)
    await bench.start_worker()
    victim.kill()
    assert state_name((await bench.ended(task_id)).state) == "SUCCEEDED"
    calls = {call["attempt"]: call for call in bench.model_calls(task_id)}
    ledger = await bills(bench, [task_id])
    assert ledger.keys() == calls.keys()
    assert {call["endpoint"] for call in calls.values()} == {"chat"}
    (lost,) = [name for name, bill in ledger.items() if bill.lost]
    assert calls[lost]["ending"] == "abandoned"
    assert sum(getattr(ledger[lost].usage, count) for count in INPUT) >= calls[lost]["input_tokens"]
    for name in ledger.keys() - {lost}:
        assert [getattr(ledger[name].usage, count) for count in COUNTS] == [calls[name][count] for count in COUNTS]


async def never_ends(_context: Any) -> AsyncIterator[models_pb.GenerateResponse]:
    yield SENT
    await asyncio.Event().wait()


async def cancelled_task(bench: WorkerBench, runner: ScriptedRunner) -> list[facts.Entry]:
    """The ledger of a task that was cancelled while its call ran at the runner."""
    async with serving(runner) as address:
        await bench.start_worker(models_address=address)
        task_id = await bench.submit("sim-1")
        await bench.reached(task_id, facts.ModelAttempt)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not runner.requests:
                await asyncio.sleep(0.05)
        await bench.cancel(task_id)
        task = await bench.ended(task_id)
    assert state_name(task.state) == TaskState.CANCELLED
    assert task.budget.reserved_tokens == 0
    return await bench.entries(task_id)


async def test_an_answer_before_the_cancel_is_kept(bench: WorkerBench) -> None:
    """The provider was paid for it, so it is in the ledger; its tool calls are not made."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "append_record", "input": {"file": "f", "line": "l"}}
    content = [{"type": "text", "text": "I write."}, use]
    kept = answer()
    kept.attempt_number, kept.content_json, kept.stop_reason = 1, json.dumps(content), "tool_use"
    runner = ScriptedRunner([never_ends], models_pb.CancelGenerationResponse(answer=kept))
    bodies = [entry.body for entry in await cancelled_task(bench, runner)]
    (message,) = [body for body in bodies if isinstance(body, facts.AssistantMessage)]
    assert (message.usage, message.provider_request_id) == (TokenUsage(7, 3), "req_1")
    (outcome,) = [body for body in bodies if isinstance(body, facts.ToolOutcome)]
    assert outcome.outcome.status is OutcomeStatus.NOT_RUN
    assert isinstance(bodies[-1], facts.Transition)
    assert bodies[-1].result == "I write."


@pytest.mark.parametrize("status", first([grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION]))
async def test_a_cancel_that_no_runner_hears_ends_the_task(bench: WorkerBench, status: grpc.StatusCode) -> None:
    """The ledger settles the call as lost; the runner reports what it used as soon as it is back.

    FAILED_PRECONDITION: the runners have a later call of the task, as after a restore of the ledger alone.
    """
    runner = ScriptedRunner([never_ends], cancel_status=status)
    bodies = [entry.body for entry in await cancelled_task(bench, runner)]
    assert runner.cancels >= 1
    assert [type(body) for body in bodies if isinstance(body, facts.AttemptLost | facts.ModelFailure)] == [
        facts.AttemptLost
    ]


async def test_every_owner_names_the_epoch_of_the_reservation(bench: WorkerBench) -> None:
    """By it a runner knows, after a restore, whether its recorded call is the one that the ledger means."""
    runner = ScriptedRunner([never_ends], models_pb.CancelGenerationResponse())
    async with serving(runner) as address:
        first = await bench.start_worker(models_address=address)
        task_id = await bench.submit("sim-1")
        for requests in (1, 2):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(runner.requests) < requests:
                    await asyncio.sleep(0.05)
            if requests == 1:
                first.kill()
                await bench.start_worker(models_address=address)
        joined_under = (await bench.task(task_id)).epoch
        await bench.cancel(task_id)
        await bench.ended(task_id)
    (reserved,) = [one.epoch for one in await bench.entries(task_id) if isinstance(one.body, facts.ModelAttempt)]
    assert [request.reserved_epoch for request in runner.requests] == [reserved, reserved]
    assert reserved < joined_under
