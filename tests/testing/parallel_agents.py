"""Agents whose models call several tools at once. The input of a task: `trace`, a file to note runs in; `gate`, a file.

A tool ends at once for the name `quick`, and when the gate is there for `gated`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import agents
from agents import RunContextWrapper, function_tool
from pydantic_ai import RunContext

from tenure.agents import Agent, Effect, Work, function, tool_call
from tenure.agents.openai_agents import durable

Given = dict[str, Any]


def given(value: Given) -> Given:
    return value


async def noted(given: Given, name: str) -> str:
    key = tool_call().idempotency_key.rpartition("/")[2]
    with Path(given["trace"]).open("a") as file:
        file.write(f"{name} {key}\n")
    while name == "gated" and not Path(given["gate"]).exists():
        await asyncio.sleep(0.02)
    return f"{name} is done"


pydantic_agent = Agent("pydantic", model="anthropic:claude-sonnet-5", deps_type=Given, deps=given)


@pydantic_agent.tool(effect=Effect.KEYED)
async def slow(ctx: RunContext[Given], name: str) -> str:
    return await noted(ctx.deps, name)


@pydantic_agent.tool(effect=Effect.PURE)
async def other(ctx: RunContext[Given], name: str) -> str:
    return await noted(ctx.deps, name)


@pydantic_agent.tool(effect=None)
async def inline(ctx: RunContext[Given], name: str) -> str:
    """Runs alone, between the others."""
    return f"{name} is inline"


@pydantic_agent.tool(effect=Effect.KEYED, requires_approval=True)
async def careful(ctx: RunContext[Given], name: str) -> str:
    return await noted(ctx.deps, name)


@function_tool(name_override="slow")
async def slow_openai(ctx: RunContextWrapper[Given], name: str) -> str:
    return await noted(ctx.context, name)


@function_tool(name_override="other")
async def other_openai(ctx: RunContextWrapper[Given], name: str) -> str:
    return await noted(ctx.context, name)


openai_agent = agents.Agent[Given](name="openai", instructions="Be quick.", tools=[slow_openai, other_openai])


@function
async def read_all(work: Work) -> list[str]:
    """Returns the text of each file of the submit."""
    return [(await work.read_file(file)).decode() for file in work.files]


MODULES = ("tests.support.approval_agents", "tests.testing.parallel_agents")
"""What workers with agents run: the imports of one program take 7 s of processor time, so these tests share one."""

FUNCTIONS = [
    read_all,
    pydantic_agent,
    durable(openai_agent, effects={"slow": Effect.KEYED, "other": Effect.PURE}, context=given),
]
