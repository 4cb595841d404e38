"""Lines that fall silent without an error: a worker finds out by itself, so it takes its time (F17 to F19).

All of them at once, each with tasks and workers of its own: they mostly wait.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tenure.domain import entries as facts
from tenure.wire.common import state_name
from tests.support.fix_network import Network
from tests.support.fix_proxy import Lost
from tests.support.fix_worker import WorkerBench
from tests.support.partition import (
    check_whole,
    logged,
    model_calls,
    placed_service,
    placed_worker,
)

pytestmark = pytest.mark.faults

STANDSTILL_SECONDS = 8.0
"""Six steps take less, but for the time in which a silent Postgres is given up."""


async def cut_off_from_the_ledger_it_lets_go_and_takes_nothing_until_it_has_it_again(bench: Any, network: Any) -> None:
    """F17. Its lease is well: it says itself that it cannot work."""
    cut = await placed_worker(bench, network)
    task_id = await bench.submit("sim-worker-steady")
    await bench.reached(task_id, facts.AssistantMessage, 2)
    cut.host.cut("checkpoint")
    cut_at = datetime.now(UTC)
    await logged(cut.process, "the claim is released")
    assert sum(one > cut_at for one in model_calls(bench, task_id)) <= 1, "only what was in flight"
    other = await bench.start_worker()
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.claim_count) == ("SUCCEEDED", 2)
    await check_whole(bench, task_id)
    other.kill()
    cut.host.mend("checkpoint")
    assert state_name((await bench.ended(await bench.submit("sim-hello"))).state) == "SUCCEEDED"


async def answers_of_tools_that_get_lost_cost_no_second_effect(bench: Any, network: Any) -> None:
    """F18 and F19: requests arrive, answers do not. The connection is given up, the call asked for again."""
    cut = await placed_worker(bench, network)
    task_id = await bench.submit("sim-worker-steady")
    await bench.reached(task_id, facts.ToolOutcome, 2)
    cut.host.cut("tools", Lost.ANSWERS)
    await logged(cut.process, "a stream broke and is opened again")
    cut.host.mend("tools")
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.claim_count) == ("SUCCEEDED", 1)
    await check_whole(bench, task_id)


async def lose_postgres(bench: Any, worker: Any, replicas: Any, task_id: Any) -> Any:
    """Cuts off the replica that the worker talks to: the first, or else the second."""
    for steps, replica in zip((2, 9), replicas, strict=True):
        await bench.reached(task_id, facts.AssistantMessage, steps)
        replica.host.cut("postgres")
        began = time.monotonic()
        try:
            await bench.reached(task_id, facts.AssistantMessage, steps + 6)
        except TimeoutError:
            logs = [f"{one.process.name}:\n{one.process.log_tail()}" for one in (replica, worker)]
            raise AssertionError("\n".join(["the task stands still", *logs])) from None
        replica.host.mend("postgres")
        if time.monotonic() - began > STANDSTILL_SECONDS:
            return
    raise AssertionError("neither loss was noticed")


async def a_ledger_replica_that_lost_postgres_costs_no_claim_while_there_is_another(bench: Any, network: Any) -> None:
    replicas = [await placed_service(bench, network, "checkpoint") for _ in range(2)]
    worker = await placed_worker(bench, network, checkpoint=",".join(one.address for one in replicas))
    task_id = await bench.submit("sim-worker-steady")
    await lose_postgres(bench, worker, replicas, task_id)
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.claim_count) == ("SUCCEEDED", 1)
    await check_whole(bench, task_id)


async def tools_that_lost_postgres_cost_no_claim_and_no_effect_while_there_are_others(bench: Any, network: Any) -> None:
    replicas = [await placed_service(bench, network, "tools") for _ in range(2)]
    worker = await placed_worker(bench, network, tools=",".join(one.address for one in replicas))
    task_id = await bench.submit("sim-worker-steady")
    await lose_postgres(bench, worker, replicas, task_id)
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.claim_count) == ("SUCCEEDED", 1)
    await check_whole(bench, task_id)


async def test_lines_that_fall_silent_cost_time_and_nothing_else(bench: WorkerBench, network: Network) -> None:
    scenarios = (
        cut_off_from_the_ledger_it_lets_go_and_takes_nothing_until_it_has_it_again,
        answers_of_tools_that_get_lost_cost_no_second_effect,
        a_ledger_replica_that_lost_postgres_costs_no_claim_while_there_is_another,
        tools_that_lost_postgres_cost_no_claim_and_no_effect_while_there_are_others,
    )
    async with asyncio.TaskGroup() as together:
        for scenario in scenarios:
            together.create_task(scenario(replace(bench, queue=f"q-{uuid.uuid4().hex[:12]}"), network))
