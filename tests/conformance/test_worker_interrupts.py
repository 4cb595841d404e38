"""Interrupting messages at workers that call the model themselves: the call stops, and the next one has the message."""

from __future__ import annotations

import time

import pytest

from devstack.service_process import ServiceProcess
from tenure.domain import entries as facts
from tenure.domain.states import TaskState
from tenure.v1 import task_pb2
from tenure.wire.common import state_name
from tests.support.fix_worker import WorkerBench

DRIP_MS = 600
"""The first answer would take a minute."""


async def begun(bench: WorkerBench) -> tuple[str, ServiceProcess]:
    """A task whose first answer has begun, and its owner. Only the first call is slow."""
    owner = await bench.start_worker()
    bench.simulator.order_fault(drip_ms=DRIP_MS, count=1)
    task_id = await bench.submit("sim-worker-redirected")
    await bench.reached(task_id, facts.ModelAttempt)
    await bench.speaking(task_id, owner)
    return task_id, owner


async def redirected(bench: WorkerBench, task_id: str, message: str) -> task_pb2.Task:
    """The end of the task, whose last answer is to the message."""
    task = await bench.ended(task_id)
    assert state_name(task.state) == TaskState.SUCCEEDED, f"{task.reason}: {task.message}"
    assert task.result.endswith(f"You said: {message}")
    return task


async def check_budget(bench: WorkerBench, task_id: str) -> None:
    """What the calls are billed is used, and nothing is reserved."""
    kinds = (facts.AssistantMessage, facts.ModelFailure, facts.AttemptLost)
    bodies = [body for kind in kinds for body in await bench.bodies(task_id, kind)]
    budget = (await bench.task(task_id)).budget
    assert (budget.used_tokens, budget.reserved_tokens) == (sum(body.usage.total for body in bodies), 0)


async def test_an_interrupting_message_stops_the_call(bench: WorkerBench) -> None:
    """Its call is billed for what came until then, and its step is made again with the message."""
    task_id, _ = await begun(bench)
    sent_at = time.monotonic()
    await bench.tell(task_id, "in French", interrupt=True)
    task = await redirected(bench, task_id, "in French")
    assert time.monotonic() - sent_at < 30
    (failure,) = await bench.bodies(task_id, facts.ModelFailure)
    assert (failure.error_class, failure.message) == ("INTERRUPTED", "a message interrupted the call")
    assert 0 < failure.usage.output_tokens < 100
    first, second = bench.model_calls(task_id)
    assert failure.usage.input_tokens == first["input_tokens"]
    assert (first["attempt"], first["ending"]) == (f"{task_id}/1/1", "abandoned")
    assert second["attempt"] == f"{task_id}/1/2"
    assert (task.step, task.claim_count) == (1, 1)
    await check_budget(bench, task_id)


async def test_a_plain_message_lets_the_call_finish(bench: WorkerBench) -> None:
    await bench.start_worker()
    bench.simulator.order_fault(drip_ms=5, count=1)
    task_id = await bench.submit("sim-worker-redirected")
    await bench.reached(task_id, facts.ModelAttempt)
    await bench.tell(task_id, "in French")
    await redirected(bench, task_id, "in French")
    assert await bench.bodies(task_id, facts.ModelFailure) == []


async def test_a_message_does_not_stop_a_tool_call(bench: WorkerBench) -> None:
    """The next model call has it, and is not interrupted by it."""
    await bench.start_worker()
    task_id = await bench.submit("sim-worker-siblings")
    await bench.reached(task_id, facts.ToolIntent, 2)
    await bench.tell(task_id, "in French", interrupt=True)
    task = await bench.ended(task_id)
    assert state_name(task.state) == TaskState.SUCCEEDED
    assert sorted(await bench.effects(task_id)) == ["fast", "slow"]
    assert await bench.bodies(task_id, facts.ModelFailure) == []
    assert len(bench.model_calls(task_id)) == 2


@pytest.mark.faults
async def test_the_next_owner_reads_the_message_first(bench: WorkerBench) -> None:
    """The owner died between the record of the message and the stop: the message interrupts nothing again."""
    task_id, owner = await begun(bench)
    owner.freeze()
    await bench.tell(task_id, "in French", interrupt=True)
    owner.kill()
    await bench.start_worker()
    task = await redirected(bench, task_id, "in French")
    assert len(await bench.bodies(task_id, facts.AttemptLost)) == 1
    assert await bench.bodies(task_id, facts.ModelFailure) == []
    assert [call["attempt"] for call in bench.model_calls(task_id)] == [f"{task_id}/1/1", f"{task_id}/1/2"]
    assert task.claim_count == 2
    await check_budget(bench, task_id)


@pytest.mark.faults
async def test_a_message_while_no_coordinator_runs_interrupts(bench: WorkerBench) -> None:
    """No notice reached the owner: it looks into the ledger once it is attached again."""
    task_id, owner = await begun(bench)
    bench.stack.services["coordinator"].kill()
    await bench.tell(task_id, "in French", interrupt=True)
    await bench.restart("coordinator")
    task = await redirected(bench, task_id, "in French")
    assert (owner.exit_code, task.claim_count) == (None, 1)
    assert len(await bench.bodies(task_id, facts.ModelFailure)) == 1
