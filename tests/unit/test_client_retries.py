"""How long the client asks again: briefly without any answer before, longer after one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.cli.context import Context
from tenure.cli.output import make_console
from tenure.client import Client
from tenure.client import client as client_module
from tenure.client.retries import CALL_TIMEOUT_SECONDS, PATIENCE, RETURN_PATIENCE, completed
from tenure.domain.errors import Unavailable
from tenure.runtime import retrying
from tenure.v1 import agent_service_pb2 as agent_pb
from tenure.v1 import api_key_service_pb2 as key_pb
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1 import webhook_service_pb2 as webhook_pb
from tenure.wire.common import duration


class Gateway:
    """Answers unless it is away, and counts how often it was asked."""

    def __init__(self) -> None:
        self.away, self.request_count, self.timeout = False, 0, 0.0

    async def get_task(self, request: Any, timeout: float = CALL_TIMEOUT_SECONDS) -> api.GetTaskResponse:
        self.request_count, self.timeout = self.request_count + 1, timeout
        if self.away:
            raise Unavailable("connection refused")
        return api.GetTaskResponse(task=task_pb2.Task(task_id=request.task_id))

    def unary_unary(self, *_: Any, **__: Any) -> Any:
        return self.get_task

    unary_stream = stream_unary = stream_stream = unary_unary

    async def close(self) -> None: ...


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
    monkeypatch.setattr(client_module, "open_channel", lambda *_, **__: gateway)
    async with Client("127.0.0.1:1") as client:
        assert await failed_attempts(client, gateway) == PATIENCE.max_attempts
        gateway.away = False
        assert (await client.get("a-task")).task_id == "a-task"
        assert await failed_attempts(client, gateway) == RETURN_PATIENCE.max_attempts


async def test_call_with_its_own_timeout_is_made_once(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "open_channel", lambda *_, **__: gateway)
    gateway.away = True
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(Unavailable):
            await client.tasks.GetTask(api.GetTaskRequest(), timeout=1.0)
    assert gateway.request_count == 1


async def test_command_without_a_gateway_waits_for_it_once(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """It made its own attempts after those of the question whose gateway answers at the usual address."""
    monkeypatch.setattr(client_module, "open_channel", lambda *_, **__: gateway)
    gateway.away = True
    context = Context("127.0.0.1:8470", None, True, Path(), make_console(), {}, is_guessed=True)
    async with Client(context.address) as client:
        await context.check(client)
        assert gateway.request_count == PATIENCE.max_attempts
        assert await failed_attempts(client, gateway) == 1


def test_retries_of_a_request_have_one_id() -> None:
    request = api.SendMessageRequest(text="hello")
    sent = completed(request)
    assert (sent.text, request.request_id) == ("hello", "")
    assert sent.request_id != completed(request).request_id
    assert completed(sent).request_id == sent.request_id


def test_retries_of_a_request_have_one_secret() -> None:
    """A second one would drop the receiver's secret out of the overlap."""
    for request in (webhook_pb.CreateWebhookRequest(name="w"), webhook_pb.RotateWebhookSecretRequest(webhook="w")):
        sent = completed(request)
        assert sent.secret
        assert completed(sent).secret == sent.secret
        assert not request.secret
    assert not completed(webhook_pb.CreateWebhookRequest(kind=webhook_pb.WEBHOOK_KIND_SLACK)).secret


async def test_key_is_created_once(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "open_channel", lambda *_, **__: gateway)
    gateway.away = True
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(Unavailable):
            await client.api_keys.CreateApiKey(key_pb.CreateApiKeyRequest())
    assert gateway.request_count == 1


@pytest.mark.parametrize(("wait", "expected"), [(None, 45.0), (600, 615.0)])
async def test_call_of_a_wait_outlasts_the_wait(
    wait: int | None, expected: float, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "open_channel", lambda *_, **__: gateway)
    async with Client("127.0.0.1:1") as client:
        await client.tasks.WaitTask(api.WaitTaskRequest(timeout=None if wait is None else duration(wait)))
    assert gateway.timeout == expected


class Pages:
    """A list of 1,200 agents in pages of the size that a request has."""

    def __init__(self) -> None:
        self.sizes = list[int]()

    async def list_agents(self, request: agent_pb.ListAgentsRequest) -> agent_pb.ListAgentsResponse:
        self.sizes.append(request.page_size)
        begin = int(request.page_token or 0)
        end = min(begin + request.page_size, 1200)
        agents = [agent_pb.Agent(name=str(number)) for number in range(begin, end)]
        return agent_pb.ListAgentsResponse(agents=agents, next_page_token=str(end) if end < 1200 else "")


@pytest.mark.parametrize(
    ("limit", "sizes"), [(2000, [500, 500, 500]), (501, [500, 500]), (500, [500]), (7, [7]), (0, [500])]
)
async def test_list_is_read_by_pages(limit: int, sizes: list[int]) -> None:
    listing: Any = Pages()
    client, request = Client("127.0.0.1:1"), agent_pb.ListAgentsRequest()
    listed = client.items(listing.list_agents, request, lambda page: page.agents, limit=limit)
    assert [agent.name async for agent in listed] == [str(number) for number in range(min(limit, 1200))]
    assert (listing.sizes, request) == (sizes, agent_pb.ListAgentsRequest())


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


@pytest.mark.usefixtures("gateway")  # the retries come at once
async def test_key_that_cannot_be_read_is_read_again() -> None:
    reads = list[str]()

    def key() -> str:
        reads.append("tnr_key")
        raise FileNotFoundError("no key")

    async with tenure.Client("127.0.0.1:1", api_key=key) as client:
        with pytest.raises(Unavailable, match="the API key cannot be read: no key") as refused:
            await client.count_tasks()
    assert (refused.value.reason, len(reads)) == ("API_KEY_UNREADABLE", PATIENCE.max_attempts)
