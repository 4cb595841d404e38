"""A shop whose tools are own tools of the worker. Each effect is a line of the file `trace`, as in own_tool_functions.

UNDO_TOOLS: the name of the function's own tool for undos: a worker with another one has other code.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import agents
from pydantic_ai import RunContext
from pydantic_ai.models.function import FunctionModel

from tenure.agents import Agent, Effect, function, tool_call
from tenure.agents.openai_agents import durable
from tenure.control import EffectClass, OwnTool, Work, compensate_with
from tests.support import openai_script
from tests.support.own_tool_functions import SCHEMA, note, write
from tests.support.pydantic_script import Script, call, text_response


def tool(name: str, effect: EffectClass, **more: Any) -> OwnTool:
    return OwnTool(name=name, description=name, input_schema=SCHEMA, effect=effect, run=write, **more)


FILES = {"trace": "/arguments/trace", "gate": "/arguments/gate"}
CANCEL = tool(os.environ.get("UNDO_TOOLS", "cancel_order"), EffectClass.KEYED)
CANCELLED = compensate_with(CANCEL, {**FILES, "line": {"literal": "cancelled"}})
ORDER = tool("place_order", EffectClass.KEYED, compensation=CANCELLED)
REFUNDED = compensate_with("append_record", {"file": "/arguments/how", "line": {"literal": "refunded"}})
PAY = tool("pay_order", EffectClass.UNSAFE, compensation=REFUNDED)


@function(undo_tools=[CANCEL])
async def shopping(work: Work, given: dict[str, Any]) -> str:
    """Two orders and a payment. A gate holds the cancellations, but not the orders."""
    files = {name: given[name] for name in ("trace", "gate")}
    for line in ("tea", "milk"):
        await work.call_own_tools([(ORDER, {**files, "line": line})])
    await work.call_own_tools([(PAY, {"trace": given["trace"], "line": "pay", "how": given["file"]})])
    return "bought"


clerk = Agent(
    "clerk",
    model=FunctionModel(Script(call("book", room="blue"), text_response("Booked."))),
    deps_type=Path,
    deps=lambda given: Path(given["trace"]),
)


@clerk.tool(effect=Effect.KEYED)
async def release(context: RunContext[Path], room: str) -> None:
    """Releases a room, in the file that the input of the undone task names."""
    note(str(context.deps), tool_call(), f"released-{room}")


@clerk.tool(effect=Effect.KEYED, compensation=compensate_with(release, {"room": "/outcome/room"}))
async def book(context: RunContext[Path], room: str) -> dict[str, str]:
    """Books a room."""
    note(str(context.deps), tool_call(), f"booked-{room}")
    return {"room": room}


@agents.function_tool
async def give_back(context: agents.RunContextWrapper[str], car: str) -> None:
    """Gives a car back, in the file that the input of the undone task names."""
    note(context.context, tool_call(), f"returned-{car}")


@agents.function_tool
async def rent(context: agents.RunContextWrapper[str], car: str) -> dict[str, str]:
    """Rents a car."""
    note(context.context, tool_call(), f"rented-{car}")
    return {"car": car}


driver = durable(
    agents.Agent[str](
        name="driver",
        model=openai_script.Script(
            [openai_script.call("rent", '{"car": "van"}')], openai_script.text_message("Rented.")
        ),
        tools=[rent, give_back],
    ),
    effects={"rent": Effect.KEYED, "give_back": Effect.KEYED},
    compensations={"rent": compensate_with(give_back, {"car": "/outcome/car"})},
    context=lambda given: given["trace"],
    stream=False,
)
FUNCTIONS = [shopping, clerk, driver]
