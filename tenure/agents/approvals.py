"""Asks a person about calls of inline tools, and of tools that ask while they run: the permission is recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from tenure.agents.execution import Execution
from tenure.control.own_tools import OwnTool, OwnToolContext
from tenure.domain.tools import EffectClass, Outcome

ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}


async def permission(
    current: Execution, tool: str, description: str, shown_schema: Mapping[str, Any], arguments: Mapping[str, Any]
) -> Outcome:
    """Waits until a person allows a call. The outcome has the arguments as they allow them, as JSON, or the refusal.

    The permission is a recorded call under the tool's name, so people see and answer it like that of any other tool.
    """

    async def run(_call: OwnToolContext, allowed: Mapping[str, Any]) -> str:
        return json.dumps(dict(allowed), ensure_ascii=False)

    permission_call = OwnTool(
        name=tool,
        description=description,
        input_schema=ANY_OBJECT,
        shown_schema=shown_schema,
        effect=EffectClass.IDEMPOTENT,
        needs_approval=True,
        run=run,
    )
    return await current.call_own_tool(permission_call, arguments)
