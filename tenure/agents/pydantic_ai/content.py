"""Describes an agent of Pydantic AI: the content of its revisions besides the code."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import pydantic_ai
from pydantic import PydanticUserError
from pydantic_ai.models import Model
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import (
    AbstractToolset,
    ApprovalRequiredToolset,
    CombinedToolset,
    FunctionToolset,
    PrefixedToolset,
    RenamedToolset,
    WrapperToolset,
)

from tenure.agents.effects import check_declared
from tenure.agents.pydantic_ai.durability import DurableSettings
from tenure.agents.pydantic_ai.tool_calls import Effects, effect_of
from tenure.domain.agents import AgentContent, AgentKind, ToolContent

MAX_DESCRIPTION: Final = 16_000
_WITH_ID: Final = frozenset({"pydantic_ai.toolsets.function", "pydantic_ai.toolsets._dynamic", "pydantic_ai.mcp"})
"""The modules of the toolsets that ask or are asked in steps of their own."""


def describe(
    agent: pydantic_ai.Agent[Any, Any], name: str, settings: DurableSettings, version: str
) -> Callable[[], AgentContent]:
    """Returns the function that describes the agent as it is then: tools may be added until its worker starts.

    It raises ValueError for an agent with a toolset that its steps cannot name, and for settings of a tool that it does
    not have.
    """

    def content() -> AgentContent:
        for toolset in agent.toolsets:
            toolset.apply(lambda leaf: _check_id(name, leaf))
        if all(isinstance(toolset, FunctionToolset) for toolset, _ in _leaves(agent)):
            names = {tool.name for tool in function_tools(agent)}
            check_declared(name, names, {"effects": settings.effects, "output_limits": settings.output_limits})
        return AgentContent(
            AgentKind.PYTHON,
            model=_model(agent.model),
            system="\n\n".join(_instructions(agent)),
            tools=tuple(_tool(tool, settings.effects) for tool in function_tools(agent)),
            output_schema_json=_output_schema(agent),
            max_output_tokens=settings.max_output_tokens,
            version=version,
        )

    return content


def _check_id(agent: str, toolset: AbstractToolset[Any]) -> None:
    """Raises ValueError for a toolset without an id. It would fail each task when it first asks for the tools."""
    is_listed = any(each.__module__ in _WITH_ID for each in type(toolset).__mro__)
    if is_listed and getattr(toolset, "_explicit_id", toolset.id) is None:
        raise ValueError(
            f"agent {agent} has a {type(toolset).__name__} without an id, which names its steps in the ledger: write "
            f"{type(toolset).__name__}(…, id='orders')"
        )


def _model(model: Model | str | None) -> str:
    """Returns provider:model; "" if each run names its model."""
    if model is None or isinstance(model, str):
        return model or ""
    return f"{model.system}:{model.model_name}"


def _instructions(agent: pydantic_ai.Agent[Any, Any]) -> Iterator[str]:
    """Yields the system prompts and instructions, and the names of the functions that compute further ones."""
    yield from vars(agent).get("_system_prompts", ())
    stated = [getattr(each, "instruction", each) for each in vars(agent).get("_instructions", ())]
    computed = [getattr(each, "function", each) for each in vars(agent).get("_system_prompt_functions", ())]
    for each in (*stated, *computed):
        yield each if isinstance(each, str) else f"(computed by {getattr(each, '__qualname__', type(each).__name__)})"


def function_tools(agent: pydantic_ai.Agent[Any, Any]) -> Iterator[Tool[Any]]:
    """Yields the tools that are functions, as calls name them. Other toolsets know their tools only when they run."""
    for toolset, asks in _leaves(agent):
        for tool in toolset.tools.values() if isinstance(toolset, FunctionToolset) else ():
            made = copy.copy(tool)
            made.requires_approval = tool.requires_approval or asks
            yield made


def _leaves(agent: pydantic_ai.Agent[Any, Any]) -> Iterator[tuple[AbstractToolset[Any], bool]]:
    """Yields the toolsets in those that wrap others, and whether their calls ask a person, or may."""
    left: list[tuple[AbstractToolset[Any], bool]] = [(each, False) for each in reversed(agent.toolsets)]
    while left:
        toolset, asks = left.pop()
        if isinstance(toolset, CombinedToolset):
            left += [(each, asks) for each in reversed(toolset.toolsets)]
        elif isinstance(toolset, WrapperToolset) and not isinstance(toolset, PrefixedToolset | RenamedToolset):
            left.append((toolset.wrapped, asks or isinstance(toolset, ApprovalRequiredToolset)))
        else:
            yield toolset, asks


def _tool(tool: Tool[Any], effects: Effects) -> ToolContent:
    definition = tool.tool_def
    return ToolContent(
        name=tool.name,
        description=(tool.description or "")[:MAX_DESCRIPTION],
        input_schema_json=json.dumps(definition.parameters_json_schema, sort_keys=True),
        effect=effect_of(definition, effects),
        needs_approval=tool.requires_approval,
        timeout_seconds=tool.timeout,
    )


def _output_schema(agent: pydantic_ai.Agent[Any, Any]) -> str:
    try:
        return json.dumps(agent.output_json_schema(), sort_keys=True)
    except (PydanticUserError, TypeError, ValueError):  # a type without a schema, such as an output function's
        return ""
