"""A short way to write down a tool's definition."""

from __future__ import annotations

import json
from typing import Any

from tenure.domain.tools import EffectClass, ToolDefinition


def define(
    name: str,
    effect_class: EffectClass,
    description: str,
    properties: dict[str, Any],
    *,
    required: tuple[str, ...] = (),
    timeout_seconds: float = 30.0,
    output_limit_bytes: int = 64 * 1024,
) -> ToolDefinition:
    """A definition whose arguments are an object with these properties and no others."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    return ToolDefinition(
        name=name,
        description=description,
        input_schema_json=json.dumps(schema),
        effect_class=effect_class,
        timeout_seconds=timeout_seconds,
        output_limit_bytes=output_limit_bytes,
    )
