"""Lists and histories of A2A over a real ledger, whose tasks have the states, times and entries that a test needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from a2a.types import a2a_pb2 as a2a
from google.protobuf.json_format import ParseDict

from edges.a2a import listing as a2a_list
from tenure.runtime.http.outbound_http import http_tls_context
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.conformance.test_ledger_waits import approval, intent, move, say, waiting
from tests.support.fix_checkpoint import Checkpoint, MakeCheckpoint, answer, reserve, words
from tests.support.fix_gateway import Serve
from tests.support.patience import CALL_SECONDS


class A2AEndpoint:
    """The A2A endpoint of a gateway over a ledger."""

    def __init__(self, replica: Checkpoint, stub: Any, http: httpx2.AsyncClient) -> None:
        self.replica, self.stub, self.http = replica, stub, http

    async def get(self, path: str, **parameters: Any) -> Any:
        response = await self.http.get(f"/a2a/{path}", params=parameters)
        assert response.status_code == 200, response.text
        return response.json()

    async def refused(self, path: str, **parameters: Any) -> tuple[str, str]:
        """The reason and the message of a refusal."""
        response = await self.http.get(f"/a2a/{path}", params=parameters)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        return error["details"][0]["reason"], error["message"]

    async def listed(self, **parameters: Any) -> a2a.ListTasksResponse:
        """A page, which has no field that the protocol does not have."""
        return ParseDict(await self.get("tasks", **parameters), a2a.ListTasksResponse())

    async def ids(self, **parameters: Any) -> list[str]:
        return [task.id for task in (await self.listed(**parameters)).tasks]

    async def history(self, task_id: str, **parameters: Any) -> list[tuple[str, str]]:
        task = ParseDict(await self.get(f"tasks/{task_id}", **parameters), a2a.Task())
        return [(a2a.Role.Name(one.role).removeprefix("ROLE_"), one.parts[0].text) for one in task.history]


@pytest.fixture
async def a2a_endpoint(checkpoint: MakeCheckpoint, gateway: Serve) -> AsyncIterator[A2AEndpoint]:
    replica = await checkpoint()
    stub = await gateway(replica.address, http="127.0.0.1:0")
    async with httpx2.AsyncClient(
        verify=http_tls_context(), base_url=stub.http, timeout=CALL_SECONDS, trust_env=False
    ) as http:
        yield A2AEndpoint(replica, stub, http)


def conversation(name: str, **fields: Any) -> task_pb2.Source:
    return task_pb2.Source(kind=task_pb2.SOURCE_KIND_CONVERSATION, source_id=name, **fields)


async def ended(replica: Checkpoint, **spec: Any) -> str:
    owner = await replica.claim((await replica.create(**spec)).task_id)
    await owner.end()
    return owner.task.task_id


async def test_the_task_whose_status_is_newest_is_first(a2a_endpoint: A2AEndpoint) -> None:
    first, second, third = [(await a2a_endpoint.replica.create()).task_id for _ in range(3)]
    assert await a2a_endpoint.ids() == [third, second, first]
    await a2a_endpoint.replica.cancel(first)
    assert (await a2a_endpoint.ids())[0] == first
    owner = await a2a_endpoint.replica.claim(second)
    await owner.end()
    page = await a2a_endpoint.listed(pageSize=2)
    assert ([task.id for task in page.tasks], page.page_size, page.total_size) == ([second, first], 2, 3)
    rest = await a2a_endpoint.get("tasks", pageSize=2, pageToken=page.next_page_token)
    assert [task["id"] for task in rest["tasks"]] == [third]
    assert (rest["nextPageToken"], rest["totalSize"]) == ("", 3)
    assert "artifacts" not in rest["tasks"][0]
    assert "history" not in rest["tasks"][0]


async def test_a_list_has_what_its_filters_say(a2a_endpoint: A2AEndpoint) -> None:
    replica = a2a_endpoint.replica
    queued, waits = (await replica.create()).task_id, (await waiting(replica)).task_id
    done, cancelled = await ended(replica), (await replica.create()).task_id
    await replica.cancel(cancelled)
    by_state = {
        "SUBMITTED": [queued],
        "WORKING": [],
        "INPUT_REQUIRED": [waits],
        "COMPLETED": [done],
        "CANCELED": [cancelled],
        "FAILED": [],
        "REJECTED": [],
        "AUTH_REQUIRED": [],
    }
    assert {name: await a2a_endpoint.ids(status=f"TASK_STATE_{name}") for name in by_state} == by_state
    whole = await a2a_endpoint.get("tasks", includeArtifacts="true", status="TASK_STATE_COMPLETED")
    assert whole["tasks"][0]["artifacts"][0]["parts"] == [{"text": "done"}]
    at = (await a2a_endpoint.get(f"tasks/{done}"))["status"]["timestamp"]
    assert queued not in await a2a_endpoint.ids(statusTimestampAfter=at)
    assert done in await a2a_endpoint.ids(statusTimestampAfter=at)
    later = datetime.fromisoformat(at) + timedelta(days=1)
    assert await a2a_endpoint.ids(statusTimestampAfter=later.isoformat()) == []


@pytest.mark.nightly
async def test_a_context_is_a_conversation_or_a_tree(a2a_endpoint: A2AEndpoint) -> None:
    replica, name = a2a_endpoint.replica, str(uuid4())
    first = await ended(replica, source=conversation(name, exclusive=True))
    alone = (await replica.create()).task_id
    second = (await replica.create(source=conversation(name, exclusive=True))).task_id
    assert await a2a_endpoint.ids(contextId=name) == [second, first]
    assert await a2a_endpoint.ids(contextId=alone) == [alone]
    follow_up = (await replica.create(source=conversation(alone, exclusive=True))).task_id
    assert await a2a_endpoint.ids(contextId=alone) == [follow_up, alone]
    assert (await a2a_endpoint.listed(contextId=alone)).total_size == 2
    assert await a2a_endpoint.ids(contextId=first) == []  # its context is the conversation
    assert await a2a_endpoint.ids(contextId="unknown") == []


async def test_a_list_has_nothing_of_other_tenants(checkpoint: MakeCheckpoint, gateway: Serve) -> None:
    replica = await checkpoint()
    task = await replica.create(source=conversation("c"))
    stub = await gateway(replica.address, http="127.0.0.1:0")
    async with httpx2.AsyncClient(
        verify=http_tls_context(), base_url=stub.http, timeout=CALL_SECONDS, trust_env=False
    ) as http:
        for parameters in ({}, {"contextId": "c"}, {"contextId": task.task_id}):
            own = await http.get("/a2a/tasks", params=parameters)
            others = await http.get("/a2a/tasks", params=parameters, headers={"Tenure-Tenant": "somebody-else"})
            assert own.json()["totalSize"] == (0 if parameters.get("contextId") == task.task_id else 1)
            assert (others.json()["tasks"], others.json()["totalSize"]) == ([], 0)


@pytest.mark.nightly
async def test_wrong_parameters_are_named(a2a_endpoint: A2AEndpoint) -> None:
    wrong = {
        "pageSize": "150",
        "historyLength": "-5",
        "status": "TASK_STATE_RUNNING",
        "pageToken": "x",
        "statusTimestampAfter": "yesterday",
        "includeArtifacts": "yes",
    }
    reason, message = await a2a_endpoint.refused("tasks", **wrong)
    assert reason == "INVALID_PARAMS"
    assert [name for name in wrong if name not in message] == []
    for name, texts in {"pageSize": ("0", "ten"), "statusTimestampAfter": ("2026-01-01T00:00:00",)}.items():
        for text in texts:
            assert name in (await a2a_endpoint.refused("tasks", **{name: text}))[1]
    task_id = (await a2a_endpoint.replica.create()).task_id
    assert "historyLength" in (await a2a_endpoint.refused(f"tasks/{task_id}", historyLength="-1"))[1]


@pytest.mark.nightly
async def test_a_list_that_cannot_be_sorted_is_refused(a2a_endpoint: A2AEndpoint) -> None:
    old = await ended(a2a_endpoint.replica)
    gate = asyncio.Semaphore(50)

    async def made() -> None:
        async with gate:
            await a2a_endpoint.replica.create()

    await asyncio.gather(*(made() for _ in range(a2a_list.MAX_TASKS)))
    assert (await a2a_endpoint.refused("tasks"))[0] == "UNSUPPORTED_OPERATION"
    page = await a2a_endpoint.listed(status="TASK_STATE_SUBMITTED", pageSize=100)
    assert (len(page.tasks), page.total_size) == (100, a2a_list.MAX_TASKS)
    assert await a2a_endpoint.ids(status="TASK_STATE_COMPLETED") == [old]
    assert await a2a_endpoint.ids(contextId=old) == [old]


async def test_history_has_the_messages_of_both_sides(a2a_endpoint: A2AEndpoint) -> None:
    owner = await a2a_endpoint.replica.claim((await a2a_endpoint.replica.create(goal="Ship it.")).task_id)
    task_id = owner.task.task_id
    assert await a2a_endpoint.history(task_id) == [("USER", "Ship it.")]
    await owner.commit(reserve=reserve())
    await owner.commit(answer(text="I ask first."), words("the worker's own"), intent(), transition=move(approval()))
    begun = [("USER", "Ship it."), ("AGENT", "I ask first.")]
    assert await a2a_endpoint.history(task_id) == begun  # the question is the message of the status
    asked = (await a2a_endpoint.get(f"tasks/{task_id}"))["status"]["message"]
    await say(a2a_endpoint.replica, await a2a_endpoint.replica.get(task_id), reply="Only on Monday.")
    assert asked in (await a2a_endpoint.get(f"tasks/{task_id}"))["history"]
    talk = [*begun, ("AGENT", "Ship it?"), ("USER", "Only on Monday.")]
    assert await a2a_endpoint.history(task_id) == talk
    assert await a2a_endpoint.history(task_id, historyLength=2) == talk[-2:]
    assert "history" not in await a2a_endpoint.get(f"tasks/{task_id}", historyLength=0)
    (listed,) = (await a2a_endpoint.listed(historyLength=1)).tasks
    assert [one.parts[0].text for one in listed.history] == ["Only on Monday."]


@pytest.mark.nightly
async def test_a_long_history_is_read_from_its_end(a2a_endpoint: A2AEndpoint) -> None:
    task_id = (await a2a_endpoint.replica.create(goal="begin")).task_id
    for number in range(300):
        await a2a_endpoint.replica.say(task_id, f"message {number}")
    texts = [text for _, text in await a2a_endpoint.history(task_id)]
    assert texts == [f"message {number}" for number in range(200, 300)]
    owner = await a2a_endpoint.replica.claim(task_id)
    for _ in range(5):
        await owner.commit(*[words() for _ in range(100)])
    assert [text for _, text in await a2a_endpoint.history(task_id, historyLength=2)] == ["message 298", "message 299"]


@pytest.mark.nightly
async def test_the_history_of_a_fork_is_its_own(a2a_endpoint: A2AEndpoint) -> None:
    owner = await a2a_endpoint.replica.claim((await a2a_endpoint.replica.create(goal="first")).task_id)
    await owner.commit(reserve=reserve())
    await owner.commit(answer(text="done"))
    await owner.end()
    fork = api.ForkTaskRequest(task_id=owner.task.task_id, message="and now?", without_files=True, request_id="f")
    forked = (await a2a_endpoint.stub.ForkTask(fork)).task.task_id
    assert await a2a_endpoint.history(forked) == [("USER", "and now?")]
