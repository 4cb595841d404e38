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


stuck = Agent("stuck", model="anthropic:sim-python-stuck")


@stuck.tool_plain(effect=Effect.PURE)
async def look_up(order: int) -> str:
    raise LookupError(f"order {order} does not exist")


BIG = "".join(f"{number:07d}\n" for number in range(3 * 1024 * 1024 // 8))


def big() -> str:
    """Returns 3 MiB."""
    return BIG


pydantic_big = Agent("pydantic-big", model="anthropic:sim-python-big")
pydantic_big.tool_plain(effect=Effect.PURE)(big)
inline_big = Agent("inline-big", model="anthropic:sim-python-big")
inline_big.tool_plain(effect=None)(big)


class Price(BaseModel):
    cents: int


pricing = Agent("pricing", model="anthropic:sim-python-price", output_type=Price)

asking = Agent("asking", model="anthropic:sim-python-asking")


@asking.tool_plain(effect=None)
async def ask(question: str) -> str:
    return await current_work().call_tool("ask_user", {"question": question})


redirected = Agent("redirected", model="anthropic:sim-python-redirected")
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
openai_redirected = agents.Agent(
    name="openai-redirected",
    model=OpenAIChatCompletionsModel("sim-python-redirected", AsyncOpenAI(api_key="sk-test", max_retries=0)),
)
openai_big = agents.Agent(
    name="openai-big",
    model=OpenAIChatCompletionsModel("sim-python-big", AsyncOpenAI(api_key="sk-test", max_retries=0)),
    tools=[function_tool(big)],
)
agents.set_tracing_disabled(True)

FUNCTIONS = [
    support,
    sender,
    careful,
    stuck,
    pydantic_big,
    inline_big,
    durable(openai_big, output_limits={"big": 2048}),
    pricing,
    asking,
    redirected,
    durable(openai_redirected),
    slow,
    writer,
    editor,
    compare,
    durable(helper, effects={"refund": Effect.KEYED}, context=given),
    talker,
    durable(openai_talker, effects={"refund": Effect.KEYED}, context=given),
]
