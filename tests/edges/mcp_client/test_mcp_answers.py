"""What becomes of a call by what a server over HTTP answers, over a real connection."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from edges.mcp_client.calling import MAX_SENDS, McpToolCaller
from edges.mcp_client.connection import http_link
from edges.mcp_client.settings import McpServer
from services.tools.tool import CallContext, ToolAnswer, ToolFailure, ToolInDoubt
from tenure.domain.tools import EffectClass, ToolDefinition
from tests.support.http_mcp_server import http_mcp_server
from tests.support.patience import CALL_SECONDS

KEYED, UNSAFE = EffectClass.KEYED, EffectClass.UNSAFE


async def paid(port: int, effect_class: EffectClass) -> ToolAnswer | ToolFailure | ToolInDoubt:
    definition = ToolDefinition("bank__pay", "", "{}", effect_class, CALL_SECONDS, 65536)
    context = CallContext("acme", "t", "1.0", "t/1.0", 1, lambda _text: None, timeout_seconds=CALL_SECONDS)
    with ThreadPoolExecutor(1) as threads:
        async with http_link(McpServer(url=f"http://127.0.0.1:{port}/")) as link:
            calling = McpToolCaller(Mock(link=AsyncMock(return_value=link)), "pay", definition, Mock(), threads)
            try:
                return await calling.run(context, {})
            except (ToolFailure, ToolInDoubt) as error:
                return error


UNREADABLE = {
    "its answer is not a tool result": lambda own_id: {"jsonrpc": "2.0", "id": own_id, "result": {"content": 7}},
    "no MCP message": lambda _: {"done": True},
    "an event that is not a message": lambda _: '{"jsonrpc": "2.0", "result',
}


@pytest.mark.parametrize("answer", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("effect_class", [KEYED, UNSAFE])
async def test_an_unreadable_answer_sends_an_unsafe_call_once(
    answer: Callable[[Any], Any], effect_class: EffectClass
) -> None:
    with http_mcp_server(200, answer) as server:
        response = await paid(server.port, effect_class)
        assert isinstance(response, ToolInDoubt)
        assert "an answer that cannot be read" in response.message
        assert server.paid == ["t/1.0"]


@pytest.mark.parametrize("effect_class", [KEYED, UNSAFE])
async def test_a_call_lost_by_a_gateway_is_repeated_where_harmless(
    effect_class: EffectClass,
) -> None:
    with http_mcp_server(502, lambda _: {"error": "a gateway's"}) as server:
        response = await paid(server.port, effect_class)
        assert isinstance(response, ToolInDoubt)
        assert "lost in the middle" in response.message
        assert server.paid == ["t/1.0"] * (1 if effect_class is UNSAFE else MAX_SENDS)


def an_event(own_id: Any) -> str:
    return f'{{"jsonrpc": "2.0", "id": {own_id}, "result": {{"content": [{{"type": "text", "text": "paid"}}]}}}}'


async def test_an_answer_may_come_as_an_event() -> None:
    with http_mcp_server(200, an_event) as server:
        response = await paid(server.port, UNSAFE)
    assert isinstance(response, ToolAnswer)
    assert response.content == "paid"
