"""What every model provider must do, through the worker's real client: the same tests for each vendor.

They run against the simulator. `test_own_server_*` run against a server of your own too:

    TENURE_PROVIDER_MODEL=openai/llama3 OPENAI_BASE_URL=http://localhost:11434/v1 pytest -k own_server \
        tests/conformance/test_model_providers.py
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

import pytest

from services.worker.model_attempt import billed
from tenure.domain import entries
from tenure.domain.budget import TokenUsage
from tenure.domain.conversation import text_block, text_of, with_own_ids
from tenure.domain.models import ANTHROPIC, OPENAI
from tenure.model_providers import http
from tenure.model_providers.anthropic_models import AnthropicProvider
from tenure.model_providers.chat_stream import ChatStream
from tenure.model_providers.client import ModelCall, ModelCallFailed, ModelClient, ModelProvider, ModelRequest
from tenure.model_providers.openai_models import OpenAIProvider
from tenure.model_providers.stream import CUT_OFF_CALL, MAX_CONTENT_BYTES, UNUSABLE, ErrorEvent, MalformedAnswer
from tests.support.model_clients import model_client
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

GOAL = [{"role": "user", "content": [text_block("Research our competitor's pricing.")]}]
TOOLS = [
    {
        "name": name,
        "description": f"The tool {name}.",
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
    for name in ("write_file", "execute_python", "web_search", "list_files")
]
OWN_MODEL = os.environ.get("TENURE_PROVIDER_MODEL", "")
OWN_KEYS = {name: os.environ.get(f"{name}_API_KEY", "none") for name in ("ANTHROPIC", "OPENAI")}
OWN_URLS = {name: os.environ.get(f"{name}_BASE_URL") for name in ("ANTHROPIC", "OPENAI")}
LONG_SECONDS = 120.0


@pytest.fixture(params=["", "openai/"], ids=["anthropic", "openai"])
def prefix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def client(simulator: Any) -> AsyncIterator[Any]:
    async with model_client(simulator.url) as client:
        yield client


def new_call() -> tuple[ModelCall, list[tuple[int, str]]]:
    heard: list[tuple[int, str]] = []
    return ModelCall(on_text=lambda block, text: heard.append((block, text)), on_usage=lambda: None), heard


def request_of(model: str, messages: Any = GOAL, max_output_tokens: int = 4096, **more: Any) -> ModelRequest:
    return ModelRequest(model, messages, max_output_tokens, **{"system": "Be brief.", "tools": TOOLS, **more})


async def answer_of(client: Any, model: str, messages: Any = GOAL, **more: Any) -> Any:
    return await client.answer(request_of(model, messages, **more), new_call()[0])


async def failure_of(client: Any, model: str, messages: Any = GOAL, **more: Any) -> ModelCallFailed:
    with pytest.raises(ModelCallFailed) as failed:
        await answer_of(client, model, messages, **more)
    return failed.value


def continued(messages: Any, answer: Any, *, is_error: bool = False) -> list[Any]:
    """The conversation after an answer and the results of its calls, as the ledger has it."""
    content = with_own_ids(answer.content, messages, 1)
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "done", "is_error": is_error}
        for block in content
        if block["type"] == "tool_use"
    ]
    user = {"role": "user", "content": results or [text_block("Go on.")]}
    return [*messages, {"role": "assistant", "content": list(content)}, user]


def billed_total(simulator: Any) -> int:
    return int(sum(simulator.billed().values()))


async def test_an_answer_with_calls_is_folded_and_billed(client: Any, simulator: Any, prefix: str) -> None:
    answer = await answer_of(client, f"{prefix}sim-parallel-tools")
    assert answer.stop_reason == "tool_use"
    assert [block["type"] for block in answer.content] == ["text", "tool_use", "tool_use", "tool_use"]
    assert answer.content[1]["input"] == {"path": "a.txt", "content": "Three things.\n"}
    assert answer.usage.total == billed_total(simulator)
    assert answer.request_id.startswith("req_")


def whole_provider(simulator: Any) -> OpenAIProvider:
    """Of a server that cannot stream. The limit of silence is shorter than any answer takes."""
    return OpenAIProvider(api_key="sk-test", base_url=f"{simulator.url}/v1", silence_seconds=1e-6, streams=False)


async def test_an_answer_as_a_whole_is_that_of_a_stream(client: Any, simulator: Any) -> None:
    model = "openai/sim-parallel-tools"
    async with ModelClient({OPENAI: whole_provider(simulator)}, timeout_seconds=CALL_SECONDS) as whole_client:
        call, heard = new_call()
        whole = await whole_client.answer(request_of(model), call)
    streamed = await answer_of(client, model)
    (whole_blocks, whole_usage), (blocks, usage) = [
        ([{**block, "id": ""} for block in answer.content], answer.usage) for answer in (whole, streamed)
    ]
    assert (whole_blocks, whole.stop_reason, whole_usage) == (blocks, "tool_use", usage)
    assert not whole.usage_estimated
    assert "".join(text for _, text in heard) == text_of(whole.content)
    assert [call["stream"] for call in simulator.calls("chat")] == [False, True]


@pytest.mark.parametrize("piece_bytes", [1, 7, 100_000])
async def test_a_server_that_ignores_the_wish_for_a_stream_is_read(piece_bytes: int) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "list_files", "arguments": '{"path": "é"}'}}
    message = {"role": "assistant", "content": "I look.", "tool_calls": [call, {**call, "id": "c2"}]}
    body = {
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14},
    }
    sent = f"\n{json.dumps(body, ensure_ascii=False, indent=1)}\n".encode()
    taken, _ = new_call()
    taken.stream = ChatStream(fold=taken.fold)
    for start in range(0, len(sent), piece_bytes):
        taken.observe(sent[start : start + piece_bytes])
    taken.observe_end()
    assert [block.get("input") for block in taken.fold.content()] == [None, {"path": "é"}, {"path": "é"}]
    assert (taken.fold.stop_reason, taken.usage.input_tokens, taken.usage.output_tokens) == ("tool_use", 9, 5)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ('{"error": {"message": "no such model"}}', ErrorEvent),
        ('{"choices": []}', MalformedAnswer),
        ('{"choices": [{"message": {"content": "cut', MalformedAnswer),
        ('{"choices": [{"message": 5, "finish_reason": "stop"}]}', MalformedAnswer),
    ],
)
async def test_malformed_whole_answers_are_refused(body: str, error: type[Exception]) -> None:
    taken, _ = new_call()
    taken.stream = ChatStream(fold=taken.fold)
    taken.observe(body.encode())
    with pytest.raises(error):
        taken.observe_end()


async def test_live_text_is_the_text_of_an_answer(client: Any, prefix: str) -> None:
    call, heard = new_call()
    answer = await client.answer(request_of(f"{prefix}sim-echo"), call)
    assert "".join(text for _, text in heard) == text_of(answer.content)
    assert answer.stop_reason == "end_turn"


async def test_results_are_sent_back(client: Any, prefix: str) -> None:
    answer = await answer_of(client, f"{prefix}sim-parallel-tools")
    final = await answer_of(client, f"{prefix}sim-parallel-tools", continued(GOAL, answer, is_error=True))
    assert text_of(final.content) == "All three are done."


async def test_a_history_changes_the_vendor_and_back(client: Any) -> None:
    """The thoughts of one vendor and their signatures reach no other one."""
    answer = await answer_of(client, "sim-parallel-tools")
    messages = continued(GOAL, answer)
    thought = {"type": "thinking", "thinking": "Let me see.", "signature": "c2lnbmVk"}
    messages[1]["content"].insert(0, thought)
    other = await answer_of(client, "openai/sim-parallel-tools", messages)
    assert text_of(other.content) == "All three are done."
    back = await answer_of(client, "sim-parallel-tools", continued(messages, other))
    assert back.stop_reason == "end_turn"


async def test_call_that_the_output_limit_cuts_is_marked(client: Any, prefix: str) -> None:
    answer = await answer_of(client, f"{prefix}sim-parallel-tools", max_output_tokens=12)
    assert answer.stop_reason == "max_tokens"
    assert [block["type"] for block in answer.content] == ["text", "tool_use"]
    assert (answer.content[1]["input"], answer.content[1][UNUSABLE]) == ({}, CUT_OFF_CALL)


@pytest.mark.parametrize(
    ("status", "error_class", "retryable"),
    [
        (400, "INVALID_REQUEST", False),
        (401, "AUTHENTICATION", False),
        (402, "BILLING", False),
        (403, "PERMISSION", False),
        (404, "NOT_FOUND", False),
        (413, "REQUEST_TOO_LARGE", False),
        (429, "RATE_LIMITED", True),
        (500, "SERVER_ERROR", True),
        (503, "SERVER_ERROR", True),
        (529, "OVERLOADED", True),
    ],
)
async def test_each_status_has_its_class(
    client: Any, simulator: Any, prefix: str, status: int, error_class: str, retryable: bool
) -> None:
    simulator.order_fault(status=status, message="the provider's words")
    failure = await failure_of(client, f"{prefix}sim-hello")
    assert (failure.error_class, failure.retryable, failure.status_code) == (error_class, retryable, status)
    assert "the provider's words" in failure.message
    assert failure.usage.total == 0
    assert failure.request_id.startswith("req_")
    assert len(simulator.calls("chat" if prefix else "messages")) == 1, "the library repeated the request"


async def test_the_wait_of_a_rate_limit_is_kept(client: Any, simulator: Any, prefix: str) -> None:
    simulator.order_fault(status=429, retry_after_seconds=7)
    assert (await failure_of(client, f"{prefix}sim-hello")).retry_after_seconds == 7


async def test_a_prompt_too_long_has_its_class(client: Any, simulator: Any, prefix: str) -> None:
    simulator.order_fault(status=400, message="prompt is too long: 250000 tokens > 200000 maximum")
    assert (await failure_of(client, f"{prefix}sim-hello")).error_class == "PROMPT_TOO_LONG"


async def test_a_broken_stream_has_a_bill(client: Any, simulator: Any, prefix: str) -> None:
    simulator.order_fault(broken_stream=3)
    failure = await failure_of(client, f"{prefix}sim-slow")
    assert (failure.error_class, failure.retryable) == ("BROKEN_STREAM", True)
    assert failure.was_answered
    assert abs(failure.usage.output_tokens - simulator.billed()["output_tokens"]) <= 3


async def test_an_error_in_a_stream_has_its_class(client: Any, simulator: Any, prefix: str) -> None:
    simulator.order_fault(overloaded=2)
    failure = await failure_of(client, f"{prefix}sim-hello")
    assert (failure.error_class, failure.status_code) == ("OVERLOADED", 529)


async def test_timeout_and_silence_end_a_call(simulator: Any, prefix: str) -> None:
    for limit, error_class in (("timeout_seconds", "TIMEOUT"), ("silence_seconds", "SILENT")):
        simulator.order_fault(drip_ms=1000)
        async with model_client(simulator.url, **{limit: 0.4}) as client:
            failure = await failure_of(client, f"{prefix}sim-slow")
            assert (failure.error_class, failure.retryable) == (error_class, True)


async def test_an_absent_server_may_be_tried_again(prefix: str) -> None:
    async with model_client("http://127.0.0.1:9") as client:
        failure = await failure_of(client, f"{prefix}sim-hello")
    assert (failure.error_class, failure.retryable) == ("CONNECTION", True)


async def test_server_that_accepts_no_connection_is_not_silent(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall drops the packets: the phase of the model call did not time out, and no model thought for long."""
    monkeypatch.setattr(http, "CONNECT_TIMEOUT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as waiting:
        for _ in range(3):
            other = waiting.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        async with model_client(f"http://127.0.0.1:{full.getsockname()[1]}") as client:
            failure = await failure_of(client, f"{prefix}sim-hello")
    assert (failure.error_class, failure.was_sent) == ("CONNECTION", False)
    assert "Connection timeout" in failure.message


async def test_a_cancelled_call_has_a_bill(client: Any, simulator: Any, prefix: str) -> None:
    simulator.order_fault(drip_ms=20)
    call, heard = new_call()
    running = asyncio.create_task(client.answer(request_of(f"{prefix}sim-slow"), call))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(heard) < 5:
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert call.usage.output_tokens > 0


async def test_model_without_provider_names_the_setting() -> None:
    async with ModelClient({}, timeout_seconds=CALL_SECONDS) as client:
        failure = await failure_of(client, "openai/gpt-5")
    assert (failure.error_class, failure.retryable) == ("NOT_FOUND", False)
    assert "OPENAI_BASE_URL" in failure.message


# What only chat servers do.


async def test_cached_input_is_counted_apart(client: Any, simulator: Any) -> None:
    messages = [{"role": "user", "content": [text_block("Remember this. " * 1000)]}]
    first = await answer_of(client, "openai/sim-hello", messages)
    second = await answer_of(client, "openai/sim-hello", messages)
    assert (first.usage.cache_read_input_tokens, first.usage.cache_creation_input_tokens) == (0, 0)
    assert second.usage.cache_read_input_tokens > 1000
    assert first.usage.total + second.usage.total == billed_total(simulator)


async def test_without_usage_the_reserved_input_is_billed(client: Any) -> None:
    answer = await answer_of(client, "openai/sim-no-usage-hello")
    assert answer.usage.input_tokens == 0
    assert answer.usage.output_tokens > 0, "it is estimated from the text"
    assert billed(entries.ModelAttempt(1, "openai/m", 77, 10, 87), answer.usage).input_tokens == 77


def stream(*chunks: Any, done: bool = True) -> bytes:
    lines = [json.dumps(chunk) for chunk in chunks] + ["[DONE]"] * done
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def chunk(delta: Any = None, finish_reason: Any = None, **more: Any) -> Any:
    return {"model": "m", "choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish_reason}], **more}


def call_delta(name: str | None, arguments: Any, **more: Any) -> Any:
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return chunk({"tool_calls": [{"function": function, **more}]})


async def chat_answer(client: Any, simulator: Any, body: bytes) -> Any:
    simulator.order_answer(body)
    return await answer_of(client, "openai/sim-hello")


async def test_calls_without_ids_or_indexes_are_read(client: Any, simulator: Any) -> None:
    body = stream(
        call_delta("list_files", '{"path": "a"}'), call_delta("list_files", '{"path": '), call_delta(None, '"b"}'),
        chunk(finish_reason="stop"),
    )  # fmt: skip
    answer = await chat_answer(client, simulator, body)
    assert [block["input"] for block in answer.content] == [{"path": "a"}, {"path": "b"}]
    assert len({block["id"] for block in answer.content}) == 2
    assert answer.stop_reason == "tool_use"


async def test_calls_that_share_an_index_are_two(client: Any, simulator: Any) -> None:
    body = stream(
        call_delta("list_files", "{}", index=0, id="a"), call_delta("list_files", "{}", index=0, id="b"),
        chunk(finish_reason="tool_calls"),
    )  # fmt: skip
    answer = await chat_answer(client, simulator, body)
    assert [block["id"] for block in answer.content] == ["a", "b"]


async def test_a_stream_may_end_without_its_last_line(client: Any, simulator: Any) -> None:
    answer = await chat_answer(client, simulator, stream(chunk({"content": "Hi."}, "stop"), done=False))
    assert text_of(answer.content) == "Hi."


async def test_thoughts_are_billed_and_not_kept(client: Any, simulator: Any) -> None:
    body = stream(chunk({"reasoning_content": "x" * 400}), chunk({"content": "Hi."}, "stop"))
    answer = await chat_answer(client, simulator, body)
    assert list(answer.content) == [text_block("Hi.")]
    assert answer.usage.output_tokens > 100


async def test_a_refusal_is_an_answer(client: Any, simulator: Any) -> None:
    answer = await chat_answer(client, simulator, stream(chunk({"refusal": "No."}, "content_filter")))
    assert (answer.stop_reason, text_of(answer.content)) == ("refusal", "No.")


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk({"content": "Hi."})],
        [chunk({"content": "Hi."}, "")],
        [chunk({"content": "Hi."}, "bored")],
        [chunk({"content": "Hi."}, "eos")],
        [chunk({"content": "Hi."}, 7)],
        [chunk({"content": "Hi."}, "tool_calls")],
        [chunk({"content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "Hi."}]}, "stop")],
        [chunk({"content": "Hi."}, "stop", usage=[1])],
        [chunk({"content": "Hi."}, "stop", usage={"prompt_tokens": -1})],
        [chunk({"content": "Hi."}, "stop", usage={"prompt_tokens": 10**30})],
        [chunk({"content": "Hi."}, "stop", usage={"completion_tokens": 1.5})],
    ],
    ids=range(11),
)
async def test_odd_chat_answer_of_one_meaning_is_read(client: Any, simulator: Any, chunks: Any) -> None:
    """A complete answer is paid for."""
    answer = await chat_answer(client, simulator, stream(*chunks))
    assert text_of(answer.content) == "Hi."
    assert answer.usage_estimated


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 50.0, "completion_tokens": 9.0}, TokenUsage(50, 9)),
        (
            {"prompt_tokens": 1, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 2}},
            TokenUsage(0, 9, cache_read_input_tokens=1),
        ),
        ({"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 2041}, TokenUsage(32, 2009)),
        ({"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 1}, TokenUsage(32, 9)),
    ],
)
async def test_odd_usage_of_one_meaning_is_billed(
    client: Any, simulator: Any, usage: Any, expected: TokenUsage
) -> None:
    answer = await chat_answer(client, simulator, stream(chunk({"content": "Hi."}, "stop", usage=usage)))
    assert (answer.usage, answer.usage_estimated) == (expected, False)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [("{", "cannot be read as a JSON object"), ("[]", "cannot be read"), ({"path": "."}, ""), ("", "")],
)
async def test_arguments_of_a_chat_call_are_read_or_marked(
    client: Any, simulator: Any, arguments: Any, problem: str
) -> None:
    call = call_delta("list_files", arguments, index=0)
    answer = await chat_answer(client, simulator, stream(call, chunk(finish_reason="bored")))
    [block] = answer.content
    assert block["input"] == (arguments if isinstance(arguments, dict) else {})
    assert problem in block.get(UNUSABLE, "")
    assert (UNUSABLE in block) == bool(problem)


@pytest.mark.parametrize(
    "body",
    [
        stream(chunk({"content": 7}, "stop")),
        stream(chunk({"content": [{"type": ["text"], "text": "Hi."}]}, "stop")),
        stream(call_delta("list files", "{}", index=0), chunk(finish_reason="tool_calls")),
        stream(call_delta(None, "{}", index=0), chunk(finish_reason="tool_calls")),
        stream(call_delta("list_files", "{}", index=-1), chunk(finish_reason="tool_calls")),
        stream(*[chunk({"content": "y" * 500_000})] * (MAX_CONTENT_BYTES // 500_000 + 1)),
        stream(*[chunk({"reasoning": "y" * 500_000})] * (MAX_CONTENT_BYTES // 500_000 + 1)),
        stream(*[chunk({"reasoning_details": ["y" * 500_000]})] * (MAX_CONTENT_BYTES // 500_000 + 1), done=False),
    ],
    ids=range(8),
)
async def test_malformed_chat_answer_is_unusable(client: Any, simulator: Any, body: bytes) -> None:
    simulator.order_answer(body)
    assert (await failure_of(client, "openai/sim-hello")).error_class == "UNUSABLE_ANSWER"


@pytest.mark.parametrize(
    ("body", "error_class"),
    [
        ({"code": 429, "message": "busy"}, "RATE_LIMITED"),
        ({"detail": "starting"}, "SERVER_ERROR"),
        ({"error": {"code": 403, "message": "flagged", "metadata": {"flagged_input": "x"}}}, "INVALID_REQUEST"),
        ({"error": {"code": 403, "message": "no", "metadata": 1}}, "PERMISSION"),
    ],
)
async def test_refusal_with_a_status_of_success_is_a_refusal(
    client: Any, simulator: Any, body: Any, error_class: str
) -> None:
    simulator.order_answer(json.dumps(body).encode())
    assert (await failure_of(client, "openai/sim-hello")).error_class == error_class


async def test_whole_answer_may_begin_with_a_mark(client: Any, simulator: Any) -> None:
    whole = {"choices": [{"message": {"content": "Hi."}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}
    answer = await chat_answer(client, simulator, b"\xef\xbb\xbf\n" + json.dumps(whole).encode())
    assert text_of(answer.content) == "Hi."


async def test_answer_without_its_end_is_a_broken_stream(client: Any, simulator: Any) -> None:
    simulator.order_answer(stream(chunk({"content": "Hi."}), done=False))
    assert (await failure_of(client, "openai/sim-hello")).error_class == "BROKEN_STREAM"


@pytest.mark.parametrize(
    ("error", "error_class"),
    [
        ({"code": "insufficient_quota", "type": "insufficient_quota"}, "BILLING"),
        ({"code": "context_length_exceeded", "type": "invalid_request_error"}, "PROMPT_TOO_LONG"),
        ({"type": "exceed_context_size_error", "code": 400}, "PROMPT_TOO_LONG"),
        ({"message": "This model's maximum context length is 8192 tokens", "code": 400}, "PROMPT_TOO_LONG"),
        ({"code": 429}, "RATE_LIMITED"),
        ({"code": 503}, "SERVER_ERROR"),
        ({"code": "no such code"}, "SERVER_ERROR"),
    ],
)
async def test_chat_errors_have_a_class(client: Any, simulator: Any, error: Any, error_class: str) -> None:
    simulator.order_answer(stream({"error": {"message": "words", **error}}))
    failure = await failure_of(client, "openai/sim-hello")
    assert failure.error_class == error_class
    assert error.get("message", "words") in failure.message


# The conformance of any server: see the top of this file.


@pytest.fixture
async def own_client(simulator: Any) -> AsyncIterator[Any]:
    if not OWN_MODEL:
        async with model_client(simulator.url) as client:
            yield client
        return
    providers: dict[str, ModelProvider] = {
        ANTHROPIC: AnthropicProvider(
            api_key=OWN_KEYS["ANTHROPIC"], base_url=OWN_URLS["ANTHROPIC"], silence_seconds=LONG_SECONDS
        ),
        OPENAI: OpenAIProvider(api_key=OWN_KEYS["OPENAI"], base_url=OWN_URLS["OPENAI"], silence_seconds=LONG_SECONDS),
    }
    async with ModelClient(providers, timeout_seconds=LONG_SECONDS) as client:
        yield client


@pytest.fixture
def own_models(prefix: str) -> tuple[str, str]:
    """A model that answers in words, and one that calls a tool."""
    return (OWN_MODEL, OWN_MODEL) if OWN_MODEL else (f"{prefix}sim-hello", f"{prefix}sim-parallel-tools")


async def test_own_server_answers_in_text(own_client: Any, own_models: tuple[str, str]) -> None:
    call, heard = new_call()
    messages = [{"role": "user", "content": [text_block("Say hello.")]}]
    answer = await own_client.answer(request_of(own_models[0], messages, tools=()), call)
    assert answer.stop_reason == "end_turn"
    assert text_of(answer.content)
    assert "".join(text for _, text in heard).strip() == text_of(answer.content).strip()
    assert answer.usage.output_tokens > 0


async def test_own_server_calls_a_tool_and_goes_on(own_client: Any, own_models: tuple[str, str]) -> None:
    messages = [{"role": "user", "content": [text_block("Call the tool list_files with the path '.', then stop.")]}]
    answer = await answer_of(own_client, own_models[1], messages)
    assert answer.stop_reason == "tool_use"
    final = await answer_of(own_client, own_models[1], continued(messages, answer))
    assert final.content


async def test_own_server_stops_at_the_limit(own_client: Any, own_models: tuple[str, str]) -> None:
    messages = [{"role": "user", "content": [text_block("Count from 1 to 1000 in words.")]}]
    answer = await answer_of(own_client, own_models[1], messages, max_output_tokens=5)
    assert answer.stop_reason == "max_tokens"


async def test_own_server_knows_only_its_models(own_client: Any, own_models: tuple[str, str]) -> None:
    vendor = "openai/" if own_models[0].startswith("openai/") else ""
    failure = await failure_of(own_client, f"{vendor}sim-no-such-model")
    assert (failure.retryable, failure.status_code) == (False, 404)


async def test_a_hostile_model_plays_both_apis(client: Any, prefix: str) -> None:
    """Half of its answers are changed valid ones, by the number in its name: each is kept or fails typed."""
    outcomes = set()
    for seed in range(30):
        try:
            answer = await answer_of(client, f"{prefix}sim-hostile-{seed}-parallel-tools", attempt=f"t/{seed}/1")
            outcomes.add(answer.stop_reason)
        except ModelCallFailed as failure:
            outcomes.add(failure.error_class)
    assert {"tool_use", "BROKEN_STREAM"} <= outcomes
