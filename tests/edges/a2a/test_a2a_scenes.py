"""Tenure as an agent of A2A, for the client of the protocol's own SDK."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from a2a.client import ClientConfig, create_client
from a2a.types import a2a_pb2 as a2a
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict, ParseDict

from tenure.runtime.http.outbound_http import http_tls_context
from tests.end_to_end.installation import Installation
from tests.support.patience import CALL_SECONDS

pytestmark = pytest.mark.server
MODEL = "sim-e2e-keyed-paced"
LINES = [f"keyed {number}" for number in range(1, 6)]
LEAVE = {"model": "sim-e2e-one-leave", "approve_tools": ["append_record_unsafe"]}


class Agent:
    """A client of A2A."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def send(self, request: a2a.SendMessageRequest) -> list[a2a.StreamResponse]:
        async with asyncio.timeout(CALL_SECONDS * 4):
            return [update async for update in self.client.send_message(request)]


def browsing(installation: Installation) -> httpx.AsyncClient:
    """A client of the other routes, as patient as that of A2A."""
    return httpx.AsyncClient(
        verify=http_tls_context(), base_url=installation.stack.http_url, timeout=CALL_SECONDS, trust_env=False
    )


@pytest.fixture
async def connect(installation: Installation) -> AsyncIterator[Any]:
    """Makes clients from the agent card."""
    async with httpx.AsyncClient(verify=http_tls_context(), timeout=CALL_SECONDS, trust_env=False) as http:

        async def made(*, streams: bool = True) -> Agent:
            config = ClientConfig(streaming=streams, httpx_client=http, supported_protocol_bindings=["HTTP+JSON"])
            return Agent(await create_client(installation.stack.http_url, config))

        yield made


def message(text: str = "", *, data: Any = None, options: Any = None, **fields: str) -> a2a.SendMessageRequest:
    parts: list[Any] = [{"text": text}] if text else []
    parts += [] if data is None else [{"data": data}]
    said = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": parts, **fields}
    body: dict[str, Any] = {"message": said} | ({"metadata": {"task": options}} if options else {})
    return ParseDict(body, a2a.SendMessageRequest())


def states(updates: list[a2a.StreamResponse]) -> list[str]:
    """The states in the order in which they came, each once in a row."""
    found: list[str] = []
    for update in updates:
        status = update.task.status if update.HasField("task") else update.status_update.status
        name = a2a.TaskState.Name(status.state).removeprefix("TASK_STATE_")
        if status.state and found[-1:] != [name]:
            found.append(name)
    return found


async def test_a_message_is_a_task_and_streams(installation: Installation, connect: Any) -> None:
    agent, file = await connect(), uuid.uuid4().hex
    request = message(file, options={"model": MODEL})
    updates = await agent.send(request)
    assert updates[0].HasField("task")
    task_id, context_id = updates[0].task.id, updates[0].task.context_id
    assert states(updates) == ["SUBMITTED", "WORKING", "COMPLETED"]
    texts = [part.text for one in updates for part in one.status_update.status.message.parts]
    assert texts[:5] == [f"Turn {number}." for number in range(1, 6)]
    (artifact,) = [one.artifact_update.artifact for one in updates if one.HasField("artifact_update")]
    assert artifact.parts[0].text == "All is done."
    assert installation.effects(file) == LINES
    again = await agent.send(request)  # the same message: its turn again, and no second effect
    assert again[0].task.id == task_id
    assert installation.effects(file) == LINES
    got = await agent.client.get_task(a2a.GetTaskRequest(id=task_id))
    assert (got.context_id, got.status.state) == (context_id, a2a.TASK_STATE_COMPLETED)
    assert got.artifacts[0].parts[0].text == "All is done."


@pytest.mark.nightly
async def test_a_client_that_does_not_stream_gets_the_end(installation: Installation, connect: Any) -> None:
    agent = await connect(streams=False)
    first = message("hello", options={"model": "sim-hello"})
    (answer,) = await agent.send(first)
    assert answer.task.status.state == a2a.TASK_STATE_COMPLETED
    assert answer.task.artifacts[0].parts[0].text
    follow_up = message("and now?", contextId=answer.task.context_id)
    (second,) = await agent.send(follow_up)
    assert second.task.context_id == answer.task.context_id
    assert second.task.id != answer.task.id
    async with browsing(installation) as http:
        forked = (await http.get(f"/v1/tasks/{second.task.id}")).json()
    assert forked["forked_from_task_id"] == answer.task.id


@pytest.mark.nightly
async def test_an_approval_is_input_that_is_required(installation: Installation, connect: Any) -> None:
    agent, file = await connect(), uuid.uuid4().hex
    asked = await agent.send(message(file, options=LEAVE))
    assert states(asked)[-1] == "INPUT_REQUIRED"
    identity = {"taskId": asked[0].task.id, "contextId": asked[0].task.context_id}
    (wanted,) = [part for part in asked[-1].status_update.status.message.parts if part.HasField("data")]
    call = MessageToDict(wanted.data)
    assert call["tool"] == "append_record_unsafe"
    assert {"file": file, "line": "only"}.items() <= call["arguments"].items()
    assert installation.effects(file) == []
    answer = message(data={"approvalId": call["approvalId"], "approved": True}, **identity)
    for _ in range(2):  # a repeat is the same answer
        updates = await agent.send(answer)
        assert states(updates)[-1] == "COMPLETED"
        assert installation.effects(file) == ["only"]


