"""Agents in Python for tests, with the simulator as their model. The input of a task is their dependencies:

`trace`: a file with a line for each tool call that ran. `gate`: a file to wait for, or "".
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import agents
from agents import RunContextWrapper, function_tool
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import RunContext

from tenure.agents import Agent, Effect, Work, current_work, function, tool_call
from tenure.agents.openai_agents import durable

Given = dict[str, Any]


def given(value: Given) -> Given:
    return value


async def happens(given: Given, line: str) -> None:
    """An effect, and then the gate."""
    call = tool_call()
    with Path(given["trace"]).open("a") as file:
        file.write(f"{line} {call.idempotency_key} {call.call_attempt}\n")
    while given.get("gate") and not Path(given["gate"]).exists():
        await asyncio.sleep(0.02)


support = Agent("support", model="anthropic:sim-python-support", deps_type=Given, deps=given)


@support.tool(effect=Effect.KEYED)
async def refund(ctx: RunContext[Given], cents: int) -> str:
    await happens(ctx.deps, f"refund-{cents}")
    return f"{cents} cents"


@support.tool(effect=Effect.PURE)
async def note(ctx: RunContext[Given], text: str) -> str:
    with Path(ctx.deps["trace"]).open("a") as file:
        file.write(f"note-{text} {tool_call().idempotency_key} {tool_call().call_attempt}\n")
    return "noted"


talker = Agent("talker", model="anthropic:sim-python-talk", deps_type=Given, deps=given)
talker.tool(effect=Effect.KEYED)(refund)

sender = Agent("sender", model="anthropic:sim-python-unsafe", deps_type=Given, deps=given)


@sender.tool
async def send(ctx: RunContext[Given]) -> str:
    await happens(ctx.deps, "send")
    return "sent"


careful = Agent("careful", model="anthropic:sim-python-unsafe", deps_type=Given, deps=given)


@careful.tool(name="send", effect=Effect.KEYED, requires_approval=True)
async def send_with_approval(ctx: RunContext[Given]) -> str:
    await happens(ctx.deps, "send")
    return "sent"


class Price(BaseModel):
    cents: int


pricing = Agent("pricing", model="anthropic:sim-python-price", output_type=Price)

asking = Agent("asking", model="anthropic:sim-python-asking")


@asking.tool_plain(effect=None)
async def ask(question: str) -> str:
    return await current_work().call_tool("ask_user", {"question": question})


slow = Agent("slow", model="anthropic:sim-python-slow")
writer = Agent("writer", model="anthropic:sim-python-writer")
editor = Agent("editor", model="anthropic:sim-python-editor")


@editor.tool(effect=None)
async def draft(ctx: RunContext[object], topic: str) -> str:
    return (await writer.run(f"Write about the {topic}", usage=ctx.usage)).output


@function
async def compare(work: Work, price: Price) -> list[Price]:
    found = await pricing.run("How much?")
    await work.step("note", lambda: "noted")
    return [price, found.output]


@function_tool(name_override="refund")
async def openai_refund(context: RunContextWrapper[Given], cents: int) -> str:
    await happens(context.context, f"refund-{cents}")
    return f"{cents} cents"


helper = agents.Agent(
    name="helper",
    instructions="Help.",
    model=OpenAIChatCompletionsModel("sim-python-openai", AsyncOpenAI(api_key="sk-test", max_retries=0)),
    tools=[openai_refund],
)
openai_talker = helper.clone(
    name="openai-talker",
    model=OpenAIChatCompletionsModel("sim-python-talk", AsyncOpenAI(api_key="sk-test", max_retries=0)),
)
agents.set_tracing_disabled(True)

FUNCTIONS = [
    support,
    sender,
    careful,
    pricing,
    asking,
    slow,
    writer,
    editor,
    compare,
    durable(helper, effects={"refund": Effect.KEYED}, context=given),
    talker,
    durable(openai_talker, effects={"refund": Effect.KEYED}, context=given),
]
