"""A submit that is repeated by another way after its answer was lost: one task."""

from __future__ import annotations

import asyncio
import signal
import uuid
from typing import Any

import pytest

from tenure.domain.errors import Unavailable
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1.task_service_pb2_grpc import TaskServiceStub
from tests.support.fix_checkpoint import MakeCheckpoint
from tests.support.fix_gateway import Serve
from tests.support.fix_proxy import Lost, MakeProxy
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS


@pytest.fixture
async def gateways(checkpoint: MakeCheckpoint, gateway: Serve) -> Any:
    """Two, each over a ledger replica of its own."""
    first = await checkpoint()
    second = await checkpoint(dsn=first.dsn)
    return [await gateway(replica.address) for replica in (first, second)]


async def tasks(stub: Any) -> Any:
    return (await stub.ListTasks(api.ListTasksRequest())).tasks


async def test_another_gateway_answers_a_submit_with_a_lost_answer(gateways: Any, tcp_proxy: MakeProxy) -> None:
    """F40."""
    doomed, other = gateways
    host, _, port = doomed.process.address.rpartition(":")
    proxy = await tcp_proxy(host, int(port))
    request = api.SubmitTaskRequest(request_id=str(uuid.uuid4()), spec=task_pb2.TaskSpec(goal="once"))
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
