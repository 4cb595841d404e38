"""UNSAFE calls of MCP servers: sent once, and decided by nothing but an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tenure.domain.in_doubt import DidNotHappen, Resolution
from tenure.domain.tools import OutcomeStatus
from tenure.runtime.request_context import as_tenant
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import tool_pb2
from tenure.wire.tool import outcome_to_domain, resolution_to_wire
from tests.support.fix_mcp import Configure, McpServers, offered
from tests.support.fix_tools import (
    Grants,
    StartTools,
    appear,
    execute_request,
)
from tests.support.http_mcp_server import http_mcp_server
from tests.support.patience import CALL_SECONDS


def an_error(own_id: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": own_id, "error": {"code": -32603, "message": "paid, but no receipt was mailed"}}


@pytest.mark.parametrize(
    ("status", "answer", "expected"),
    [
        (400, lambda _: {"error": "a gateway's"}, OutcomeStatus.IN_DOUBT),
        pytest.param(400, an_error, OutcomeStatus.FAILED, marks=pytest.mark.faults),
        pytest.param(
            200,
            lambda own_id: {"jsonrpc": "2.0", "id": own_id, "result": {"content": 7}},
            OutcomeStatus.IN_DOUBT,
            marks=pytest.mark.faults,
        ),
    ],
)
async def test_an_answer_after_the_effect_never_repeats_it(
    tool_service: StartTools, grants: Grants, tools_config: Configure, status: int, answer: Any, expected: OutcomeStatus
) -> None:
    with http_mcp_server(status, answer) as server:
        config = tools_config(bank={"url": f"http://127.0.0.1:{server.port}/"})
        tools, owner = await tool_service(config_file=config), grants.claim()
        await offered(tools, owner, "bank__pay")

        outcome = await tools.outcome(owner, "1.0", "bank__pay")

        assert server.paid == [f"{owner.task_id}/1.0"]
        assert outcome.status is expected
        assert "othing was done" not in outcome.content


async def test_runner_exit_does_not_prove_the_end_of_a_server_call(
    tool_service: StartTools,
    grants: Grants,
    mcp_servers: McpServers,
    tools_config: Configure,
    tools_database: Any,
    tmp_path: Path,
) -> None:
    config = tools_config(bank=mcp_servers.scripted(str(tmp_path)))
    tools, owner = await tool_service(config_file=config), grants.claim()
    await offered(tools, owner, "bank__wait")
    call = tools.begin(owner, "1.0", "bank__wait", file="waits")
    await appear(tmp_path / "waits")

    closed = (await tools.fence(owner, close=True))["1.0"]
    assert closed.state == tool_pb2.CALL_STATE_IN_DOUBT
    assert (await call).status is OutcomeStatus.IN_DOUBT
    await tools.terminate()
    assert await tools_database("select ended_at is not null from runners") == [(True,)]

    again = await tool_service()
    inner_request = admin_pb.ListInDoubtCallsRequest(task_id=owner.task_id)
    with as_tenant("default"):
        (listed,) = (await again.stub.ListInDoubtCalls(inner_request, timeout=CALL_SECONDS)).calls
    assert (listed.call.runner_gone, listed.call.acts_elsewhere) == (False, True)
    assert "was asked to stop" in listed.call.note
    successor = grants.claim(owner.task_id, epoch=owner.epoch + 1)
    request = execute_request(successor, "1.0", "bank__wait", '{"file": "waits"}')
    word = Resolution(1, DidNotHappen(runner_proven_gone=True), "I looked", "olga")
    request.resolution.CopyFrom(resolution_to_wire(word))
    response = outcome_to_domain(
        [event async for event in again.stub.Execute(request, timeout=CALL_SECONDS)][-1].outcome
    )
    assert (response.status, response.call_attempt) == (OutcomeStatus.IN_DOUBT, 1)
