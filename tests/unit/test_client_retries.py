"""How long the client asks again: briefly without any answer before, longer after one."""

from __future__ import annotations

import pytest

from tenure.client import Client
from tenure.client.client import CALL_TIMEOUT_SECONDS, PATIENCE, RETURN_PATIENCE
from tenure.domain.errors import Unavailable
from tenure.runtime import retrying
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api


class Gateway:
    """Answers unless it is away, and counts how often it was asked."""

    def __init__(self) -> None:
        self.away, self.request_count = False, 0

    async def get_task(self, request: api.GetTaskRequest, timeout: float) -> api.GetTaskResponse:
        assert timeout > 0
        self.request_count += 1
        if self.away:
            raise Unavailable("connection refused")
        return api.GetTaskResponse(task=task_pb2.Task(task_id=request.task_id))


@pytest.fixture
async def gateway(monkeypatch: pytest.MonkeyPatch) -> Gateway:
    async def at_once(_seconds: float) -> None: ...

    monkeypatch.setattr(retrying, "asyncio", type("Quick", (), {"sleep": staticmethod(at_once)}))
    return Gateway()


async def failed_attempts(client: Client, gateway: Gateway) -> int:
    gateway.away, gateway.request_count = True, 0
    with pytest.raises(Unavailable):
        await client.get("a-task")
    return gateway.request_count


async def test_gateway_that_has_answered_is_retried_longer(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Client("127.0.0.1:1") as client:
        monkeypatch.setattr(client.tasks, "GetTask", gateway.get_task)
        assert await failed_attempts(client, gateway) == PATIENCE.max_attempts
        gateway.away = False
        assert (await client.get("a-task")).task_id == "a-task"
        assert await failed_attempts(client, gateway) == RETURN_PATIENCE.max_attempts


def test_retries_last_longer_than_the_backoff_of_a_channel() -> None:
    waits = [RETURN_PATIENCE.ceiling_seconds(failures) for failures in range(1, RETURN_PATIENCE.max_attempts)]
    assert sum(waits) / 2 > 3 * 2.4  # on average; a channel tries every 2 s with a jitter of 20 %


async def test_a_call_of_a_wait_is_not_longer_than_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that hangs keeps a wait of a second for its call's own time only, not for a minute."""
    timeouts: list[float] = []

    async def wait_task(request: api.WaitTaskRequest, timeout: float) -> api.WaitTaskResponse:
        timeouts.append(timeout - request.timeout.ToTimedelta().total_seconds())
        return api.WaitTaskResponse(ended=len(timeouts) == 2)

    async with Client("127.0.0.1:1") as client:
        monkeypatch.setattr(client.tasks, "GetTask", Gateway().get_task)
        monkeypatch.setattr(client.tasks, "WaitTask", wait_task)
        await client.wait("a-task", 30.0)
    assert timeouts == pytest.approx([CALL_TIMEOUT_SECONDS] * 2, abs=0.001)
