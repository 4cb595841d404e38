"""The usage of responses that are passed on as they came, in each protocol, whole, streamed and cut off."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tenure.domain.budget import TokenUsage
from tenure.model_providers.client import ModelCallFailed
from tenure.model_providers.stream import ErrorEvent, MalformedAnswer
from tenure.model_providers.vendor_calls import MAX_RESPONSE_BYTES, VendorCall

ANTHROPIC_USAGE = {"input_tokens": 5, "output_tokens": 1, "cache_read_input_tokens": 40}
CHAT_USAGE = {"prompt_tokens": 45, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 40}}
RESPONSE_USAGE = {"input_tokens": 45, "output_tokens": 9, "input_tokens_details": {"cached_tokens": 40}}
USED = TokenUsage(5, 9, 0, 40)
STREAMS: dict[str, list[dict[str, Any]]] = {
    "messages": [
        {"type": "message_start", "message": {"model": "claude", "usage": ANTHROPIC_USAGE}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello world, hello"}},
        {"type": "something_new", "usage": None},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ],
    "chat": [
        {"model": "gpt", "choices": [{"index": 1, "delta": {"role": "assistant", "content": "Hello world, hello"}}]},
        {"model": "gpt", "choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]},
        {"model": "gpt", "choices": [], "usage": CHAT_USAGE},
    ],
    "responses": [
        {"type": "response.created", "response": {"model": "gpt", "usage": None}},
        {"type": "response.output_text.delta", "delta": "Hello world, hello"},
        {"type": "response.completed", "response": {"model": "gpt", "usage": RESPONSE_USAGE}},
    ],
}
WHOLE: list[dict[str, Any]] = [
    {"type": "message", "model": "claude", "usage": {**ANTHROPIC_USAGE, "output_tokens": 9}},
    {"object": "chat.completion", "model": "gpt", "choices": [{}], "usage": CHAT_USAGE},
    {"object": "response", "model": "gpt", "status": "failed", "error": {"code": "x"}, "usage": RESPONSE_USAGE},
]


def call() -> VendorCall:
    return VendorCall(lambda _block, _text: None, lambda: None)


def streamed(*events: dict[str, Any]) -> bytes:
    return b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)


@pytest.mark.parametrize("protocol", STREAMS)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_streamed_usage_is_read(protocol: str, size: int) -> None:
    made, sent = call(), streamed(*STREAMS[protocol])
    for at in range(0, len(sent), size):
        made.observe(sent[at : at + size])
    made.observe_end()
    assert (made.usage, made.fold.stopped, bytes(made.body)) == (USED, True, sent)
    assert made.fold.is_usage_stated()


@pytest.mark.parametrize("response", WHOLE)
def test_whole_usage_is_read(response: dict[str, Any]) -> None:
    made, sent = call(), json.dumps(response, indent=1).encode()
    made.observe(b"\n " + sent[:10])
    made.observe(sent[10:])
    assert not made.fold.stopped
    made.observe_end()
    assert (made.usage, made.fold.stopped, bytes(made.body)) == (USED, True, b"\n " + sent)


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"prompt_tokens": 82, "completion_tokens": 17, "total_tokens": 199}, TokenUsage(82, 117)),
        (
            {
                "input_tokens": 45,
                "output_tokens": 9,
                "input_tokens_details": {"cached_tokens": 30, "cache_write_tokens": 10},
            },
            TokenUsage(5, 9, 10, 30),
        ),
    ],
    ids=["reasoning in the total only", "written to the cache"],
)
def test_counts_of_openais_apis_are_read(usage: dict[str, Any], counted: TokenUsage) -> None:
    made = call()
    made.observe(json.dumps({"choices": [{}], "usage": usage}).encode())
    made.observe_end()
    assert made.usage == counted


@pytest.mark.parametrize(
    "answer",
    [
        {"type": "message", "content": [{"type": "text", "text": "x" * 4000}]},
        {"object": "chat.completion", "choices": [{"message": {"role": "assistant", "content": "x" * 4000}}]},
        {"object": "response", "output": [{"type": "message", "content": [{"text": "x" * 4000}]}]},
    ],
)
def test_whole_response_without_usage_is_estimated(answer: dict[str, Any]) -> None:
    made = call()
    made.observe(json.dumps(answer).encode())
    made.observe_end()
    assert made.usage == TokenUsage(output_tokens=1000)


@pytest.mark.parametrize("protocol", STREAMS)
def test_output_of_a_cut_response_is_estimated(protocol: str) -> None:
    made = call()
    made.observe(streamed(*STREAMS[protocol][:2]))
    assert made.usage.output_tokens >= len("Hello world, hello") // 4
    assert made.fold.stopped is False
    if protocol != "chat":  # whose finish reason came
        made.observe_end()
        assert made.fold.stopped is False


@pytest.mark.parametrize(
    "event",
    [b'event: error\ndata: {"error": {}}\n\n', b'data: {"error": {"code": 1}}\n\n', b'data: {"type": "error"}\n\n'],
)
def test_error_in_a_stream_is_not_passed_on(event: bytes) -> None:
    made, sent = call(), streamed(STREAMS["messages"][0])
    made.observe(sent)
    with pytest.raises(ErrorEvent):
        made.observe(event)
    assert bytes(made.body) == sent


def test_response_is_bounded_and_json() -> None:
    made = call()
    made.observe(b"{")
    with pytest.raises(ModelCallFailed, match="more than 16777216 bytes; a model runner passes on no more") as failed:
        made.observe(b" " * MAX_RESPONSE_BYTES)
    assert not failed.value.retryable, "another attempt gets as many bytes, and is paid for"
    with pytest.raises(MalformedAnswer):
        made.observe_end()
