"""What a hostile or careless provider may do to a process that serves many tenants, and to what their tasks record."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tenure.domain.models import ANTHROPIC, OPENAI
from tenure.domain.retry import FailureClass
from tenure.model_providers.anthropic_models import AnthropicProvider
from tenure.model_providers.client import (
    MAX_FAILURE_CHARACTERS,
    ModelCall,
    ModelCallFailed,
    ModelClient,
    ModelRequest,
)
from tenure.model_providers.openai_models import OpenAIProvider
from tenure.model_providers.platforms import VERTEX
from tests.conformance.test_model_platforms import PlatformServer
from tests.support.hostile_answers import written
from tests.support.patience import CALL_SECONDS

KEY = "sk-ant-secret-0123456789"
MEGABYTE = "x" * (1024 * 1024)
START = {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 7, "output_tokens": 1}}}
RESULT = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": MEGABYTE}
THOUGHT = {"type": "thinking", "thinking": "", "signature": ""}


@pytest.fixture
async def server() -> AsyncIterator[PlatformServer]:
    async with PlatformServer() as server:
        yield server


def client_of(server: PlatformServer, **options: Any) -> ModelClient:
    anthropic = AnthropicProvider(
        **{"api_key": KEY, "base_url": server.url, "silence_seconds": CALL_SECONDS, **options}
    )
    openai = OpenAIProvider(api_key=KEY, base_url=f"{server.url}/v1", silence_seconds=CALL_SECONDS)
    return ModelClient({ANTHROPIC: anthropic, OPENAI: openai}, timeout_seconds=CALL_SECONDS)


async def failure_of(client: ModelClient, model: str = "m") -> ModelCallFailed:
    request = ModelRequest(model, [{"role": "user", "content": "Hi."}], 100, attempt="t/1/1")
    with pytest.raises(ModelCallFailed) as failed:
        await client.answer(request, ModelCall(on_text=lambda *_: None, on_usage=lambda: None))
    return failed.value


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


CITED = {"type": "citations_delta", "citation": {"cited_text": MEGABYTE}}
SIGNED = {"type": "signature_delta", "signature": MEGABYTE}
HUGE = {
    "results": [event for index in range(6) for event in block(index, RESULT)],
    "citations": block(0, {"type": "text", "text": ""}, *([CITED] * 6)),
    "signature": block(0, THOUGHT, *([SIGNED] * 6)),
}


@pytest.mark.parametrize("content_type", ["text/html", "text/html; charset=utf-8", "application/xml"])
async def test_page_of_a_proxy_is_named_and_not_billed(server: PlatformServer, content_type: str) -> None:
    server.body, server.content_type = b"<html>Sign in</html>", content_type
    async with client_of(server) as client:
        failure = await failure_of(client)
    assert failure.error_class is FailureClass.CONNECTION
    assert content_type in failure.message
    assert "proxy" in failure.message
    assert (failure.was_answered, failure.usage.total) == (False, 0)


@pytest.mark.parametrize("kind", HUGE)
async def test_an_answer_of_any_parts_is_bounded(server: PlatformServer, kind: str) -> None:
    """It must fit into a message to its worker, or the worker could neither take the call nor end it."""
    ended = [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}}]
    server.body = b"".join(map(written, [START, *HUGE[kind], *ended, {"type": "message_stop"}]))
    async with client_of(server) as client:
        failure = await failure_of(client)
    assert failure.error_class is FailureClass.UNUSABLE_ANSWER
    assert "more than" in failure.message
    assert failure.usage.input_tokens == 7


@pytest.mark.parametrize("model", ["m", "openai/m"])
@pytest.mark.parametrize("status", [200, 401, 500])
async def test_a_key_that_a_proxy_quotes_is_not_recorded(server: PlatformServer, model: str, status: int) -> None:
    error = {"type": "error", "error": {"type": "authentication_error", "message": f"bad key {KEY!r} for {KEY}"}}
    server.status, server.body = status, f"event: error\ndata: {json.dumps(error)}\n\n".encode()
    if status != 200:
        server.body = json.dumps(error).encode()
    async with client_of(server) as client:
        failure = await failure_of(client, model)
    assert failure.message == "bad key '[key]' for [key]"
    assert KEY not in str(failure)


@pytest.mark.parametrize("quoted", [8, 9, len(KEY) - 1, len(KEY)])
def test_a_key_at_the_limit_of_a_message_is_not_recorded(quoted: int) -> None:
    """The message is truncated before the key is looked for."""
    failure = ModelCallFailed(FailureClass.AUTHENTICATION, "x" * (MAX_FAILURE_CHARACTERS - quoted) + KEY + "y")
    failure.hide({KEY: "key"})
    assert failure.message.endswith("x[key] …")
    assert KEY[:8] not in str(failure)


async def test_a_login_that_fails_may_succeed_later(
    server: PlatformServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Nothing was sent, so another endpoint may take the call; the request is not at fault."""
    for name in ("HOME", "CLOUDSDK_CONFIG"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    async with client_of(server, platform=VERTEX, region="r", project="p") as client:
        failure = await failure_of(client)
    assert (failure.error_class, failure.retryable, failure.was_sent) == (FailureClass.CONNECTION, True, False)
    assert server.requests == []


async def test_an_unknown_model_stops_no_counts_of_others(server: PlatformServer) -> None:
    server.status, server.body = 404, b'{"type": "error", "error": {"type": "not_found_error", "message": "model: x"}}'
    messages = [{"role": "user", "content": "Hi."}]
    async with client_of(server) as client:
        assert [await client.count(ModelRequest("x", messages, 1)) for _ in range(2)] == [None, None]
        assert len(server.requests) == 1
        server.status, server.body = 200, b'{"input_tokens": 12}'
        assert await client.count(ModelRequest("m", messages, 1)) == 12
        assert await client.count(ModelRequest("x", messages, 1)) is None
