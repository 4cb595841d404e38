"""Services and workers that are cut off from what they stand on: refused in bounded time, given up, found again."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from tenure.domain import entries as facts
from tenure.domain.errors import Unavailable
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1.task_service_pb2_grpc import TaskServiceStub
from tenure.wire.common import state_name
from tests.support.fix_network import Network
from tests.support.fix_proxy import Lost
from tests.support.fix_worker import WorkerBench
from tests.support.partition import check_whole, logged, placed_service
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.faults

CALL_SECONDS = 10.0


async def serves(placed: Any, wanted: bool) -> None:
    """Waits until the health of a replica is as wanted."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await placed.process.serves() is not wanted:
            await asyncio.sleep(0.1)


async def test_a_worker_leaves_a_coordinator_without_etcd(bench: WorkerBench, network: Network) -> None:
    both = [await placed_service(bench, network, "coordinator") for _ in range(2)]
    worker = await bench.start_worker(coordinator_address=",".join(one.address for one in both))
    task_id = await bench.submit("sim-worker-steady")
    await bench.reached(task_id, facts.AssistantMessage, 2)
    (live,) = [one for one in await bench.live_workers() if one.worker_id == worker.name]
    (cut,) = [one for one in both if one.process.name == live.coordinator_id]
    cut.host.cut("etcd")
    await serves(cut, wanted=False)
    cut.host.mend("etcd")
    await serves(cut, wanted=True)
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.claim_count) == ("SUCCEEDED", 1)
    await check_whole(bench, task_id)


async def test_a_coordinator_without_ledger_keeps_its_workers(bench: WorkerBench, network: Network) -> None:
    cut = await placed_service(bench, network, "coordinator")
    await bench.start_worker(coordinator_address=cut.address)
    running = await bench.submit("sim-worker-paced")
    await bench.reached(running, facts.AssistantMessage, 1)
    cut.host.cut("checkpoint")
    task = await bench.ended(running)
    assert (state_name(task.state), task.claim_count) == ("SUCCEEDED", 1)
    waiting = await bench.submit("sim-hello")
    await logged(cut.process, "the dispatch of offers failed and is retried")
    assert state_name((await bench.task(waiting)).state) == "QUEUED"
    cut.host.mend("checkpoint")
    assert state_name((await bench.ended(waiting)).state) == "SUCCEEDED"


async def test_a_deaf_gateway_refuses_in_time_and_watches_resume(bench: WorkerBench, network: Network) -> None:
    cut = await placed_service(bench, network, "gateway", heartbeat_seconds="0.5")
    await bench.start_worker()
    task_id = await bench.submit("sim-worker-steady")
    async with open_channel(cut.address, default_timeout_seconds=CALL_SECONDS) as channel:
        stub = TaskServiceStub(channel)
        sequences: list[int] = []
        request = api.SubmitTaskRequest(
            request_id=str(uuid.uuid4()), spec=task_pb2.TaskSpec(goal="once", queue=bench.queue)
        )
        async for event in stub.WatchTask(api.WatchTaskRequest(task_id=task_id), timeout=120):
            if event.HasField("entry"):
                sequences.append(event.entry.sequence)
            if sequences[-1:] == [10]:
                cut.host.cut("checkpoint", Lost.ANSWERS)
                try:
                    await stub.SubmitTask(request)
                    raise AssertionError("an answer came through")
                except Unavailable:
                    cut.host.mend("checkpoint")
        assert sequences == list(range(1, len(sequences) + 1))
        assert state_name((await bench.task(task_id)).state) == "SUCCEEDED"
        first, second = [(await stub.SubmitTask(request)).task.task_id for _ in range(2)]
        assert first == second
