"""A worker that is cut off from its model provider: the same happens with each vendor, and only to its own tasks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenure.domain import entries as facts
from tenure.domain.retry import MODEL_CALL_TRIES, RetryPolicy
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import TaskPolicy
from tenure.wire.common import state_name
from tests.support.fix_network import Network
from tests.support.fix_proxy import Lost
from tests.support.fix_worker import WorkerBench
from tests.support.partition import STEADY_STEPS, check_whole, placed_worker

pytestmark = pytest.mark.faults

SILENCE_SECONDS = 2.0
VENDORS = {"anthropic": "sim-worker-steady", "openai": "openai/sim-worker-steady"}
UNREACHABLE = {"SILENT", "CONNECTION"}
"""The classes of a failed call: the answer stayed away, or no connection came about."""


def endpoints(bench: Any, task_id: Any) -> set[str]:
    return {call["endpoint"] for call in bench.model_calls(task_id)}


async def failures(bench: Any, task_id: Any) -> list[facts.ModelFailure]:
    found: list[facts.ModelFailure] = await bench.bodies(task_id, facts.ModelFailure)
    return found


@pytest.mark.parametrize("lost", [Lost.EVERYTHING, Lost.ANSWERS])
async def test_a_silent_model_costs_calls_and_no_step(bench: WorkerBench, network: Network, lost: Lost) -> None:
    """One task of each vendor at one worker. The line to each is cut and mended in turn."""
    worker = await placed_worker(bench, network, model_silence_seconds=SILENCE_SECONDS)
    tasks = {vendor: await bench.submit(model) for vendor, model in VENDORS.items()}
    for cut, task_id in tasks.items():
        (other,) = set(tasks) - {cut}
        await bench.reached(task_id, facts.AssistantMessage, 1)
        before = len(await failures(bench, tasks[other]))
        worker.host.cut(cut, lost)
        await bench.reached(task_id, facts.ModelFailure, 1)
        assert len(await failures(bench, tasks[other])) == before, "the other vendor's line was not cut"
        worker.host.mend(cut)
    for vendor, task_id in tasks.items():
        task = await bench.ended(task_id)
        assert (state_name(task.state), task.claim_count) == ("SUCCEEDED", 1), vendor
        failed = await failures(bench, task_id)
        assert {one.error_class for one in failed} <= UNREACHABLE
        assert all(one.retryable for one in failed)
        assert endpoints(bench, task_id) == {"messages" if vendor == "anthropic" else "chat"}
        lost_calls = len(bench.model_calls(task_id)) - (STEADY_STEPS + 1)
        assert 0 <= lost_calls <= len(failed), "each call that brought no step has its failure in the ledger"
        await check_whole(bench, task_id)


async def test_task_waits_for_an_unreachable_model_of_each_vendor(bench: WorkerBench, network: Network) -> None:
    """An outage is not a fault of the task: it goes on when the provider is back."""
    worker = await placed_worker(bench, network, model_silence_seconds=SILENCE_SECONDS)
    policy = TaskPolicy(retry=RetryPolicy(max_attempts=1, initial_seconds=0.5, cap_seconds=0.5))
    tasks = [await bench.submit(model, policy=policy) for model in VENDORS.values()]
    for task_id in tasks:
        await bench.reached(task_id, facts.AssistantMessage, 1)
    for vendor in VENDORS:
        worker.host.cut(vendor)
    for task_id in tasks:
        await bench.reached(task_id, facts.ModelFailure, 2 * MODEL_CALL_TRIES)
    for vendor in VENDORS:
        worker.host.mend(vendor)
    ends = await asyncio.gather(*map(bench.ended, tasks))
    assert {state_name(task.state) for task in ends} == {"SUCCEEDED"}
    for task_id in tasks:
        assert (TaskState.RETRY_SCHEDULED, Reason.MODEL_UNAVAILABLE) in await bench.transitions(task_id)
        failed = await failures(bench, task_id)
        assert {one.error_class for one in failed} <= UNREACHABLE
