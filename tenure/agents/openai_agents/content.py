"""Describes an agent of the OpenAI Agents SDK: the content of its revisions besides the code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agents import Agent
from agents.models.interface import Model
from agents.tool import FunctionTool
from pydantic import PydanticUserError, TypeAdapter

from tenure.agents.openai_agents.models import name_of
from tenure.agents.openai_agents.tools import DurableInvocation, needs_approval
from tenure.domain.agents import AgentContent, AgentKind, ToolContent
from tenure.domain.tools import EffectClass


def content_of(agent: Agent[Any], max_output_tokens: int, version: str) -> AgentContent:
    """Describes a durable agent, with the instructions and tools of those it may hand over to."""
    agents = list(reachable(agent))
    tools = {tool.name: _tool(tool) for each in agents for tool in functions(each)}
    return AgentContent(
        AgentKind.PYTHON,
        model=_model(agent.model),
        system="\n\n".join(_instructions(each, agent) for each in agents),
        tools=tuple(tools.values()),
        output_schema_json=_output_schema(agent),
        max_output_tokens=max_output_tokens,
        version=version,
    )


def reachable(agent: Agent[Any], seen: set[int] | None = None) -> Iterator[Agent[Any]]:
    """Yields the agent and those that it may hand over to."""
    seen = set() if seen is None else seen
    if id(agent) in seen:
        return
    seen.add(id(agent))
    yield agent
    for handoff in agent.handoffs:
        if isinstance(handoff, Agent):
            yield from reachable(handoff, seen)


def _model(model: Model | str | None) -> str:
    if model is None:
        return ""
    return f"openai:{model if isinstance(model, str) else name_of(model)}"


def _instructions(agent: Agent[Any], first: Agent[Any]) -> str:
    stated = agent.instructions or ""
    text = stated if isinstance(stated, str) else f"(computed by {getattr(stated, '__qualname__', 'a function')})"
    return text if agent is first else f"{agent.name}: {text}"


def functions(agent: Agent[Any]) -> Iterator[FunctionTool]:
    """Yields the tools that are functions."""
    yield from (tool for tool in agent.tools if isinstance(tool, FunctionTool))


def _tool(tool: FunctionTool) -> ToolContent:
    invocation = tool.on_invoke_tool
    return ToolContent(
        name=tool.name,
        description=tool.description,
        input_schema_json=json.dumps(tool.params_json_schema, sort_keys=True),
        effect=invocation.effect if isinstance(invocation, DurableInvocation) else EffectClass.UNSAFE,
        needs_approval=needs_approval(tool),
    )


def _output_schema(agent: Agent[Any]) -> str:
    output: Any = agent.output_type or str
    try:
        return json.dumps(TypeAdapter(getattr(output, "output_type", output)).json_schema(mode="serialization"))
    except PydanticUserError:
        return ""
