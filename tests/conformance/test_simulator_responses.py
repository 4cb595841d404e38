"""The simulator's Responses API, with OpenAI's own client: it plays the scenarios that the other APIs play."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from devstack.simulator.scenario import scenario_of
from devstack.simulator.simulator import ModelSimulator

TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        "strict": False,
    }
]
CALL = {"name": "add", "arguments": {"a": 1}}
TURNS: list[dict[str, Any]] = [
    {"text": "I add.", "calls": [CALL, CALL]},
    {"text": "The sum of {{goal}} is {{result.0.1}}."},
]


@pytest.fixture
async def simulator() -> AsyncIterator[ModelSimulator]:
    async with ModelSimulator() as running:
        put(running, "sum", TURNS)
        yield running


def put(simulator: ModelSimulator, name: str, turns: list[dict[str, Any]], instructions: str = "") -> None:
    scenario = scenario_of(Path(name), turns)
    if instructions:
        simulator.library.put_for_instructions(instructions, scenario)
    else:
        simulator.library.put(scenario)


def client(simulator: ModelSimulator, key: str = "simulated") -> AsyncOpenAI:
    return AsyncOpenAI(api_key=key, base_url=f"{simulator.url}/v1", max_retries=0)


async def asked(simulator: ModelSimulator, given: Any, **more: Any) -> Any:
    async with client(simulator) as api:
        return await api.responses.create(model="sim-sum", input=given, tools=TOOLS, **more)


async def test_a_conversation_with_tools(simulator: ModelSimulator) -> None:
    first = await asked(simulator, "1 and 2", instructions="Be exact.")
    assert (first.status, first.output_text) == ("completed", "I add.")
    calls = [item for item in first.output if item.type == "function_call"]
    assert [json.loads(call.arguments) for call in calls] == [{"a": 1}, {"a": 1}]
    results = [
        {"type": "function_call_output", "call_id": call.call_id, "output": str(number)}
        for number, call in enumerate(calls, 7)
    ]
    given = [{"role": "user", "content": "1 and 2"}, *(item.model_dump() for item in first.output), *results]
    second = await asked(simulator, given, instructions="Be exact.")
    assert second.output_text == "The sum of 1 and 2 is 8."
    assert second.usage.total_tokens == second.usage.input_tokens + second.usage.output_tokens
    assert [call["turn"] for call in simulator.log.calls] == [0, 1]
    billed = [call["input_tokens"] + call["cache_read_input_tokens"] for call in simulator.log.calls]
    assert billed == [first.usage.input_tokens, second.usage.input_tokens]


async def test_an_answer_comes_in_pieces(simulator: ModelSimulator) -> None:
    put(simulator, "sum", [{"text": "One two three four.", "deltas": 4}])
    async with client(simulator) as api:
        stream = await api.responses.create(model="sim-sum", input="Count", stream=True)
        events = [event async for event in stream]
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert (len(pieces), "".join(pieces)) == (4, "One two three four.")
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == "One two three four."
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_an_answer_is_cut(simulator: ModelSimulator) -> None:
    put(simulator, "sum", [{"text": "word " * 100}])
    answer = await asked(simulator, "Count", max_output_tokens=16)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")


async def test_agents_are_known_by_their_instructions(simulator: ModelSimulator) -> None:
    put(simulator, "french", [{"text": "Bonjour."}], instructions="to French")
    assert (await asked(simulator, "Hello", instructions="You translate to French")).output_text == "Bonjour."
    assert (await asked(simulator, "Hello", instructions="You translate")).output_text == "I add."


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([{"type": "function_call_output", "call_id": "x", "output": "1"}], "must be a response"),
        ([{"type": "computer_call"}], "no item of the type"),
        (7, "expected a string"),
    ],
)
async def test_an_invalid_conversation_is_refused(simulator: ModelSimulator, given: Any, says: str) -> None:
    with pytest.raises(openai.BadRequestError, match=says):
        await asked(simulator, given)


async def test_faults_are_those_of_all_apis(simulator: ModelSimulator) -> None:
    put(simulator, "sum", [{"text": "Hello.", "fault": {"status": 529, "times": 1}}])
    with pytest.raises(openai.InternalServerError):
        await asked(simulator, "Hello")
    assert (await asked(simulator, "Hello")).output_text == "Hello."
    async with client(simulator, "sk-invalid") as api:
        with pytest.raises(openai.AuthenticationError):
            await api.responses.create(model="sim-sum", input="Hello")
