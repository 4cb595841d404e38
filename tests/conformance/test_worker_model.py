"""The worker's model client against the simulator: what it folds, what it bills, what it makes of every failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.worker.context_window import InputEstimate
from tenure.domain.conversation import text_of
from tenure.model_providers.client import ModelCall, ModelCallFailed, ModelRequest
from tests.support.fix_simulator import running_simulator
from tests.support.model_clients import model_client
from tests.support.patience import PATIENCE_SECONDS

GOAL = [{"role": "user", "content": [{"type": "text", "text": "Research our competitor's pricing."}]}]
TOOLS = [
    {"name": name, "description": f"The tool {name}.", "input_schema": {"type": "object", "properties": {}}}
    for name in ("write_file", "execute_python", "web_search", "list_files")
]


@pytest.fixture
async def client(simulator: Any) -> AsyncIterator[Any]:
    async with model_client(simulator.url) as client:
        yield client


def listening() -> Any:
    heard = []
    return ModelCall(on_text=lambda block, text: heard.append((block, text)), on_usage=lambda: None), heard


def request_of(model: Any, messages: Any = GOAL, max_output_tokens: int = 4096) -> Any:
    return ModelRequest(model, messages, max_output_tokens, system="Be brief.", tools=TOOLS, attempt="task/1/1")


async def ask(client: Any, model: Any, messages: Any = GOAL, max_output_tokens: int = 4096) -> Any:
    call, _ = listening()
    return await client.answer(request_of(model, messages, max_output_tokens), call)


def billed_total(simulator: Any) -> Any:
    return sum(simulator.billed().values())


async def test_an_answer_is_folded_and_its_usage_is_the_bill(client: Any, simulator: Any) -> None:
    answer = await ask(client, "sim-parallel-tools")
    assert answer.stop_reason == "tool_use"
    assert [block["type"] for block in answer.content] == ["text", "tool_use", "tool_use", "tool_use"]
    assert answer.content[1]["input"] == {"path": "a.txt", "content": "Three things.\n"}
    assert answer.usage.total == billed_total(simulator)
    (line,) = simulator.calls()
    assert (line["request_id"], line["attempt"]) == (answer.request_id, "task/1/1")


async def test_live_text_is_the_text_of_the_answer(client: Any) -> None:
    call, heard = listening()
    answer = await client.answer(request_of("sim-echo"), call)
    assert "".join(text for _, text in heard) == text_of(answer.content)


async def test_a_folded_answer_can_be_sent_back(client: Any) -> None:
    answer = await ask(client, "sim-parallel-tools")
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "done", "is_error": False}
        for block in answer.content
        if block["type"] == "tool_use"
    ]
    messages = [*GOAL, {"role": "assistant", "content": list(answer.content)}, {"role": "user", "content": results}]
    final = await ask(client, "sim-parallel-tools", messages)
    assert text_of(final.content) == "All three are done."


async def test_a_call_cut_off_by_the_output_limit_is_left_out(client: Any) -> None:
    answer = await ask(client, "sim-parallel-tools", max_output_tokens=12)
    assert answer.stop_reason == "max_tokens"
    assert [block["type"] for block in answer.content] == ["text"]


@pytest.mark.parametrize(
    ("status", "error_class", "retryable"),
    [
        (400, "INVALID_REQUEST", False),
        (401, "AUTHENTICATION", False),
        (403, "PERMISSION", False),
        (404, "NOT_FOUND", False),
        (413, "REQUEST_TOO_LARGE", False),
        (429, "RATE_LIMITED", True),
        (500, "SERVER_ERROR", True),
        (503, "SERVER_ERROR", True),
        (529, "OVERLOADED", True),
    ],
)
async def test_every_status_says_whether_another_attempt_may_help(
    client: Any, simulator: Any, status: int, error_class: str, retryable: bool
) -> None:
    simulator.order_fault(status=status, message="the provider's words")
    with pytest.raises(ModelCallFailed) as failed:
        await ask(client, "sim-hello")
    failure = failed.value
    assert (failure.error_class, failure.retryable, failure.status_code) == (error_class, retryable, status)
    assert "the provider's words" in failure.message
    assert failure.usage.total == 0
    assert failure.request_id.startswith("req_")
    assert len(simulator.calls()) == 1, "the library repeated the request"


async def test_the_wait_a_provider_asks_for_is_kept(client: Any, simulator: Any) -> None:
    simulator.order_fault(status=429, retry_after_seconds=7)
    with pytest.raises(ModelCallFailed) as failed:
        await ask(client, "sim-hello")
    assert failed.value.retry_after_seconds == 7


async def test_a_broken_stream_is_retried_and_billed_for_its_part(client: Any, simulator: Any) -> None:
    simulator.order_fault(broken_stream=3)
    with pytest.raises(ModelCallFailed) as failed:
        await ask(client, "sim-slow")
    assert (failed.value.error_class, failed.value.retryable) == ("BROKEN_STREAM", True)
    assert abs(failed.value.usage.total - billed_total(simulator)) <= 3


async def test_an_error_inside_a_stream_is_told_by_its_type(client: Any, simulator: Any) -> None:
    simulator.order_fault(overloaded=2)
    with pytest.raises(ModelCallFailed) as failed:
        await ask(client, "sim-hello")
    assert (failed.value.error_class, failed.value.status_code) == ("OVERLOADED", 529)
    assert failed.value.usage.input_tokens > 0


async def test_a_dripping_answer_ends_at_the_whole_calls_timeout(simulator: Any) -> None:
    simulator.order_fault(drip_ms=200)
    async with model_client(simulator.url, timeout_seconds=0.5) as client:
        with pytest.raises(ModelCallFailed) as failed:
            await ask(client, "sim-slow")
    assert (failed.value.error_class, failed.value.retryable) == ("TIMEOUT", True)


async def test_a_silent_provider_is_given_up(simulator: Any) -> None:
    simulator.order_fault(drip_ms=3000)
    async with model_client(simulator.url, silence_seconds=0.3) as client:
        with pytest.raises(ModelCallFailed) as failed:
            await ask(client, "sim-hello")
    assert (failed.value.error_class, failed.value.retryable) == ("TIMEOUT", True)


async def test_nobody_there_is_a_connection_that_may_be_tried_again() -> None:
    async with model_client("http://127.0.0.1:9", timeout_seconds=5.0, silence_seconds=5.0) as client:
        with pytest.raises(ModelCallFailed) as failed:
            await ask(client, "sim-hello")
    assert (failed.value.error_class, failed.value.retryable) == ("CONNECTION", True)


async def test_a_call_that_is_broken_off_knows_its_bill(client: Any, simulator: Any) -> None:
    began = asyncio.Event()
    call = ModelCall(on_text=lambda *_: began.set(), on_usage=lambda: None)
    asking = asyncio.create_task(client.answer(request_of("sim-slow"), call))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await began.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not simulator.calls():
            await asyncio.sleep(0.02)
    assert call.usage.input_tokens > 0
    assert abs(call.usage.total - billed_total(simulator)) <= 3


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


async def test_a_count_that_fails_is_no_error_and_is_asked_for_again(client: Any, simulator: Any) -> None:
    simulator.order_fault(endpoint="count_tokens", status=529)
    assert await client.count(request_of("sim-hello")) is None
    assert await client.count(request_of("sim-hello")) is not None


async def test_an_endpoint_that_does_not_count_is_asked_once(tmp_path: Path) -> None:
    with running_simulator(tmp_path / "calls.jsonl", "--no-count-tokens") as simulator:
        async with model_client(simulator.url, timeout_seconds=20.0, silence_seconds=10.0) as client:
            assert await client.count(request_of("sim-hello")) is None
            assert list(client._uncounted) == ["sim-hello"]
            assert await client.count(request_of("sim-hello")) is None
            assert len(simulator.calls("count_tokens")) <= 1
