"""Agents of both libraries, each with one tool that needs an approval: by where that is declared, and by effect class.

The input of a task is the path of a file, to which each call that runs adds a line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import agents
import pydantic_ai
from agents import RunContextWrapper, function_tool
from pydantic_ai import RunContext
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.toolsets import FunctionToolset

from tenure.agents import DurableFunction, Effect, durable
from tenure.agents.openai_agents import durable as durable_openai

PYDANTIC, OPENAI = "pydantic", "openai"
DECLARED, TOOLSET, RAISED, DECIDED, AGENT, SUBMIT = "declared", "toolset", "raised", "decided", "agent", "submit"
"""The library's flag, its toolset, its exception, its function, an agent as a tool, and the task's approve_tools."""
WHERE: Final = {PYDANTIC: (DECLARED, TOOLSET, RAISED, SUBMIT), OPENAI: (DECLARED, DECIDED, AGENT, SUBMIT)}
EFFECTS: Final = (Effect.PURE, Effect.KEYED, Effect.UNSAFE, None)


@dataclass(frozen=True)
class Cell:
    library: str
    where: str
    effect: Effect | None

    @property
    def name(self) -> str:
        return f"{self.library}-{self.where}-{self.effect or 'inline'}"

    @property
    def approve_tools(self) -> list[str]:
        return ["act"] if self.where == SUBMIT else []


CELLS: Final = [
    Cell(library, where, effect)
    for library, places in WHERE.items()
    for where in places
    for effect in ((None,) if where == AGENT else EFFECTS)
]


def given(value: str) -> str:
    return value


def ran(trace: str, cents: int) -> str:
    with Path(trace).open("a") as file:
        file.write(f"{cents}\n")
    return f"{cents} cents"


def build(cell: Cell, model: Any = None) -> DurableFunction:
    """Returns the agent of a cell. `model`: None for those of the providers."""
    return _pydantic(cell, model) if cell.library == PYDANTIC else _openai(cell, model)


def _pydantic(cell: Cell, model: Any) -> DurableFunction:
    toolset = FunctionToolset[str](id="acts")

    @toolset.tool(requires_approval=cell.where == DECLARED)
    async def act(ctx: RunContext[str], cents: int) -> str:
        if cell.where == RAISED and not ctx.tool_call_approved:
            raise ApprovalRequired
        return ran(ctx.deps, cents)

    agent = pydantic_ai.Agent(
        model or "anthropic:claude-sonnet-5",
        name=cell.name,
        deps_type=str,
        toolsets=[toolset.approval_required() if cell.where == TOOLSET else toolset],
        defer_model_check=True,
    )
    return durable(agent, effects={"act": cell.effect}, deps=given)


def _openai(cell: Cell, model: Any) -> DurableFunction:
    async def decide(_context: Any, arguments: dict[str, Any], _call: str) -> bool:
        return bool(arguments["cents"] > 1)

    async def act(context: RunContextWrapper[str], cents: int) -> str:
        return ran(context.context, cents)

    needs: Any = {DECLARED: True, DECIDED: decide}.get(cell.where, False)
    tool = function_tool(act, needs_approval=needs)
    effects: dict[str, Effect | None] = {"act": cell.effect}
    if cell.where == AGENT:
        inner = agents.Agent[str](name="inner", instructions="inner", tools=[tool], model=model)
        tool = inner.as_tool(tool_name="ask", tool_description="Asks.", needs_approval=True)
        effects = {"act": Effect.PURE}
    agent = agents.Agent[str](name=cell.name, instructions="outer", tools=[tool], model=model)
    return durable_openai(agent, effects=effects, context=given)


def functions() -> Iterator[DurableFunction]:
    yield from map(build, CELLS)


agents.set_tracing_disabled(True)
FUNCTIONS = list(functions())
