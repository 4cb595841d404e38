"""What agents of Pydantic AI declare of their tools, and the tools and outcomes that their undos have."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pydantic_ai
import pytest
from pydantic_ai import RunContext
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.toolsets import AbstractToolset, CombinedToolset, FunctionToolset

from services.tools.schemas import untrusted_schema
from services.worker.agents import definitions_of
from tenure.agents import (
    Agent,
    Effect,
    compensate_with,
    durable,
    tool_call,
)
from tenure.agents.functions import function_table, undo_tools_of
from tenure.agents.own_calls import for_model, value_of
from tenure.agents.pydantic_ai.tool_calls import metadata_of
from tenure.control.own_tools import ForModel
from tenure.runtime.settings import ConfigurationError
from tests.support.journal_work import Call, JournalWork
from tests.support.pydantic_script import Script, call, text_response


async def test_undo_of_an_agent_runs_its_tool_without_a_run() -> None:
    script = Script(call("order", item="tea"), text_response("Ordered."))
    agent = Agent("shop", model=FunctionModel(script), deps=lambda given: given["customer"])

    @agent.tool(effect=Effect.KEYED)
    async def cancel(ctx: RunContext[str], order: date) -> list[str]:
        return [ctx.deps, str(order.year), tool_call().idempotency_key, ctx.idempotency_key]  # type: ignore[attr-defined]

    cancelled = compensate_with(cancel, {"order": "/outcome/id"})

    @agent.tool_plain(effect=Effect.KEYED, compensation=cancelled)
    async def order(item: str) -> dict[str, str]:
        return {"id": f"{item}-1"}

    function = agent.durable_function
    work = JournalWork("Order tea")
    await function.run(work.begin(), {"customer": "ada"})
    assert [tool.shown.compensation for tool in work.tools] == [cancelled]
    assert cancelled.own_tool
    assert function.undo_tools is not None
    (tool,) = function.undo_tools({"customer": "ada"})
    assert (tool.name, tool.effect) == ("cancel", Effect.KEYED)
    made = await tool.run(Call("task", "7.0", 1, "task/7.0", 5), {"order": "2026-01-02"})
    assert json.loads(made) == ["ada", "2026", "task/7.0", "task/7.0"]


@pytest.mark.parametrize("declared", [{"effects": {"reffund": Effect.KEYED}}, {"output_limits": {"reffund": 2000}}])
def test_declaration_of_no_tool_is_refused(declared: dict[str, Any]) -> None:
    """A misspelt name would leave the tool UNSAFE. An MCP server has tools that are not known here."""

    def refund(order: str) -> str:
        return order

    class Remote(AbstractToolset[Any]):
        id = "remote"

        async def get_tools(self, ctx: Any) -> Any: ...

        async def call_tool(self, *given: Any) -> Any: ...

    tools = FunctionToolset(tools=[refund], id="money")
    agent, other = Agent("a", toolsets=[tools], **declared), Agent("b", toolsets=[tools, Remote()], **declared)
    [name] = declared
    with pytest.raises(
        ConfigurationError, match=f"a: {name}: there is no tool 'reffund'; did you mean refund"
    ) as refused:
        definitions_of(function_table([agent, other]), "")
    assert len(refused.value.problems) == 1


@pytest.mark.parametrize("text", ["12345", "true", '{"id": 7}', '"x"', "Ordered."])
async def test_a_text_of_json_is_recorded_without_a_frame(text: str) -> None:
    script = Script(call("order"), text_response("Ordered."))
    agent = Agent("shop", model=FunctionModel(script))

    @agent.tool_plain(effect=Effect.KEYED)
    async def order() -> str:
        return text

    work = JournalWork("Order tea")
    for _ in range(2):
        await agent.durable_function.run(work.begin(), None)
    status, content, _ = json.loads(dict(work.journal)["tool order"])
    assert (status, value_of(content)) == ("SUCCEEDED", text)
    assert script.seen[1:] == [[text]]


def test_a_long_text_of_json_is_recorded_as_it_is() -> None:
    """What is shortened is not JSON any more, and the model should read the text without JSON's quotes."""
    assert for_model("12345", 5) == '"12345"'
    assert for_model('{"id": 7}', 5) == '{"id": 7}'
    assert for_model({"id": 7}, 5) == '{"id": 7}'
    assert isinstance(for_model("x", 5), ForModel)


