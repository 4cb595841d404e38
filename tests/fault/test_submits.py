"""A submit that is repeated, at once or after its answer was lost, by whatever way: one task."""

from __future__ import annotations

import asyncio
import signal
import uuid
from typing import Any

import pytest

from tenure.domain.errors import AlreadyExists, Unavailable
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1.task_service_pb2_grpc import TaskServiceStub
from tests.support.fix_checkpoint import MakeCheckpoint
from tests.support.fix_gateway import Serve
from tests.support.fix_proxy import Lost, MakeProxy
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

REPEATS = 20


@pytest.fixture
async def gateways(checkpoint: MakeCheckpoint, gateway: Serve) -> Any:
    """Two, each over a ledger replica of its own."""
    first = await checkpoint()
    second = await checkpoint(dsn=first.dsn)
    return [await gateway(replica.address) for replica in (first, second)]


def submit(request_id: str = "", goal: str = "once") -> api.SubmitTaskRequest:
    return api.SubmitTaskRequest(request_id=request_id or str(uuid.uuid4()), spec=task_pb2.TaskSpec(goal=goal))


async def tasks(stub: Any) -> Any:
    return (await stub.ListTasks(api.ListTasksRequest())).tasks


@pytest.mark.faults
async def test_concurrent_submits_of_one_id_make_one_task(gateways: Any) -> None:
    """F39: the first one wins."""
    request_id = str(uuid.uuid4())
    requests = [submit(request_id=request_id, goal=f"goal {number % 4}") for number in range(REPEATS)]
    answers = await asyncio.gather(
        *(gateways[number % 2].SubmitTask(request) for number, request in enumerate(requests)), return_exceptions=True
    )
    accepted = [answer.task for answer in answers if not isinstance(answer, BaseException)]
    assert len(accepted) == REPEATS // 4
    assert len({(task.task_id, task.spec.goal) for task in accepted}) == 1
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    for refusal in refused:
        assert isinstance(refusal, AlreadyExists)
        assert refusal.reason == "REQUEST_ID_REUSED"
        assert refusal.metadata["task_id"] == accepted[0].task_id


@pytest.mark.faults
async def test_another_tenants_submit_of_the_same_id_is_another_task(
    checkpoint: MakeCheckpoint, gateway: Serve
) -> None:
    replica = await checkpoint()
    request = submit()
    ours, theirs = [await gateway(replica.address, tenant=tenant) for tenant in ("default", "acme")]
    first, second = [(await stub.SubmitTask(request)).task for stub in (ours, theirs)]
    assert first.task_id != second.task_id
    assert [task.task_id for task in await tasks(ours)] == [first.task_id]
    assert [task.task_id for task in await tasks(theirs)] == [second.task_id]


async def test_another_gateway_answers_a_submit_with_a_lost_answer(gateways: Any, tcp_proxy: MakeProxy) -> None:
    """F40."""
    doomed, other = gateways
    host, _, port = doomed.process.address.rpartition(":")
    proxy = await tcp_proxy(host, int(port))
    request = submit()
    async with open_channel(proxy.address, default_timeout_seconds=CALL_SECONDS) as channel:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await channel.channel_ready()
        proxy.deaf(Lost.ANSWERS)
        submitting = asyncio.ensure_future(TaskServiceStub(channel).SubmitTask(request))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (made := await tasks(other)):
                await asyncio.sleep(0.02)
        doomed.process.signal(signal.SIGKILL)
        await proxy.reset()
        with pytest.raises(Unavailable) as broken:
            await submitting
    assert broken.value.metadata["outcome"] == "unknown"
    again = await other.SubmitTask(request)
    assert again.task.task_id == made[0].task_id
    assert len(await tasks(other)) == 1
