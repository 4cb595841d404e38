"""What agents of the OpenAI Agents SDK declare of their tools, and the tools and outcomes that their undos have."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agents import Agent, RunContextWrapper, function_tool, handoff, set_tracing_disabled
from agents.tool import FunctionTool

from tenure.agents import DurableFunction, Effect, EffectKey, EffectScope, compensate_with, tool_call
from tenure.agents.openai_agents import durable
from tests.support.journal_work import Call, JournalWork
from tests.support.openai_script import Script, call, sent_to_the_model, text_message

set_tracing_disabled(True)


@pytest.mark.parametrize("way", ["a handoff", "handoff(…)", "a tool"])
async def test_undo_runs_tools_of_agents_that_it_reaches(way: str) -> None:
    """They are in the facts, too, so that a task may have them in its approve_tools."""

    @function_tool
    def cancel(order: str) -> str:
        return tool_call().idempotency_key

    @function_tool
    def order(item: str) -> str:
        return item

    shop = Agent[Any](name="shop", tools=[order, cancel])
    ways = {
        "a handoff": lambda: Agent[Any](name="front", handoffs=[shop]),
        "handoff(…)": lambda: Agent[Any](name="front", handoffs=[handoff(shop)]),
        "a tool": lambda: Agent[Any](name="front", tools=[shop.as_tool("ask_shop", "Asks the shop.")]),
    }
    front = ways[way]()
    undo = compensate_with(cancel, {"order": "/outcome"})
    function = durable(front, effects={"order": Effect.KEYED}, compensations={"order": undo})
    facts = {tool.name: tool.effect for tool in function.describe().tools}  # type: ignore[misc]
    assert {"order": Effect.KEYED, "cancel": Effect.UNSAFE}.items() <= facts.items()
    outer = durable(Agent(name="outer"), undo_tools=[function])
    for each in (function, outer):
        [tool] = each.undo_tools({})  # type: ignore[misc]
        assert await tool.run(Call("task", "7.0", 1, "task/7.0", 5), {"order": "tea"}) == "task/7.0"


@pytest.mark.parametrize(
    "declared",
    [
        {"effects": {"reffund": Effect.KEYED}},
        {"effect_keys": {"reffund": EffectKey(("/order",), EffectScope.TREE)}},
        {"compensations": {"reffund": compensate_with("pay", {})}},
        {"output_limits": {"reffund": 2000}},
    ],
)
def test_declaration_of_no_tool_is_refused(declared: dict[str, Any]) -> None:
    """A misspelt name would leave the tool UNSAFE, without an effect key and a compensation."""

    @function_tool
    def refund(order: str) -> str:
        return order

    front = Agent[Any](name="front", handoffs=[Agent[Any](name="billing", tools=[refund])])
    [name] = declared
    with pytest.raises(ValueError, match=f"front: {name}: there is no tool 'reffund'; did you mean refund"):
        durable(front, **declared).describe()  # type: ignore[misc]


async def test_undo_of_an_agent_runs_its_tool_without_a_run() -> None:
    @function_tool
    def cancel(context: RunContextWrapper[str], order: str) -> dict[str, str]:
        return {"who": context.context, "order": order, "key": tool_call().idempotency_key}

    @function_tool
    def order(item: str) -> str:
        return item

    cancelled = compensate_with(cancel, {"order": "/outcome"})
    shop = Agent(name="shop", tools=[order, cancel])
    function = durable(
        shop, effects={"cancel": Effect.KEYED}, compensations={"order": cancelled}, context=lambda given: given["who"]
    )
    assert function.undo_tools is not None
    (tool,) = function.undo_tools({"who": "ada"})
    assert (tool.name, tool.effect) == ("cancel", Effect.KEYED)
    made = await tool.run(Call("task", "7.0", 1, "task/7.0", 5), {"order": "tea"})
    assert json.loads(made) == {"who": "ada", "order": "tea", "key": "task/7.0"}
    with pytest.raises(ValueError, match="calls cancel, which is not a recorded tool"):
        durable(Agent(name="other", tools=[order]), compensations={"order": cancelled}).undo_tools({})  # type: ignore[misc]


@pytest.mark.parametrize(("result", "content"), [(7, "7"), ("7", '"7"'), ("x", "x"), (True, "True"), ([1], "[1]")])
async def test_a_number_is_recorded_as_one(result: Any, content: str) -> None:
    """So a compensation may take it. The model reads the text that the SDK makes of it."""

    @function_tool
    async def order() -> Any:
        return result

    script = Script([call("order")], text_message("Ordered."))
    work = JournalWork("Order tea")
    await durable(Agent(name="shop", model=script, tools=[order])).run(work.begin(), None)
    assert json.loads(dict(work.journal)["tool order"]) == ["SUCCEEDED", content, ""]
    assert sent_to_the_model(script, "order") == [str(result)]


def test_compensation_with_other_arguments_is_refused() -> None:
    """The SDK's schema requires all arguments, also those with a default."""

    @function_tool
    def cancel(order_id: int, why: str = "undone", to: str | None = None) -> None: ...

    @function_tool
    def order(item: str) -> str:
        return item

    def undo_tools(names: str) -> Any:
        shop = Agent[Any](name="shop", tools=[order, cancel])
        undo = compensate_with(cancel, {names: "/outcome"})
        return durable(shop, compensations={"order": undo}).undo_tools({})  # type: ignore[misc]

    [tool] = undo_tools("order_id")
    assert json.loads(tool.definition.input_schema_json)["required"] == ["order_id"]
    with pytest.raises(ValueError, match="shop: a compensation calls cancel, which requires order_id; has no order"):
        undo_tools("order")


def test_two_undo_tools_of_one_name_are_refused() -> None:
    """An undo knows the tool of a compensation by its name. Agents may share one."""

    def cancel() -> FunctionTool:
        @function_tool(name_override="cancel")
        def cancelling(order: str) -> None: ...

        return cancelling

    @function_tool
    def order(item: str) -> str:
        return item

    def shop(first: FunctionTool, second: FunctionTool) -> DurableFunction:
        night = Agent[Any](name="night", tools=[order, second])
        day = Agent[Any](name="day", tools=[order, first], handoffs=[night])
        return durable(day, compensations={"order": compensate_with(first, {"order": "/outcome"})})

    tool = cancel()
    assert [each.name for each in shop(tool, tool).undo_tools({})] == ["cancel"]  # type: ignore[misc]
    with pytest.raises(ValueError, match="day has two tools cancel"):
        shop(tool, cancel()).undo_tools({})  # type: ignore[misc]
