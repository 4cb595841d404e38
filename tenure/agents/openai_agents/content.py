"""Describes an agent of the OpenAI Agents SDK: the content of its revisions besides the code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agents import Agent
from agents.handoffs import Handoff
from agents.models.interface import Model
from agents.tool import FunctionTool
from pydantic import PydanticUserError, TypeAdapter

from tenure.agents.openai_agents.models import name_of
from tenure.agents.openai_agents.tools import DurableInvocation, needs_approval
from tenure.domain.agents import AgentContent, AgentKind, ToolContent
from tenure.domain.tools import EffectClass


def content_of(agent: Agent[Any], max_output_tokens: int, version: str) -> AgentContent:
    """Describes a durable agent, with the instructions and tools of those that it may run."""
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
    """Yields the agent, those that it may hand over to, and those among its tools."""
    seen = set() if seen is None else seen
    if id(agent) in seen:
        return
    seen.add(id(agent))
    yield agent
    inner = (getattr(tool, "_agent_instance", None) for tool in functions(agent))
    for each in (*map(target_of, agent.handoffs), *inner):
        if each is not None:
            yield from reachable(each, seen)


def target_of(handoff: Agent[Any] | Handoff[Any, Any]) -> Agent[Any] | None:
    """Returns the agent that a handoff leads to. None: it chooses the agent when it is called."""
    if isinstance(handoff, Agent):
        return handoff
    known = handoff._agent_ref  # noqa: SLF001  the SDK states it nowhere else
    agent = None if known is None else known()
    return agent if isinstance(agent, Agent) else None


def known_tools(agent: Agent[Any]) -> set[str] | None:
    """Returns the names of the functions of these agents. None: a handoff may lead to other agents."""
    agents = list(reachable(agent))
    if any(target_of(handoff) is None for each in agents for handoff in each.handoffs):
        return None
    return {tool.name for each in agents for tool in functions(each)}


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