def shop_tools() -> FunctionToolset[Any]:
    """An order, and the tool that cancels it."""
    tools = FunctionToolset[Any](id="shop")

    @tools.tool_plain(metadata=metadata_of(Effect.KEYED))
    async def cancel(order: str) -> str:
        return order

    @tools.tool_plain(metadata=metadata_of(Effect.KEYED, compensation=compensate_with(cancel, {"order": "/outcome"})))
    async def order(item: str) -> str:
        return item

    return tools


async def test_undo_runs_tools_of_wrapped_toolsets() -> None:
    """A filter keeps the names of tools, and approval_required() asks a person in an undo, too."""
    everything = shop_tools().filtered(lambda _context, _tool: True)
    other = FunctionToolset[Any](id="other").prefixed("o")
    for toolset, asks in ((everything, False), (everything.approval_required(), True)):
        function = Agent("boss", toolsets=[CombinedToolset([toolset, other])]).durable_function
        [tool] = undo_tools_of(function_table([function])["boss"])
        assert (tool.name, tool.needs_approval) == ("cancel", asks)
        assert await tool.run(Call("task", "7.0", 1, "task/7.0", 5), {"order": "tea"}) == "tea"
        facts = {tool.name: (tool.effect, tool.needs_approval) for tool in function.describe().tools}  # type: ignore[misc]
        assert facts == {"cancel": (Effect.KEYED, asks), "order": (Effect.KEYED, asks)}


def test_undo_tools_of_an_agent_are_also_those_of_its_agents() -> None:
    """An agent that an inline tool runs writes its calls into the ledger of the outer one."""
    inner = Agent("shop", toolsets=[shop_tools()])
    outer = Agent("boss", undo_tools=[inner])
    plain = durable(pydantic_ai.Agent(name="chief"), undo_tools=[inner])
    table = function_table([outer, plain])
    assert [[tool.name for tool in undo_tools_of(run)] for run in table.values()] == [["cancel"], ["cancel"]]
    with pytest.raises(ConfigurationError, match="chief has two tools cancel"):
        definitions_of(function_table([durable(pydantic_ai.Agent(name="chief"), undo_tools=[inner, outer])]), "")


def test_compensation_that_an_agent_cannot_make_is_refused() -> None:
    agent = Agent("shop")

    async def cancel() -> None: ...

    agent.tool_plain(effect=Effect.KEYED, compensation=compensate_with(cancel, {}), name="order")(cancel)
    with pytest.raises(ConfigurationError, match="calls cancel, which is not a recorded tool"):
        definitions_of(function_table([agent]), "")
    with pytest.raises(ValueError, match="no calls of its own"):
        agent.tool_plain(effect=None, compensation=compensate_with("refund", {}))(cancel)


@pytest.mark.parametrize(
    ("names", "problem"), [("order", "requires order_id; has no order"), ("why", "requires order_id")]
)
def test_compensation_with_other_arguments_is_refused(names: str, problem: str) -> None:
    """At the start of the worker, and not when the effect is to be undone."""
    agent = Agent("shop")

    async def cancel(order_id: int, why: str = "undone", to: str | None = None) -> None: ...

    agent.tool_plain(effect=Effect.KEYED)(cancel)
    undo = compensate_with(cancel, {names: "/outcome"})
    agent.tool_plain(effect=Effect.KEYED, compensation=undo, name="order")(cancel)
    with pytest.raises(ConfigurationError, match=f"calls cancel, which {problem}"):
        definitions_of(function_table([agent]), "")


def test_tool_service_refuses_arguments_of_an_undo() -> None:
    """The tool has not begun then. It accepts what Pydantic would: a text that is a number, and what has a default."""
    agent = Agent("shop")

    async def cancel(order_id: int, to: date, lines: list[str] = [], why: str | None = None) -> None: ...  # noqa: B006

    agent.tool_plain(effect=Effect.UNSAFE)(cancel)
    undo = compensate_with(cancel, {"order_id": "/outcome", "to": "/arguments/to"})
    agent.tool_plain(effect=Effect.UNSAFE, compensation=undo, name="order")(cancel)
    [tool] = undo_tools_of(function_table([agent])["shop"])
    schema, fits = untrusted_schema(tool.definition.input_schema_json), {"order_id": "7", "to": "2026-12-01"}
    assert schema.problems(fits) == schema.problems({**fits, "order_id": 7, "lines": ["1"], "why": "x"}) == []
    for other in ({"order_id": {"id": 7}}, {"order_id": None}, {"lines": "1"}, {"order": 7}):
        assert schema.problems({**fits, **other}), other
    assert schema.problems({"order_id": 7})
    assert "integer" in tool.shown.input_schema_json
