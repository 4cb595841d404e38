"""A worker is killed at every boundary of its step, frozen, drained: its tasks go on elsewhere as if nothing was."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from tenure.domain import entries as facts
from tenure.domain.states import TaskState
from tenure.wire.common import state_name
from tests.conformance.test_worker_tasks import EFFECTS, the_answers_of_a_whole_run
from tests.support.fix_worker import WorkerBench
from tests.support.sweeps import first

# Where, how many model calls a whole run of four steps then takes at most, and which scenario gets there.
BOUNDARIES = {
    "worker.after_model": ("2#", 5),
    "worker.after_grant": ("1#", 4),
    "worker.after_open": ("1#", 4),
    "worker.after_reserve": ("2#", 4),
    "worker.before_model": ("2#", 4),
    "worker.after_intent": ("2#", 4),
    "worker.after_execute": ("2#", 4),
    "worker.before_close_out": ("1#", 4),
    "worker.after_close_out": ("1#", 4),
}


@pytest.mark.parametrize("boundary", first(BOUNDARIES))
async def test_a_worker_killed_anywhere_costs_at_most_one_model_call(bench: WorkerBench, boundary: Any) -> None:
    which, most_calls = BOUNDARIES[boundary]
    victim = await bench.start_worker(failpoints=f"{boundary}={which}kill9")
    task_id = await bench.submit("sim-worker-effects")
    assert await bench.died(victim) != 0
    await bench.start_worker()
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.result) == ("SUCCEEDED", "All is written.")
    assert sorted(await bench.effects(task_id)) == EFFECTS
    assert await the_answers_of_a_whole_run(bench, task_id) == [1, 2, 3, 4]
    assert len(bench.model_calls(task_id)) <= most_calls
    assert task.budget.reserved_tokens == 0


async def test_an_outcome_committed_early_is_not_computed_again(bench: WorkerBench) -> None:
    victim = await bench.start_worker(failpoints="worker.after_outcome=1#kill9")
    task_id = await bench.submit("sim-worker-siblings")
    assert await bench.died(victim) != 0
    await bench.start_worker()
    assert (await bench.ended(task_id)).result == "Both are written."
    assert sorted(await bench.effects(task_id)) == ["fast", "slow"]
    assert len(bench.model_calls(task_id)) == 2


async def test_a_killed_workers_task_runs_before_the_leases_end(bench: WorkerBench) -> None:
    victim = await bench.start_worker()
    task_id = await bench.submit("sim-worker-long-answer")
    await bench.reached(task_id, facts.ModelAttempt)
    await bench.start_worker()
    victim.kill()
    await bench.reached(task_id, facts.ModelAttempt, 2)
    assert (TaskState.QUEUED, "WORKER_LOST") in await bench.transitions(task_id)  # and not LEASE_EXPIRED
    await bench.cancel(task_id)
    await bench.ended(task_id)


async def test_a_frozen_worker_is_refused_and_takes_new_tasks(bench: WorkerBench) -> None:
    sleeper = await bench.start_worker()
    task_id = await bench.submit("sim-worker-paced")
    await bench.reached(task_id, facts.AssistantMessage, 2)
    sleeper.freeze()
    successor = await bench.start_worker()
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.owner == sleeper.name) == ("SUCCEEDED", False)
    sleeper.wake()
    answers = await the_answers_of_a_whole_run(bench, task_id)
    assert answers == list(range(1, 8))
    assert sorted(await bench.effects(task_id)) == sorted(str(number) for number in range(6))
    assert await successor.drain() == 0
    again = await bench.ended(await bench.submit("sim-hello"))
    assert state_name(again.state) == "SUCCEEDED"
    assert sleeper.exit_code is None


async def test_a_stopping_worker_releases_its_task_at_once(bench: WorkerBench) -> None:
    leaver = await bench.start_worker()
    task_id = await bench.submit("sim-worker-long-answer")
    await bench.reached(task_id, facts.ModelAttempt)
    await bench.start_worker()
    told_at = time.monotonic()
    draining = asyncio.create_task(leaver.drain())
    await bench.reached(task_id, facts.ModelAttempt, 2)
    assert time.monotonic() - told_at < 30  # the answer would take a minute
    assert await draining == 0
    assert drained_seconds(leaver) < 10
    assert (TaskState.QUEUED, "WORKER_DRAINED") in await bench.transitions(task_id)
    (failure,) = await bench.bodies(task_id, facts.ModelFailure)
    assert failure.error_class == "INTERRUPTED"
    await bench.cancel(task_id)
    await bench.ended(task_id)


async def test_a_call_continues_during_a_drain_and_is_joined(bench: WorkerBench) -> None:
    leaver = await bench.start_worker()
    task_id = await bench.submit("sim-worker-slow-tool")
    await bench.reached(task_id, facts.ToolIntent)
    await bench.start_worker()
    assert await leaver.drain() == 0
    task = await bench.ended(task_id)
    assert task.result == "It is written."
    assert await bench.effects(task_id) == ["slow"]
    assert len(bench.model_calls(task_id)) == 2


async def test_a_zombie_without_trust_window_is_stopped_by_fences(bench: WorkerBench) -> None:
    zombie = await bench.start_worker(failpoints="worker.ignore_trust_window")
    task_id = await bench.submit("sim-worker-paced")
    await bench.reached(task_id, facts.AssistantMessage, 1)
    zombie.freeze()
    await bench.start_worker()
    await bench.reached(task_id, facts.AssistantMessage, 3)
    zombie.wake()
    task = await bench.ended(task_id)
    assert state_name(task.state) == "SUCCEEDED"
    assert sorted(await bench.effects(task_id)) == sorted(str(number) for number in range(6))
    assert await the_answers_of_a_whole_run(bench, task_id) == list(range(1, 8))


def drained_seconds(worker: Any) -> Any:
    (line,) = [json.loads(line) for line in worker.log().splitlines() if '"drained"' in line]
    return line["seconds"]
