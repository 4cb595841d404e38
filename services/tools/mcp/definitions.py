"""A server's tools as tools of this service: under which name, of which class, and which of them are left out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import mcp_types as types

from services.tools.mcp.settings import McpServer
from services.tools.registry import SEPARATOR
from services.tools.sources import MOST_TOOLS
from tenure.domain.tools import EffectClass, ToolDefinition
from tenure.validators import TOOL_NAME

_LONGEST_DESCRIPTION: Final = 8 * 1024
_LONGEST_SCHEMA: Final = 64 * 1024


@dataclass(slots=True)
class Described:
    """Definitions by the server's own names, and what was left out, told."""

    definitions: dict[str, ToolDefinition] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def describe(server: str, settings: McpServer, listed: Iterable[types.Tool]) -> Described:
    """All tools that can be taken. A name that comes twice counts once: the first."""
    described = Described()
    allowed = None if settings.allow is None else set(settings.allow)
    names = set()
    for tool in listed:
        names.add(tool.name)
        if allowed is not None and tool.name not in allowed:
            continue
        if problem := _problem(server, tool, described):
            described.problems.append(f"{tool.name[:64]!r} {problem}")
        else:
            described.definitions[tool.name] = _definition(server, settings, tool)
    for what, wanted in (("allow", allowed or set()), ("effects", set(settings.effects))):
        missing = sorted(wanted - names)
        described.problems += [f"{name!r} is in {what}, and the server has no such tool" for name in missing]
    return described


def effect_class(settings: McpServer, tool: types.Tool) -> EffectClass:
    """The config's word; else what the server claims; else the class with which nothing happens twice."""
    declared = settings.effects.get(tool.name)
    if declared is not None:
        return declared
    hints = tool.annotations
    if hints is not None and hints.read_only_hint:
        return EffectClass.PURE
    if hints is not None and hints.idempotent_hint:
        return EffectClass.IDEMPOTENT
    return EffectClass.UNSAFE


def _problem(server: str, tool: types.Tool, described: Described) -> str:
    if not TOOL_NAME.match(f"{server}{SEPARATOR}{tool.name}"):
        return "has a name that models cannot call: with the server's 1 to 64 of a-z, A-Z, 0-9, _ and -"
    if tool.name in described.definitions:
        return "is there twice"
    if len(described.definitions) >= MOST_TOOLS:
        return f"is one more than the {MOST_TOOLS} tools that are taken: name those you want in allow"
    if len(json.dumps(tool.input_schema)) > _LONGEST_SCHEMA:
        return f"has a schema of more than {_LONGEST_SCHEMA} bytes"
    if tool.execution is not None and tool.execution.task_support == "required":
        return "can be called as a task of MCP only"
    return ""


def _definition(server: str, settings: McpServer, tool: types.Tool) -> ToolDefinition:
    description = tool.description or tool.title or ""
    if len(description) > _LONGEST_DESCRIPTION:
        description = description[:_LONGEST_DESCRIPTION] + "…"
    return ToolDefinition(
        name=f"{server}{SEPARATOR}{tool.name}",
        description=description,
        input_schema_json=json.dumps(tool.input_schema),
        effect_class=effect_class(settings, tool),
        timeout_seconds=settings.timeout_seconds,
        output_limit_bytes=settings.output_limit_bytes,
    )