@pytest.mark.nightly
async def test_a_context_is_listed_with_its_history(connect: Any) -> None:
    agent = await connect(streams=False)
    first = message("hello", options={"model": "sim-hello"})
    (begun,) = await agent.send(first)
    context_id = begun.task.context_id
    said = begun.task.history
    assert [one.role for one in said] == [a2a.ROLE_USER, a2a.ROLE_AGENT]
    assert (said[0].message_id, said[0].parts[0].text) == (first.message.message_id, "hello")
    assert said[1].parts[0].text == begun.task.artifacts[0].parts[0].text
    follow_up = message("and now?", contextId=context_id)
    follow_up.configuration.history_length = 1
    (second,) = await agent.send(follow_up)
    assert [one.role for one in second.task.history] == [a2a.ROLE_AGENT]
    got = await agent.client.get_task(a2a.GetTaskRequest(id=second.task.id))
    assert got.history[0].message_id == follow_up.message.message_id
    page = await agent.client.list_tasks(a2a.ListTasksRequest(context_id=context_id, page_size=1, history_length=5))
    assert ([task.id for task in page.tasks], page.total_size) == ([second.task.id], 2)
    assert page.tasks[0].history == got.history
    assert not page.tasks[0].artifacts
    rest = a2a.ListTasksRequest(context_id=context_id, page_token=page.next_page_token, include_artifacts=True)
    (last,) = (await agent.client.list_tasks(rest)).tasks
    assert (last.id, last.artifacts, len(last.history)) == (begun.task.id, begun.task.artifacts, 0)


@pytest.mark.nightly
async def test_a_task_is_followed_and_cancelled(installation: Installation, connect: Any) -> None:
    agent = await connect()
    request = message(uuid.uuid4().hex, options=LEAVE)
    task_id = (await agent.send(request))[0].task.id
    seen: list[a2a.StreamResponse] = []

    async def follow() -> None:
        seen.extend([one async for one in agent.client.subscribe(a2a.SubscribeToTaskRequest(id=task_id))])

    following = asyncio.create_task(follow())
    async with asyncio.timeout(CALL_SECONDS):
        cancelled = await agent.client.cancel_task(a2a.CancelTaskRequest(id=task_id))
        assert cancelled.status.state == a2a.TASK_STATE_CANCELED
        try:
            await following
        except UnsupportedOperationError:  # the cancel was faster than the subscription
            return
    assert states(seen) == ["INPUT_REQUIRED", "CANCELED"]


@pytest.mark.nightly
async def test_refusals_have_the_errors_of_the_protocol(installation: Installation, connect: Any) -> None:
    agent = await connect()
    missing = "01900000-0000-7000-8000-000000000001"
    with pytest.raises(TaskNotFoundError):
        await agent.client.get_task(a2a.GetTaskRequest(id=missing))
    with pytest.raises(InvalidParamsError):
        await agent.client.get_task(a2a.GetTaskRequest(id="no-uuid"))
    with pytest.raises(InvalidParamsError):
        await agent.send(message("hello", options={"modell": "sim-hello"}))
    with pytest.raises(ContentTypeNotSupportedError):
        await agent.send(ParseDict({"message": {"messageId": "m", "parts": [{"url": "https://a"}]}}, message("x")))
    push = {"configuration": {"taskPushNotificationConfig": {"url": "https://a.example.com"}}}
    with pytest.raises(PushNotificationNotSupportedError):
        await agent.send(ParseDict(push, message("hello")))
    with pytest.raises(PushNotificationNotSupportedError):
        await agent.client.list_task_push_notification_configs(
            a2a.ListTaskPushNotificationConfigsRequest(task_id=missing)
        )
    with pytest.raises(InvalidParamsError):
        await agent.client.list_tasks(a2a.ListTasksRequest(page_size=101))
    ended = (await agent.send(message("hello", options={"model": "sim-hello"})))[0].task
    with pytest.raises(TaskNotCancelableError):
        await agent.client.cancel_task(a2a.CancelTaskRequest(id=ended.id))
    with pytest.raises(UnsupportedOperationError):
        await agent.send(message("more", taskId=ended.id))
    with pytest.raises(InvalidParamsError):
        await agent.send(message("more", taskId=ended.id, contextId="another"))
    async with browsing(installation) as http:
        old = await http.get(f"/a2a/tasks/{ended.id}", headers={"A2A-Version": "0.3"})
        error = old.json()["error"]
        assert (old.status_code, error["details"][0]["reason"]) == (400, "VERSION_NOT_SUPPORTED")
        card = (await http.get("/.well-known/agent-card.json")).json()
        assert card["supportedInterfaces"][0]["url"] == f"{installation.stack.http_url}/a2a"
