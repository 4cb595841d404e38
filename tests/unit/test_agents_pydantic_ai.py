"""Pydantic AI's agents as durable functions, on a Work in memory: what is recorded, and what a later execution does."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pydantic_ai
import pytest
from pydantic import BaseModel
from pydantic_ai import ModelRetry, RunContext
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from tenure.agents import (
    Agent,
    Effect,
    EffectKey,
    EffectScope,
    current_work,
    durable,
    function,
    tool_call,
)
from tenure.control import Work
from tenure.control.failures import NotReplayable, failure_of
from tenure.domain.budget import TokenUsage
from tests.support.journal_work import JournalWork
from tests.support.pydantic_script import Script, call, text_response


def test_agents_of_one_model_import_its_library_once(monkeypatch: pytest.MonkeyPatch) -> None:
    inferred: list[str] = []
    monkeypatch.setattr("tenure.agents.pydantic_ai.agent.infer_model", inferred.append)
    model = "anthropic:of-two-agents"
    for name in ("first", "second"):
        prepare = Agent(name, model=model).durable_function.prepare
        assert prepare is not None
        prepare()
    assert inferred == [model]


async def test_a_later_execution_calls_no_model_and_no_tool() -> None:
    script = Script(call("refund", order="7", cents=5), call("look_up", order="7"), text_response("Refunded."))
    agent = Agent("support", model=FunctionModel(script))
    ran: list[str] = []

    @agent.tool(effect=Effect.KEYED)
    async def refund(ctx, order: str, cents: int) -> str:  # type: ignore[no-untyped-def]
        ran.append(ctx.idempotency_key)
        assert (ctx.task_id, tool_call().call_id) == ("task", "2.0")
        return f"{order}: {cents}"

    @agent.tool_plain(effect=Effect.PURE)
    def look_up(order: str) -> dict[str, str]:
        ran.append(tool_call().idempotency_key)
        return {"order": order}

    work = JournalWork("Refund order 7")
    assert await agent.durable_function.run(work.begin(), None) == "Refunded."
    assert await agent.durable_function.run(work.begin(), None) == "Refunded."
    assert ran == ["task/2.0", "task/4.0"]
    assert len(script.seen) == 3
    assert work.kinds == ["support: model", "tool refund", "support: model", "tool look_up", "support: model"]
    assert [(tool.name, tool.effect) for tool in work.tools] == [("refund", Effect.KEYED), ("look_up", Effect.PURE)]
    assert script.seen[1:] == [["7: 5"], [{"order": "7"}]]


async def test_a_tool_of_an_agent_has_its_effect_key() -> None:
    key = EffectKey(("/order",), EffectScope.TREE)
    script = Script(call("refund", order="7"), text_response("Refunded."))
    agent = Agent("support", model=FunctionModel(script))

    @agent.tool_plain(effect=Effect.KEYED, effect_key=key)
    def refund(order: str) -> str:
        return order

    work = JournalWork("Refund order 7")
    await agent.durable_function.run(work.begin(), None)
    assert [tool.definition.effect_key for tool in work.tools] == [key]
    with pytest.raises(ValueError, match="no calls of its own"):
        agent.tool_plain(effect=None, effect_key=key)(refund)


async def test_the_model_gets_the_output_that_the_budget_granted() -> None:
    script = Script(text_response("Short."))
    agent = Agent("support", model=FunctionModel(script), model_settings={"max_tokens": 4000})
    work = JournalWork("x" * 3000, granted=77)
    await agent.durable_function.run(work, None)
    assert work.requests[0].max_output_tokens == 4000
    assert script.settings[0]["max_tokens"] == 77
    assert work.requests[0].input_tokens > 700
    assert work.requests[0].model.startswith("function/")


async def test_text_is_streamed() -> None:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> Any:
        for piece in ("All ", "is ", "well."):
            yield piece

    agent = Agent("support", model=FunctionModel(stream_function=stream))
    work = JournalWork("How is it?")
    assert await agent.durable_function.run(work, None) == "All is well."
    assert "".join(work.reports[0].texts) == "All is well."
    assert work.reports[0].usages[-1].output_tokens > 0


@pytest.mark.parametrize(
    ("pieces", "estimated"),
    [
        (["All ", "is well."], []),
        ([{0: DeltaToolCall("refund", '{"cents"', tool_call_id="a")}, {0: DeltaToolCall(json_args=": 5}")}], [2, 3]),
    ],
    ids=["text", "arguments"],
)
async def test_usage_that_comes_at_the_end_erases_no_estimate(
    monkeypatch: pytest.MonkeyPatch, pieces: list[Any], estimated: list[int]
) -> None:
    """OpenAI states all of it in the last event. Text is estimated by the report itself."""
    monkeypatch.setattr("tenure.agents.pydantic_ai.model_calls.token_usage", lambda _usage: TokenUsage())

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> Any:
        for piece in pieces if len(messages) == 1 else ["Done."]:
            yield piece

    agent = Agent("support", model=FunctionModel(stream_function=stream))

    @agent.tool_plain
    def refund(cents: int) -> str:
        return f"refunded {cents}"

    work = JournalWork("How is it?")
    await agent.durable_function.run(work, None)
    assert [usage.output_tokens for usage in work.reports[0].usages] == estimated


async def test_failed_tool_is_reported_to_the_model() -> None:
    script = Script(call("refund"), text_response("Sorry."))
    agent = Agent("support", model=FunctionModel(script))

    @agent.tool_plain
    def refund() -> str:
        raise KeyError("no such order")

    work = JournalWork("Refund")
    assert await agent.durable_function.run(work.begin(), None) == "Sorry."
    assert await agent.durable_function.run(work.begin(), None) == "Sorry."
    assert "no such order" in str(script.seen[1])
    assert work.tools[0].effect is Effect.UNSAFE


@pytest.mark.parametrize("number", [math.nan, math.inf])
async def test_a_result_with_a_number_that_json_lacks_is_refused(number: float) -> None:
    """Pydantic would write null in its place. The failure says that the tool ran."""
    script = Script(call("price"), text_response("No price."))
    agent = Agent("support", model=FunctionModel(script))

    @agent.tool_plain
    def price() -> Any:
        return {"usd": number}

    assert await agent.durable_function.run(JournalWork("Price?").begin(), None) == "No price."
    assert "the tool price ran, and its result cannot be recorded" in str(script.seen[1])

    @function
    async def mean(work: Work) -> Any:
        return {"usd": number}

    with pytest.raises(ValueError, match="the function mean ran"):
        await mean.run(JournalWork().begin(), None)


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ("500 cents", "500 cents"),
        ("500", 500),
        ('{"cents": 500}', {"cents": 500}),
        ('{"kind": "refund"}', {"kind": "refund"}),
    ],
)
async def test_result_of_a_person_reaches_the_model(given: str, seen: Any) -> None:
    """A call in doubt that a person resolved as happened has their text as its result."""
    script = Script(call("refund"), text_response("Refunded."))
    agent = Agent("support", model=FunctionModel(script))

    @agent.tool_plain
    def refund() -> str:
        raise AssertionError("the call is recorded")

    work = JournalWork("Refund")
    work.outcomes["refund"] = given
    assert await agent.durable_function.run(work.begin(), None) == "Refunded."
    assert script.seen[1] == [seen]


async def test_arguments_without_json_are_an_error_of_the_model() -> None:
    wrong = ModelResponse(parts=[ToolCallPart("order", '{"price": NaN}', tool_call_id="1")])
    script = Script(wrong, text_response("Sorry."))
    agent = Agent("shop", model=FunctionModel(script))

    @agent.tool_plain
    def order(price: float) -> str:
        raise AssertionError(f"the call has no arguments: {price}")

    work = JournalWork("Order")
    assert await agent.durable_function.run(work, None) == "Sorry."
    assert "INVALID_ARGUMENTS: The arguments of order cannot be recorded" in str(script.seen[1])
    assert work.kinds == ["shop: model", "shop: model"]


async def test_a_tool_may_ask_the_model_to_try_again() -> None:
    script = Script(call("refund", cents=-1), call("refund", cents=1), text_response("Done."))
    agent = Agent("support", model=FunctionModel(script))

    @agent.tool_plain(effect=Effect.KEYED)
    def refund(cents: int) -> str:
        if cents < 0:
            raise ModelRetry("must be positive")
        return "ok"

    work = JournalWork("Refund")
    assert await agent.durable_function.run(work.begin(), None) == "Done."
    assert await agent.durable_function.run(work.begin(), None) == "Done."
    assert len(work.tools) == 2
    recorded = [json.loads(content) for name, content in work.journal if name == "tool refund"]
    assert recorded == [["FAILED", "must be positive", "MODEL_RETRY"], ["SUCCEEDED", "ok", ""]]  # without its frame


async def test_a_tool_waits_for_its_approval() -> None:
    script = Script(call("refund"), call("credit"), text_response("Done."))
    agent = Agent("support", model=FunctionModel(script))
    ran: list[str] = []

    @agent.tool(effect=Effect.KEYED, requires_approval=True)
    def refund(ctx: RunContext) -> str:
        assert ctx.tool_call_approved
        ran.append("refund")
        return "refunded"

    @agent.tool_plain(effect=Effect.KEYED, requires_approval=True)
    def credit() -> str:
        ran.append("credit")
        return "credited"

    work = JournalWork("Refund", denied=frozenset({"credit"}))
    assert await agent.durable_function.run(work, None) == "Done."
    assert ran == ["refund"]
    assert [tool.needs_approval for tool in work.tools] == [True, True]
    assert "denied" in str(script.seen[2])


class Price(BaseModel):
    cents: int


async def test_a_typed_result_is_the_task_s_json() -> None:
    script = Script(ModelResponse(parts=[ToolCallPart("final_result", {"cents": 5})]))
    agent = pydantic_ai.Agent(FunctionModel(script), output_type=Price, name="pricing")
    result = await durable(agent).run(JournalWork("How much?"), None)
    assert result == {"cents": 5}
    assert json.dumps(result)


async def test_a_sub_agent_in_an_inline_tool_is_recorded() -> None:
    writing = Script(text_response("Once upon a time."))
    writer = pydantic_ai.Agent(FunctionModel(writing), name="writer")
    durable(writer)
    editing = Script(call("draft", topic="sea"), text_response("Edited."))
    editor = pydantic_ai.Agent(FunctionModel(editing), name="editor")

    @editor.tool
    async def draft(ctx: RunContext, topic: str) -> str:
        return (await writer.run(f"Write about the {topic}", usage=ctx.usage)).output

    run = durable(editor, effects={"draft": None}).run
    work = JournalWork("A story")
    assert await run(work.begin(), None) == "Edited."
    assert await run(work.begin(), None) == "Edited."
    assert work.kinds == ["editor: model", "writer: model", "editor: model"]
    assert (len(editing.seen), len(writing.seen)) == (2, 1)


async def test_a_durable_agent_in_a_recorded_tool_is_refused() -> None:
    writer = Agent("writer", model=FunctionModel(Script(text_response("never"))))
    script = Script(call("draft"), text_response("Done."))
    editor = Agent("editor", model=FunctionModel(script))

    @editor.tool_plain(effect=Effect.PURE)
    async def draft() -> str:
        return (await writer.run("Write")).output

    work = JournalWork("A story")
    for _ in range(2):
        with pytest.raises(NotReplayable, match="effect=None"):
            await editor.durable_function.run(work.begin(), None)
    assert len(script.seen) == 1, "the model read about a mistake of the program"


async def test_agent_outside_of_a_task_is_unchanged() -> None:
    script = Script(call("refund"), text_response("Done."))
    agent = Agent("support", model=FunctionModel(script))

    @agent.tool_plain(effect=Effect.KEYED)
    def refund() -> str:
        with pytest.raises(RuntimeError):
            tool_call()
        return "ok"

    assert (await agent.run("Refund")).output == "Done."


@pytest.mark.parametrize(("status", "retryable"), [(429, True), (529, True), (400, False), (401, False)])
async def test_provider_failures_are_typed_as_retryable(status: int, retryable: bool) -> None:
    agent = Agent("support", model=FunctionModel(Script(ModelHTTPError(status, "m", headers={"retry-after": "3"}))))
    with pytest.raises(ModelHTTPError) as failed:
        await agent.durable_function.run(JournalWork("Hello"), None)
    failure = failure_of(failed.value)
    assert (failure.retryable, failure.retry_after_seconds) == (retryable, 3.0)


@dataclass
class Customer:
    name: str


async def test_dependencies_are_made_from_the_input() -> None:
    script = Script(call("greet"), text_response("Done."))

    async def customer(given: dict[str, str]) -> Customer:
        return Customer(given["name"])

    agent = Agent("support", model=FunctionModel(script), deps_type=Customer, deps=customer)

    @agent.tool(effect=Effect.PURE)
    def greet(ctx: RunContext[Customer]) -> str:
        return f"Hello {ctx.deps.name}"

    await agent.durable_function.run(JournalWork("Greet"), {"name": "Ada"})
    assert script.seen[1] == ["Hello Ada"]


async def test_a_function_runs_agents_and_has_types() -> None:
    agent = Agent("pricing", model=FunctionModel(Script(text_response("Five."), text_response("Six."))))

    @function
    async def compare(work: Work, price: Price) -> list[Price]:
        for _ in range(2):
            await agent.run("How much?")
        await work.step("note", lambda: "noted")
        return [price]

    work = JournalWork()
    assert await compare.run(work.begin(), {"cents": 5}) == [{"cents": 5}]
    assert await compare.run(work.begin(), {"cents": 5}) == [{"cents": 5}]
    assert work.kinds == ["pricing: model", "pricing: model", "note"]
    with pytest.raises(ValueError, match="compare"):
        await compare.run(work.begin(), {"cents": "five"})


async def test_an_inline_tool_has_the_work_of_the_task() -> None:
    script = Script(call("ask"), call("look"), text_response("Blue."))
    agent = Agent("support", model=FunctionModel(script))

    @agent.tool_plain(effect=None)
    async def ask() -> str:
        return await current_work().call_tool("ask_user", {"question": "Which colour?"})

    @agent.tool_plain(effect=Effect.PURE)
    async def look() -> str:
        current_work()
        return "never"

    work = JournalWork("Paint", answers={"ask_user": "blue"})
    assert await agent.durable_function.run(work.begin(), None) == "Blue."
    assert await agent.durable_function.run(work.begin(), None) == "Blue."
    assert work.kinds == ["support: model", "ask_user", "support: model", "tool look", "support: model"]
    assert script.seen[1] == ["blue"]
    assert "effect=None" in str(script.seen[2])


async def test_agents_at_the_same_time_are_refused() -> None:
    first, second = (Agent(name, model=FunctionModel(Script(text_response("Hello.")))) for name in ("first", "second"))

    @function
    async def both(work: Work) -> None:
        await asyncio.gather(first.run("Hello"), second.run("Hello"))

    with pytest.raises(RuntimeError):
        await both.run(JournalWork(), None)


async def test_streamed_tool_calls_are_recorded_whole() -> None:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> Any:
        if len(messages) > 1:
            yield "Done."
            return
        yield {0: DeltaToolCall("refund", '{"cen', tool_call_id="a")}
        yield {0: DeltaToolCall(json_args='ts": 5}', tool_call_id="a")}

    agent = Agent("support", model=FunctionModel(stream_function=stream))
    ran: list[int] = []

    @agent.tool_plain(effect=Effect.KEYED)
    def refund(cents: int) -> str:
        ran.append(cents)
        return "ok"

    work = JournalWork("Refund")
    assert await agent.durable_function.run(work.begin(), None) == "Done."
    assert await agent.durable_function.run(work.begin(), None) == "Done."
    assert ran == [5]


def test_wrong_effect_class_is_refused() -> None:
    named: Any = "KEYED"
    wrong: Any = "keyed"
    agent = Agent("support", model=FunctionModel(Script()))

    @agent.tool_plain(effect=named)
    def refund() -> str:
        return ""

    with pytest.raises(ValueError, match="'keyed'"):
        agent.tool_plain(effect=wrong)
    with pytest.raises(ValueError, match="tool refund: 'keyed'"):
        Agent("other", model=FunctionModel(Script()), effects={"refund": wrong})


@pytest.mark.parametrize("key", ["sk-test", ""])
def test_library_of_the_model_is_imported_before_the_first_run(key: str) -> None:
    """Also without a key, which the first task reports."""
    program = (
        "import sys\n"
        "from services.worker.control.functions import load_functions\n"
        "from tenure.agents import Agent\n"
        "from tenure.agents.functions import function_table\n"
        "table = function_table([Agent('support', model='anthropic:claude-sonnet-5')])\n"
        "before = 'anthropic' in sys.modules\n"
        "load_functions((), table)\n"
        "print(before, 'anthropic' in sys.modules)\n"
    )
    environment = {**os.environ, "ANTHROPIC_API_KEY": key}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout == "False True\n"
