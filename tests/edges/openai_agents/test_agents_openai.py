"""Agents of the OpenAI Agents SDK as durable functions, on a Work in memory."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from agents import Agent, ModelSettings, RunContextWrapper, Runner, function_tool, set_tracing_disabled
from agents.items import ModelResponse
from agents.tool import LocalShellTool
from pydantic import BaseModel

from tenure.agents import Effect, EffectKey, EffectScope, tool_call
from tenure.agents.openai_agents import durable
from tenure.agents.openai_agents.tools import DurableInvocation
from tenure.domain.budget import TokenUsage
from tests.support.journal_work import JournalWork
from tests.support.openai_script import Script, call, sent_to_the_model, text_message

set_tracing_disabled(True)


class Price(BaseModel):
    cents: int


async def test_a_later_execution_calls_no_model_and_no_tool() -> None:
    ran: list[str] = []

    @function_tool
    async def refund(order: str, cents: int) -> str:
        ran.append(tool_call().idempotency_key)
        return f"{order}: {cents}"

    @function_tool
    def look_up(context: RunContextWrapper[Any], order: str) -> dict[str, str]:
        ran.append(tool_call().idempotency_key)
        return {"order": order, "asked by": context.context}

    script = Script(
        [call("refund", '{"order": "7", "cents": 5}'), call("look_up", '{"order": "7"}')], text_message("Refunded.")
    )
    agent = Agent(name="support", model=script, tools=[refund, look_up])
    run = durable(agent, effects={"refund": Effect.KEYED, "look_up": Effect.PURE}, context=lambda given: given).run
    work = JournalWork("Refund order 7")
    assert await run(work.begin(), "Ada") == "Refunded."
    assert await run(work.begin(), "Ada") == "Refunded."
    assert ran == ["task/2.0", "task/2.1"]
    assert len(script.seen) == 2
    assert work.kinds == ["model", "tool refund", "tool look_up", "model"]
    assert [tool.effect for tool in work.tools] == [Effect.KEYED, Effect.PURE]
    assert sent_to_the_model(script, "refund") == ["7: 5"]
    assert json.loads(dict(work.journal)["tool refund"]) == ["SUCCEEDED", "7: 5", ""]  # a text without JSON's quotes
    assert "Ada" in str(sent_to_the_model(script, "look_up"))


async def test_the_model_gets_the_output_that_the_budget_granted() -> None:
    script = Script(text_message("Short."))
    agent = Agent(name="support", model=script, model_settings=ModelSettings(max_tokens=4000))
    work = JournalWork("x" * 3000, granted=77)
    assert await durable(agent).run(work, None) == "Short."
    assert (work.requests[0].max_output_tokens, script.settings[0].max_tokens) == (4000, 77)
    assert work.requests[0].input_tokens > 700


@pytest.mark.parametrize("arguments", ['{"order": "7', "[7]"])
async def test_invalid_arguments_are_reported_to_the_model(arguments: str) -> None:
    @function_tool
    async def refund(order: str) -> str:
        raise AssertionError(f"the call for {order!r} has no arguments")

    script = Script([call("refund", arguments)], text_message("I could not."))
    agent = Agent(name="support", model=script, tools=[refund])
    work = JournalWork("Refund order 7")
    assert await durable(agent).run(work, None) == "I could not."
    assert sent_to_the_model(script, "refund") == ["The arguments of refund must be a JSON object."]


async def test_result_without_json_is_text() -> None:
    """The call has had its effect: a model that reads of a failure would call again."""

    @function_tool
    async def refund() -> dict[str, Any]:
        return {"at": datetime(2026, 11, 23, tzinfo=UTC), "cents": Decimal("5.0"), "price": Price(cents=5), "x": object}

    script = Script([call("refund")], text_message("Refunded."))
    agent = Agent(name="support", model=script, tools=[refund])
    assert await durable(agent).run(JournalWork("Refund"), None) == "Refunded."
    (seen,) = sent_to_the_model(script, "refund")
    assert "'at': '2026-11-23T00:00:00Z', 'cents': '5.0', 'price': {'cents': 5}" in seen


@pytest.mark.parametrize(
    ("given", "seen"), [("500 cents", "500 cents"), ("500", "500"), ('{"cents": 5}', "{'cents': 5}")]
)
async def test_result_of_a_person_reaches_the_model(given: str, seen: str) -> None:
    """A call in doubt that a person resolved as happened has their text as its result."""

    @function_tool
    async def refund() -> str:
        raise AssertionError("the call is recorded")

    script = Script([call("refund")], text_message("Refunded."))
    agent = Agent(name="support", model=script, tools=[refund])
    work = JournalWork("Refund order 7")
    work.outcomes["refund"] = given
    assert await durable(agent).run(work.begin(), None) == "Refunded."
    assert [str(each) for each in sent_to_the_model(script, "refund")] == [seen]


async def test_a_typed_result_is_the_task_s_json() -> None:
    agent = Agent(name="pricing", model=Script(text_message('{"cents": 5}')), output_type=Price)
    assert await durable(agent).run(JournalWork("How much?"), None) == {"cents": 5}


async def test_handoffs_and_agents_as_tools_are_recorded() -> None:
    poet = Script(text_message("A poem."))
    writing, reading = (
        Script([call("poem", '{"input": "sea"}')], text_message("Written.")),
        Script([call("transfer_to_writer")]),
    )
    writer = Agent(
        name="writer",
        model=writing,
        tools=[Agent(name="poet", model=poet).as_tool(tool_name="poem", tool_description="Writes a poem.")],
    )
    run = durable(Agent(name="reader", model=reading, handoffs=[writer])).run
    work = JournalWork("A poem about the sea")
    assert await run(work.begin(), None) == "Written."
    assert await run(work.begin(), None) == "Written."
    assert work.kinds == ["model"] * 4
    assert [len(script.seen) for script in (poet, writing, reading)] == [1, 2, 1]


async def test_usage_is_billed_without_the_caches_twice() -> None:
    class Cached(Script):
        async def get_response(self, *arguments: Any, **options: Any) -> ModelResponse:
            response: ModelResponse = await super().get_response(*arguments, **options)
            response.usage.input_tokens_details.cached_tokens = 4
            return response

    answers: list[TokenUsage] = []

    class Billed(JournalWork):
        async def call_model(self, name: str, request: Any, run: Any) -> Any:
            async def seen(report: Any) -> Any:
                answer = await run(report)
                answers.append(answer.usage)
                return answer

            return await super().call_model(name, request, seen)

    await durable(Agent(name="support", model=Cached(text_message("Hello.")))).run(Billed("Hello"), None)
    assert answers == [TokenUsage(input_tokens=6, output_tokens=2, cache_read_input_tokens=4)]


async def test_agent_outside_of_a_task_is_unchanged() -> None:
    @function_tool
    def refund() -> str:
        return "ok"

    agent = Agent(name="support", model=Script([call("refund")], text_message("Done.")), tools=[refund])
    durable(agent)
    assert (await Runner.run(agent, "Refund")).final_output == "Done."


async def test_agents_that_share_a_tool_have_their_own_effects() -> None:
    """The second agent had the effect class of the first, whatever its revision says."""
    ran: list[str] = []

    @function_tool
    def refund() -> str:
        ran.append(current_task())
        return "ok"

    def current_task() -> str:
        try:
            return tool_call().idempotency_key
        except RuntimeError:
            return "in the function"

    works = {effect: JournalWork("Refund") for effect in (Effect.KEYED, Effect.PURE, None)}
    agents = {effect: Agent(name="a", model=Script([call("refund")], text_message("."))) for effect in works}
    for agent in agents.values():
        agent.tools = [refund]
    functions = {effect: durable(agent, effects={"refund": effect}) for effect, agent in agents.items()}
    for effect, function in functions.items():
        await function.run(works[effect], None)
    assert [[tool.effect for tool in work.tools] for work in works.values()] == [[Effect.KEYED], [Effect.PURE], []]
    assert ran == ["task/2.0", "task/2.0", "in the function"]
    assert not isinstance(refund.on_invoke_tool, DurableInvocation)


def test_an_agent_of_two_functions_has_one_effect_for_a_tool() -> None:
    @function_tool
    def refund() -> str:
        return "ok"

    billing = Agent(name="billing", model=Script(text_message(".")), tools=[refund])
    front = Agent(name="front", model=Script(text_message(".")), handoffs=[billing])
    durable(front, effects={"refund": Effect.KEYED})
    durable(billing, effects={"refund": Effect.KEYED})
    for other in (Effect.PURE, None):
        with pytest.raises(ValueError, match="billing"):
            durable(billing, effects={"refund": other})
    durable(billing.clone(), effects={"refund": Effect.PURE})


def test_facts_have_the_effect_that_calls_have() -> None:
    """Also that of a clone, of an agent that was durable before, and of a tool that was added since."""

    @function_tool
    def refund() -> str:
        return "ok"

    @function_tool
    def look() -> str:
        return "ok"

    billing = Agent[Any](name="billing", tools=[refund])
    durable(billing, effects={"refund": Effect.KEYED})
    front = Agent[Any](name="front", handoffs=[billing.clone()])
    functions = [durable(front, effects={"look": Effect.PURE}), durable(billing)]
    front.tools = [look]
    facts = [{tool.name: tool.effect for tool in each.describe().tools} for each in functions]  # type: ignore[misc]
    assert facts == [{"look": Effect.PURE, "refund": Effect.KEYED}, {"refund": Effect.KEYED}]


async def test_a_tool_of_an_agent_has_its_effect_key() -> None:
    @function_tool
    def refund(order: str) -> str:
        return order

    key = EffectKey(("/order",), EffectScope.TREE)
    script = Script([call("refund", '{"order": "7"}')], text_message("Refunded."))
    billing = Agent(name="billing", model=script, tools=[refund])
    function = durable(billing, effects={"refund": Effect.KEYED}, effect_keys={"refund": key})
    work = JournalWork("Refund order 7")
    await function.run(work, None)
    assert [tool.definition.effect_key for tool in work.tools] == [key]
    durable(billing, effects={"refund": Effect.KEYED})  # the tool keeps its key
    with pytest.raises(ValueError, match="billing is part of two durable functions"):
        durable(billing, effect_keys={"refund": EffectKey(("/order",), EffectScope.TASK)})


@pytest.mark.parametrize(
    ("effect", "key", "problem"),
    [
        (None, EffectKey(("/order",), EffectScope.TREE), "no effect key"),
        (Effect.KEYED, EffectKey((), EffectScope.TREE), "names 1 to 16 arguments"),
        (Effect.KEYED, "/order", "must be a tenure.agents.EffectKey"),
    ],
)
def test_impossible_effect_keys_are_refused(effect: Any, key: Any, problem: str) -> None:
    @function_tool
    def refund() -> str:
        return "ok"

    with pytest.raises(ValueError, match=problem):
        durable(Agent(name="a", tools=[refund]), effects={"refund": effect}, effect_keys={"refund": key})


def test_tools_that_cannot_be_recorded_are_refused() -> None:
    shell = LocalShellTool(executor=lambda _: "")
    with pytest.raises(ValueError, match="cannot record"):
        durable(Agent(name="support", tools=[shell]))
