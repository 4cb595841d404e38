"""A server's tools as any source describes its own: of which class by its hints, and which cannot be called at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import mcp_types as types

from tenure.domain.tools import EffectClass, ToolDefinition

_TASKS_ONLY: Final = "it can be called as a task of MCP only"


def described(listed: Sequence[types.Tool]) -> list[ToolDefinition]:
    """As the server says; what it cannot say, such as a timeout, is left open."""
    return [
        ToolDefinition(
            name=tool.name,
            description=tool.description or tool.title or "",
            input_schema_json=json.dumps(tool.input_schema),
            effect_class=_claimed(tool.annotations),
            timeout_seconds=0.0,
            output_limit_bytes=0,
        )
        for tool in listed
    ]


def unusable(listed: Sequence[types.Tool]) -> dict[str, str]:
    """Why some cannot be called from here, by name."""
    return {
        tool.name: _TASKS_ONLY
        for tool in listed
        if tool.execution is not None and tool.execution.task_support == "required"
    }


def _claimed(hints: types.ToolAnnotations | None) -> EffectClass:
    """What the server's hints come to; without any the class with which nothing happens twice."""
    if hints is not None and hints.read_only_hint:
        return EffectClass.PURE
    if hints is not None and hints.idempotent_hint:
        return EffectClass.IDEMPOTENT
    return EffectClass.UNSAFE
