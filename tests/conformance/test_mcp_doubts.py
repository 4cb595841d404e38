"""UNSAFE calls of MCP servers: sent once, and decided by nothing but an answer."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.domain.tools import OutcomeStatus
from tests.fix_mcp import Configure, offered
from tests.fix_tools import Grants, StartTools
from tests.http_mcp_server import http_mcp_server


def an_error(own_id: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": own_id, "error": {"code": -32603, "message": "paid, but no receipt was mailed"}}


@pytest.mark.parametrize(
    ("status", "answer", "expected"),
    [
        (400, an_error, OutcomeStatus.FAILED),
        (400, lambda _: {"error": "a gateway's"}, OutcomeStatus.IN_DOUBT),
        (200, lambda own_id: {"jsonrpc": "2.0", "id": own_id, "result": {"content": 7}}, OutcomeStatus.IN_DOUBT),
    ],
)
async def test_what_a_server_answers_after_it_paid_never_has_it_pay_again(
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
