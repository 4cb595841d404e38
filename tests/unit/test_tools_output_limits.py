"""How much of an output a model is shown: by its task, by its tool, or by both."""

from __future__ import annotations

import pytest

from services.tools.servicer import limit_of_output
from services.tools.tool import Tool, ToolAnswer, define
from tenure.domain.tools import EffectClass
from tenure.v1 import tool_service_pb2


async def never(_context: object, _arguments: object) -> ToolAnswer:
    raise AssertionError


@pytest.mark.parametrize(("of_task", "of_tool", "limit"), [(0, 4096, 4096), (2048, 4096, 2048), (8192, 4096, 4096)])
def test_an_operators_text_is_bounded_by_task_and_tool(of_task: int, of_tool: int, limit: int) -> None:
    """A call that was in doubt is settled by words that no tool has cut."""
    tool = Tool(define("pay", EffectClass.UNSAFE, "pays", {}, output_limit_bytes=of_tool), never)
    request = tool_service_pb2.ExecuteRequest(output_limit_bytes=of_task)
    assert limit_of_output(request, tool) == limit
    assert limit_of_output(request, None) == of_task
