"""Asks a person about calls of inline tools, and of tools that ask while they run: the permission is recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from tenure.agents.execution import Execution
from tenure.control.own_tools import OwnTool, OwnToolContext, runs_nowhere
from tenure.domain.tools import EffectClass, Outcome, ToolDefinition

ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}


async def permission(
    current: Execution, tool: str, description: str, shown_schema: Mapping[str, Any], arguments: Mapping[str, Any]
) -> Outcome:
    """Waits until a person allows a call. The outcome has the arguments as they allow them, as JSON, or the refusal.

    The permission is a recorded call under the tool's name, so people see and answer it like that of any other tool.
    """

    async def run(_call: OwnToolContext, allowed: Mapping[str, Any]) -> str:
        return json.dumps(dict(allowed), ensure_ascii=False)

    permission_call = replace(inline_tool(tool, description, shown_schema), needs_approval=True, run=run)
    return await current.call_own_tool(permission_call, arguments)


def inline_tool(tool: str, description: str, shown_schema: Mapping[str, Any]) -> OwnTool:
    """Returns an inline tool as people see it: a later execution runs it again."""
    return OwnTool(
        name=tool,
        description=description,
        input_schema=ANY_OBJECT,
        shown_schema=shown_schema,
        effect=EffectClass.IDEMPOTENT,
        run=runs_nowhere,
    )


def offered_tools(tools: Iterable[Callable[[], OwnTool]]) -> tuple[ToolDefinition, ...]:
    """Returns the tools that a model is offered as people see them. Leaves out tools that no call could name."""
    shown = []
    for tool in tools:
        with suppress(ValueError):
            shown.append(tool().shown)
    return tuple(shown)
