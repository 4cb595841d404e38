"""A service is frozen for longer than the trust window, and goes on: so does the worker, by itself."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tenure.domain import entries as facts
from tenure.wire.common import state_name
from tests.support.fix_worker import WorkerBench
from tests.support.partition import check_whole, logged
from tests.support.patience import PATIENCE_SECONDS, SHORT_LIFE_SECONDS

pytestmark = pytest.mark.faults

AWAY_SECONDS = SHORT_LIFE_SECONDS + 4.0


async def serving(worker: Any, expected: bool) -> None:
    """Waits until the worker's gRPC health says so."""
    ends_at = time.monotonic() + PATIENCE_SECONDS
    while await worker.serves() is not expected:
        assert time.monotonic() < ends_at, f"serving is not {expected}:\n{worker.log_tail()}"
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("kind", ["coordinator", "checkpoint", "tools"])
async def test_a_paused_service_costs_only_time(bench: WorkerBench, kind: str) -> None:
    worker = await bench.start_worker()
    task_id = await bench.submit("sim-worker-steady")
    await bench.reached(task_id, facts.AssistantMessage, 2)
    service = bench.stack.services[kind]
    thaw_at = time.monotonic() + AWAY_SECONDS
    service.freeze()
    try:
        if kind == "coordinator":
            await serving(worker, expected=False)
        # The others are not missed: the time itself is what is tested.
        await asyncio.sleep(thaw_at - time.monotonic())
    finally:
        service.wake()
    task = await bench.ended(task_id)
    assert state_name(task.state) == "SUCCEEDED", f"{task.reason}: {task.message}"
    await check_whole(bench, task_id)
    await serving(worker, expected=True)
    if kind == "coordinator":
        await logged(worker, '"attached"', 2)
        assert '"could not attach"' in worker.log(), "each attempt says why it failed"
    # What comes afterwards is worked on as well.
    later = await bench.ended(await bench.submit("sim-worker-unsafe"))
    assert state_name(later.state) == "SUCCEEDED", f"{later.reason}: {later.message}"
