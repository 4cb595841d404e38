"""What a model reads of an error of Tenure as an MCP server: the code, and nothing that is Python."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from mcp.server.mcpserver.exceptions import ToolError

from edges.mcp_server.server import TenureMcp, make_server
from edges.mcp_server.settings import McpServerSettings
from tenure.domain.errors import LimitReached, NotFound, TenureError
from tenure.domain.states import TaskState


def server(tenure: Any) -> Any:
    return make_server(tenure, [])


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NotFound("there is no such task"), "NOT_FOUND: there is no such task"),
        (LimitReached("too many", retry_after_seconds=7), "LIMIT_REACHED: too many; try again in 7 s"),
    ],
)
async def test_an_error_of_a_tool_begins_with_its_code(error: TenureError, text: str) -> None:
    error.hint = "read the task's state with task.refresh()"
    tenure = TenureMcp(AsyncMock(return_value=Mock(get=AsyncMock(side_effect=error))), McpServerSettings(None))
    with pytest.raises(ToolError) as refused:
        await server(tenure).call_tool("status", {"task_id": "t"}, Mock())
    assert str(refused.value) == text


async def test_a_wrong_argument_begins_with_the_code_too() -> None:
    with pytest.raises(ToolError) as refused:
        await server(Mock()).call_tool("run", {"goal": ""})
    assert str(refused.value).startswith("INVALID_REQUEST: ")


@pytest.mark.parametrize(
    ("state", "ended", "is_error"),
    [(TaskState.SUCCEEDED, True, False), (TaskState.FAILED, True, True), (TaskState.RUNNING, False, False)],
)
async def test_a_run_that_fails_is_an_error(state: TaskState, ended: bool, is_error: bool) -> None:
    view = {"state": state.value, "ended": ended}
    tenure = Mock(submit=AsyncMock(), outcome=AsyncMock(return_value=view))
    result = await server(tenure).call_tool("run", {"goal": "go"}, Mock())
    assert (result.is_error, result.structured_content) == (is_error, view)
