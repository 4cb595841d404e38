"""Tenure as an MCP server, with the protocol's own client over standard input and output: it keeps nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from mcp import MCPError
from mcp.client import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import CallToolResult, Request, RequestParams, Result
from pydantic import ConfigDict

from tenure.runtime.http.outbound_http import http_tls_context
from tests.end_to_end.installation import Installation
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

TASKS = "io.modelcontextprotocol/tasks"


class Handle(Result):
    """A task of the protocol."""

    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = "task"


class Anything(Result):
    """Whatever came."""

    model_config = ConfigDict(extra="allow")


class OneTask(RequestParams):
    """Parameters as on the wire."""

    model_config = ConfigDict(extra="allow")


async def _not_here(_handle: Handle, _context: ClaimContext) -> CallToolResult:
    raise AssertionError("the tests read the task themselves")


class Tasks(ClientExtension):
    """Says that this client knows tasks."""

    identifier = TASKS

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Handle, resolve=_not_here)]


def server(installation: Installation, *options: str) -> StdioServerParameters:
    address = installation.stack.gateway_address
    return StdioServerParameters(
        command=sys.executable, args=["-m", "tenure.cli", "--address", address, "mcp", *options], env=dict(os.environ)
    )


@asynccontextmanager
async def connected(parameters: StdioServerParameters, *extensions: ClientExtension) -> AsyncIterator[Client]:
    # Not the stderr that was there at the import, which a worker of the run has captured and closed.
    server = stdio_client(parameters, errlog=sys.__stderr__ or sys.stderr)
    async with Client(server, extensions=extensions or None) as client:
        yield client


def started() -> list[int]:
    """The servers that this process has started."""
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = {int(pid) for file in children for pid in file.read_text().split()}
    return [pid for pid in pids if b"\0mcp\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    value: dict[str, Any] = result.structured_content
    return value


async def request(client: Client, method: str, **params: Any) -> dict[str, Any]:
    sent: Any = Request[OneTask, Any](method=method, params=OneTask(**params))
    answer = await client.session.send_request(sent, Anything)
    return answer.model_dump(by_alias=True, mode="json")


async def until(client: Client, task_id: str, status: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (task := await request(client, "tasks/get", taskId=task_id))["status"] != status:
            await asyncio.sleep(0.1)
        return task


async def submitted_and_killed(installation: Installation) -> str:
    """Submits a task, and kills the server with SIGKILL while the task runs. Returns the id of the task."""
    task_id = ""
    with suppress(Exception):  # whatever the client says about a server that is gone
        async with connected(server(installation, "--model", "sim-slow")) as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            assert tools == {"submit", "run", "status", "result", "cancel", "answer", "events"}
            task_id = (await call(client, "submit", goal="take your time"))["task_id"]
            (pid,) = started()
            os.kill(pid, signal.SIGKILL)
            await client.list_tools()
    return task_id


@pytest.mark.nightly
async def test_a_task_survives_its_mcp_server(installation: Installation) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        task_id = await submitted_and_killed(installation)
    assert task_id
    async with connected(server(installation)) as client:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (seen := await call(client, "result", task_id=task_id, wait_seconds=20))["ended"]:
                pass
        assert (seen["state"], seen["task_id"]) == ("SUCCEEDED", task_id), seen
        first = await call(client, "events", task_id=task_id, limit=2)
        assert ([one["sequence"] for one in first["events"]], first["more"]) == ([1, 2], True)
        rest = await call(client, "events", task_id=task_id, after_sequence=first["last_sequence"], limit=200)
        assert rest["events"][0]["sequence"] == 3
        assert rest["events"][-1]["state"] == "SUCCEEDED"


@pytest.mark.nightly
async def test_a_submit_is_capped(installation: Installation) -> None:
    async with connected(server(installation, "--max-cost", "0.30")) as client:
        refused = await client.call_tool("submit", {"goal": "ask", "max_cost": 0.31})
        assert refused.is_error
        assert "max_cost" in str(refused.content)
        for wanted, cap in ((None, 300_000_000), (0.2, 200_000_000)):
            task = await call(client, "submit", goal="ask", max_cost=wanted)
            assert (await installation.client.get(task["task_id"])).spec.limits.max_nano_usd == cap


@pytest.mark.nightly
async def test_a_question_is_answered(installation: Installation) -> None:
    async with connected(server(installation, "--model", "sim-question")) as client:
        task = await call(client, "submit", goal="ask", request_id="mcp-one")
        assert (await call(client, "submit", goal="ask", request_id="mcp-one"))["task_id"] == task["task_id"]
        await installation.in_state(task["task_id"], "WAITING_USER")
        seen = await call(client, "status", task_id=task["task_id"])
        assert seen["wait"]["answerable_here"] is True
        over = await client.call_tool("answer", {"task_id": task["task_id"], "wait_id": "w1", "answer": "blue"})
        assert "WAIT_OVER" in str(over.content)
        await call(client, "answer", task_id=task["task_id"], wait_id=seen["wait"]["wait_id"], answer="blue")
        ended = await call(client, "result", task_id=task["task_id"], wait_seconds=50)
        assert (ended["state"], "blue" in ended["result"]) == ("SUCCEEDED", True)
        unknown = await client.call_tool("status", {"task_id": "00000000-0000-7000-8000-000000000000"})
        assert "NOT_FOUND" in str(unknown.content)


@pytest.mark.nightly
async def test_run_becomes_a_task_of_the_protocol(installation: Installation) -> None:
    """The server is another one for each request."""
    parameters = server(installation, "--model", "sim-question")
    async with connected(parameters, Tasks()) as client:
        assert TASKS in (client.session.server_capabilities.extensions or {})  # type: ignore[union-attr]
        handle = await client.session.call_tool("run", {"goal": "ask"}, allow_claimed=True)
        assert isinstance(handle, Handle)
        task_id = handle.model_dump(by_alias=True)["taskId"]
    async with connected(parameters, Tasks()) as client:
        asking = await until(client, task_id, "input_required")
        ((key, form),) = asking["inputRequests"].items()
        assert form["method"] == "elicitation/create"
        assert "Which colour" in form["params"]["message"]
        accept = {"action": "accept", "content": {"answer": "blue"}}
        assert (await request(client, "tasks/update", taskId=task_id, inputResponses={"w999": accept}))["resultType"]
        assert (await request(client, "tasks/get", taskId=task_id))["status"] == "input_required"
        await request(client, "tasks/update", taskId=task_id, inputResponses={key: accept})
    async with connected(parameters, Tasks()) as client:
        done = await until(client, task_id, "completed")
        result = CallToolResult.model_validate(done["result"])
        assert (result.is_error, "blue" in str(result.content)) == (False, True)
        with pytest.raises(MCPError, match="NOT_FOUND"):
            await request(client, "tasks/get", taskId="00000000-0000-7000-8000-000000000000")


async def test_the_gateway_serves_the_same_at_mcp(installation: Installation) -> None:
    url = f"{installation.stack.http_url}/mcp"
    async with Client(url, extensions=[Tasks()]) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} >= {"run", "events"}
        refused = await client.call_tool("submit", {"goal": "ask", "max_cost": 1.01})
        assert "max_cost" in str(refused.content)
        task = await call(client, "submit", goal="x", model="sim-e2e-priced", max_cost=0.9)
        seen = await call(client, "result", task_id=task["task_id"], wait_seconds=50)
        assert seen["ended"], seen
        handle = await client.session.call_tool("run", {"goal": "x", "model": "sim-e2e-priced"}, allow_claimed=True)
        task_id = handle.model_dump(by_alias=True)["taskId"]
    async with Client(url, extensions=[Tasks()]) as client:
        assert (await until(client, task_id, "completed"))["taskId"] == task_id
    async with httpx2.AsyncClient(verify=http_tls_context(), timeout=CALL_SECONDS, trust_env=False) as browser:
        stranger = await browser.post(url, json={}, headers={"origin": "https://evil.example"})
        assert stranger.status_code == 403


@pytest.mark.nightly
async def test_a_cancel_and_a_client_without_tasks(installation: Installation) -> None:
    parameters = server(installation, "--model", "sim-question")
    async with connected(parameters, Tasks()) as client:
        handle = await client.session.call_tool("run", {"goal": "ask"}, allow_claimed=True)
        task_id = handle.model_dump(by_alias=True)["taskId"]
        await request(client, "tasks/cancel", taskId=task_id)
        await until(client, task_id, "cancelled")
        await request(client, "tasks/cancel", taskId=task_id)
    async with connected(parameters) as client:
        with pytest.raises(MCPError) as refused:
            await request(client, "tasks/get", taskId=task_id)
        assert refused.value.error.code == -32021
