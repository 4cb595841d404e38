"""F21 with a real worker: etcd answers no caller for longer than a lease lasts."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tenure.domain import entries as facts
from tenure.wire.common import state_name
from tests.support.fix_worker import WorkerBench
from tests.support.partition import at, check_whole, recorded
from tests.support.patience import SHORT_LIFE_SECONDS

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def worker_etcd() -> str:
    return ""  # an own one, to be paused


AWAY_SECONDS = SHORT_LIFE_SECONDS + 4.0
BEGINNINGS = ("model_attempt", "tool_intent")


async def test_a_worker_without_etcd_pauses_after_its_trust_window(
    bench: WorkerBench,
) -> None:
    await bench.start_worker()
    task_id = await bench.submit("sim-worker-steady")
    await bench.reached(task_id, facts.AssistantMessage, 2)
    etcd = bench.stack.etcd
    assert etcd is not None
    etcd.pause()
    left_at = datetime.now(UTC)
    try:
        await bench.reached(task_id, facts.AssistantMessage, 4)  # streams go on, and so do commits and tools
        # Nothing can be seen to happen at the window's end; what was begun after it is looked for below.
        await asyncio.sleep((left_at + timedelta(seconds=AWAY_SECONDS) - datetime.now(UTC)).total_seconds())
        assert state_name((await bench.task(task_id)).state) == "RUNNING"
    finally:
        back_at = datetime.now(UTC)
        etcd.resume()
    task = await bench.ended(task_id)
    assert state_name(task.state) == "SUCCEEDED", f"{task.reason}: {task.message}"
    entries = await recorded(bench, task_id)
    begun = [at(one) for one in entries if one.body.WhichOneof("body") in BEGINNINGS]
    assert any(left_at < one for one in begun), "what runs under the current epoch may go on"
    assert [one for one in begun if left_at + timedelta(seconds=SHORT_LIFE_SECONDS) < one < back_at] == []
    await check_whole(bench, task_id)
