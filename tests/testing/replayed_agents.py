"""Agents and a function whose code leaves a line in a file for all that it does: a replay must leave none.

Tests run copies of this program with a file of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import agents
import pydantic_ai
from agents import RunContextWrapper, function_tool
from pydantic_ai import RunContext
from pydantic_ai.toolsets import DynamicToolset, FunctionToolset

from tenure.agents import Agent, Effect, Work, Worker, current_work, durable, function
from tenure.agents.openai_agents import durable as durable_openai

TRACE = Path("/dev/null")


def happens(line: str) -> None:
    with TRACE.open("a") as file:
        file.write(f"{line}\n")


shop = Agent("shop", model="anthropic:claude-sonnet-4-5", instructions="You refund orders.")


@shop.tool_plain(effect=Effect.KEYED)
async def refund(order: str, cents: int) -> str:
    happens(f"refund {order} {cents}")
    return f"{cents} cents for {order}"


@shop.tool_plain(effect=Effect.KEYED, requires_approval=True)
async def close(order: str) -> str:
    happens(f"close {order}")
    return f"{order} is closed"


@shop.tool_plain(effect=None)
async def ask(question: str) -> str:
    return await current_work().call_tool("ask_user", {"question": question})


def found(_ctx: RunContext[Any]) -> FunctionToolset[Any]:
    happens("look for tools")
    tools: FunctionToolset[Any] = FunctionToolset(id="inner")
    tools.add_function(look)
    return tools


def look(order: str) -> str:
    happens(f"look {order}")
    return f"{order} is paid"


inner = pydantic_ai.Agent(
    "anthropic:claude-sonnet-4-5", name="looker", defer_model_check=True, toolsets=[DynamicToolset(found, id="found")]
)
looker = durable(inner, effects={"look": Effect.PURE})


@function_tool(name_override="refund")
async def openai_refund(context: RunContextWrapper[Any], order: str, cents: int) -> str:
    happens(f"refund {order} {cents}")
    return f"{cents} cents for {order}"


helper = agents.Agent(name="helper", instructions="You refund orders.", model="gpt-5", tools=[openai_refund])


@function
async def close_order(work: Work, order: str) -> str:
    paid = await work.step("pay", pay, order)
    answer = await shop.run(f"Close order {order}, {paid}")
    await work.step("archive", happens, f"archive {order}")
    return f"{answer.output} {paid}"


def pay(order: str) -> str:
    happens(f"pay {order}")
    return "paid"


FUNCTIONS = [shop, looker, durable_openai(helper, effects={"refund": Effect.KEYED}), close_order]

if __name__ == "__main__":
    Worker(FUNCTIONS, queues=["default", "another"], slots=3).run()
