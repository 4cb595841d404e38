"""The simulated model calls tools that no scenario knows, with arguments that their schemas allow."""

from __future__ import annotations

from typing import Any

import pytest
from httpx2 import AsyncClient
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from devstack.simulator.own_tools import OwnToolsScenario, example
from devstack.simulator.scenario import ScenarioLibrary, ToolCall, Turn, WrittenScenario
from devstack.simulator.simulator import ModelSimulator

GOAL = "Refund order 7 with 500 cents"
ITEM = {"type": "object", "properties": {"order": {"type": "integer"}}, "required": ["order"]}


@pytest.mark.parametrize(
    ("schema", "name", "expected"),
    [
        ({"type": "string"}, "order", "7"),
        ({"type": "string"}, "customer", GOAL),
        ({"type": "string", "maxLength": 6}, "customer", "Refund"),
        ({"type": "integer"}, "cents", 500),
        ({"type": "integer", "maximum": 5}, "cents", 1),
        ({"type": "number", "minimum": 10}, "amount", 500),
        ({"type": ["null", "boolean"]}, "sure", True),
        ({"anyOf": [{"type": "null"}, {"enum": ["EUR", "USD"]}]}, "currency", "EUR"),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, "orders", [7, 7]),
        ({"$ref": "#/$defs/Item", "$defs": {"Item": ITEM}}, "item", {"order": 7}),
    ],
)
def test_an_argument_is_taken_from_the_goal_or_the_schema(schema: Any, name: str, expected: Any) -> None:
    assert example(schema, schema, GOAL, name) == expected


def test_a_tool_without_a_valid_example_is_not_called() -> None:
    account = {"type": "object", "properties": {"iban": {"type": "string", "pattern": "^DE"}}, "required": ["iban"]}
    assert OwnToolsScenario(GOAL, [{"name": "pay", "input_schema": account}]).turn(0).calls == ()


def test_a_scenario_of_a_test_plays_also_without_its_tools() -> None:
    """An agent that hands over to another offers a part of the tools that the script of the test calls."""
    library, script = ScenarioLibrary(), WrittenScenario("research", (Turn(calls=(ToolCall("pay", {}),)),))
    assert library.find("gpt-5", tools=["refund"]) is None
    library.put(script)
    assert library.find("gpt-5", tools=["refund"]) is script


class Receipt(BaseModel):
    order: str
    cents: int


def model_of(vendor: str, url: str, http: AsyncClient) -> AnthropicModel | OpenAIChatModel:
    if vendor == "anthropic":
        anthropic = AnthropicProvider(api_key="simulated", base_url=url, http_client=http)
        return AnthropicModel("claude-sonnet-5", provider=anthropic)
    return OpenAIChatModel(
        "gpt-5", provider=OpenAIProvider(api_key="simulated", base_url=f"{url}/v1", http_client=http)
    )


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
async def test_an_agent_of_pydantic_ai_runs_without_a_scenario(vendor: str) -> None:
    paid: list[tuple[str, int]] = []

    def refund(order: str, cents: int) -> str:
        """Refunds an order."""
        paid.append((order, cents))
        return f"{cents} cents"

    async with ModelSimulator() as simulator, AsyncClient() as http:
        model = model_of(vendor, simulator.url, http)
        text = await Agent(model, tools=[refund]).run(GOAL)
        typed = await Agent(model, tools=[refund], output_type=Receipt).run(GOAL)
        plain = await Agent(model).run(GOAL)
    assert paid == [("7", 500)] * 2
    assert text.output == "Done. refund: 500 cents"
    assert typed.output == Receipt(order="7", cents=500)
    assert plain.output == f"This is a simulated answer to: {GOAL}"
