"""The input tokens of a prompt, before it is sent: estimated by the worker, counted by the provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.worker.context_window import InputEstimate
from tenure.model_providers.client import ModelCall, ModelRequest
from tests.support.fix_simulator import running_simulator
from tests.support.model_clients import model_client

GOAL = [{"role": "user", "content": [{"type": "text", "text": "Research our competitor's pricing."}]}]
TOOLS = [
    {"name": name, "description": f"The tool {name}.", "input_schema": {"type": "object", "properties": {}}}
    for name in ("write_file", "execute_python", "web_search", "list_files")
]


@pytest.fixture
async def client(simulator: Any) -> AsyncIterator[Any]:
    async with model_client(simulator.url) as client:
        yield client


def request_of(model: Any, messages: Any = GOAL) -> Any:
    return ModelRequest(model, messages, 4096, system="Be brief.", tools=TOOLS, attempt="task/1/1")


async def ask(client: Any, model: Any, messages: Any = GOAL) -> Any:
    call = ModelCall(on_text=lambda _block, _text: None, on_usage=lambda: None)
    return await client.answer(request_of(model, messages), call)


@pytest.mark.parametrize(
    "words", ["short", "Größenwahn über Äcker " * 50, "漢字仮名交じり文" * 100, '{"a": [1, 2]}' * 99]
)
async def test_the_estimate_is_never_below_what_is_billed(client: Any, words: Any) -> None:
    goal = [{"role": "user", "content": [{"type": "text", "text": words}]}]
    estimate = InputEstimate("Be brief.", TOOLS)
    bound = estimate.upper_bound(goal)
    answer = await ask(client, "sim-one-tool", goal)
    assert bound >= answer.usage.total - answer.usage.output_tokens
    counted = 1, answer.usage.total - answer.usage.output_tokens
    result = {"type": "tool_result", "tool_use_id": answer.content[-1]["id"], "content": words, "is_error": False}
    messages = [*goal, {"role": "assistant", "content": list(answer.content)}, {"role": "user", "content": [result]}]
    second = await ask(client, "sim-one-tool", messages)
    bound = estimate.upper_bound(messages, counted=counted)
    billed = second.usage.total - second.usage.output_tokens
    assert billed <= bound <= 4 * billed + 100


async def test_a_prompt_is_counted_beforehand_as_it_is_billed(client: Any, simulator: Any) -> None:
    counted = await client.count(request_of("sim-hello"))
    answer = await ask(client, "sim-hello")
    assert counted == answer.usage.total - answer.usage.output_tokens
    assert [call["answered"] for call in simulator.calls("count_tokens")] == [True]


async def test_failed_count_is_retried_with_the_next_call(client: Any, simulator: Any) -> None:
    simulator.order_fault(endpoint="count_tokens", status=529)
    assert await client.count(request_of("sim-hello")) is None
    assert await client.count(request_of("sim-hello")) is not None


async def test_an_endpoint_that_does_not_count_is_asked_once(tmp_path: Path) -> None:
    with running_simulator(tmp_path / "calls.jsonl", "--no-count-tokens") as simulator:
        async with model_client(simulator.url, timeout_seconds=20.0, silence_seconds=10.0) as client:
            assert await client.count(request_of("sim-hello")) is None
            assert await client.count(request_of("sim-hello")) is None
            assert len(simulator.calls("count_tokens")) <= 1
