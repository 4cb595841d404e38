"""Own tools that undo effects: what a program may declare, and which arguments their calls may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tenure.domain.argument_mapping import parsed, problems_of_names
from tenure.domain.tools import Compensation

_SCALARS: Final = ("string", "number", "integer", "boolean")


def two_tools_of(name: str, tool: str) -> ValueError:
    """Returns the error for two tools of one name that undo effects of a function or an agent."""
    return ValueError(
        f"{name} has two tools {tool} that undo effects: an undo knows a tool by its name, so give each its own"
    )


def loose_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema by which the tool service refuses arguments of a compensation before the tool begins.

    It accepts whatever the library would: a text that is a number for a number, and the lack of what has a default.
    """
    stated: Mapping[str, Any] = schema.get("properties", {})
    properties = {name: each if isinstance(each, Mapping) else {} for name, each in stated.items()}
    required = [name for name in schema.get("required", ()) if not _may_lack(properties.get(name, {}))]
    loose = {name: _loose(each) for name, each in properties.items()}
    closed = {"additionalProperties": False} if schema.get("additionalProperties") is False else {}
    return {"type": "object", "properties": loose, "required": required, **closed}


def _may_lack(schema: Mapping[str, Any]) -> bool:
    """Whether an argument may have a default: the OpenAI SDK requires all, and does not show the default None."""
    return "default" in schema or any(each.get("type") == "null" for each in schema.get("anyOf", ()))


def _loose(schema: Mapping[str, Any]) -> dict[str, Any]:
    kind = schema.get("type")
    if kind in _SCALARS:
        return {"type": ["string", "number", "boolean"]}
    return {"type": kind} if kind in ("object", "array") else {}


def check_arguments(agent: str, compensation: Compensation, schema: Mapping[str, Any]) -> None:
    """Raises ValueError for a compensation whose arguments do not have the names of its tool's schema."""
    mapping: Any = parsed(compensation.arguments_json)
    if problems := "; ".join(problems_of_names(loose_schema(schema), mapping.keys())):
        raise ValueError(f"agent {agent}: a compensation calls {compensation.tool}, which {problems}")
