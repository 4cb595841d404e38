"""What an operator states of an endpoint reaches its server, and what a server lacks is refused before it is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Self

import pytest

from devstack.simulator.http_server import HttpRequest, HttpServer, Reply, plain_refusal
from tenure.domain.conversation import text_block
from tenure.domain.model_parameters import Effort, ModelParameters
from tenure.domain.models import ANTHROPIC, OPENAI
from tenure.domain.retry import FailureClass
from tenure.model_providers.anthropic_models import AnthropicProvider
from tenure.model_providers.client import ModelAnswer, ModelCall, ModelCallFailed, ModelClient, ModelRequest
from tenure.model_providers.endpoint import ModelOptions
from tenure.model_providers.openai_models import OpenAIProvider
from tenure.model_providers.settings import ModelProviderSettings, OpenAISettings, open_providers
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

GOAL = [{"role": "user", "content": [text_block("Go.")]}]
WHOLE = {"choices": [{"index": 0, "message": {"content": "Done."}, "finish_reason": "stop"}], "model": "m"}
EVENTS = (
    {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Done."}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
    {"type": "message_stop"},
)


class ListeningServer:
    """Keeps the requests that it gets. `is_silent`: it begins an answer and says nothing more. `moved_to`: its answer
    points there. `refusal`: it refuses each request with this text.
    """

    def __init__(self) -> None:
        self.requests: list[HttpRequest] = []
        self.is_silent = False
        self.moved_to = self.refusal = ""
        self.moved_status = 307
        self._server = HttpServer(self._answer, max_body_bytes=2**20, refusal=plain_refusal)

    async def __aenter__(self) -> Self:
        await self._server.start("127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    @property
    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.requests[-1].body)
        return body

    async def _answer(self, request: HttpRequest, reply: Reply) -> None:
        self.requests.append(request)
        if self.moved_to:
            reply.send(self.moved_status, b"", {"location": f"{self.moved_to}{request.path}?key=sk-in-the-address"})
        elif self.refusal:
            reply.send_json(400, {"error": {"type": "invalid_request_error", "message": self.refusal}})
        elif self.is_silent:
            reply.begin(200, {"content-type": "text/event-stream"})
            reply.write(b": thinking\n\n")
            await asyncio.sleep(PATIENCE_SECONDS)
        elif request.path.endswith("/messages"):
            reply.begin(200, {"content-type": "text/event-stream"})
            reply.write(b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in EVENTS))
            reply.end()
        else:
            reply.send(200, json.dumps(WHOLE).encode())


@pytest.fixture
async def server() -> AsyncIterator[ListeningServer]:
    async with ListeningServer() as started:
        yield started


async def ask(provider: Any, vendor: str, **request: Any) -> ModelAnswer:
    async with ModelClient({vendor: provider}, timeout_seconds=CALL_SECONDS) as client:
        call = ModelCall(lambda _block, _text: None, lambda: None)
        return await client.answer(ModelRequest(f"{vendor}/m", GOAL, 8192, **request), call)


OPTIONS = ModelOptions(
    context_window_tokens=4096,
    max_output_tokens=2000,
    extra_headers={"x-team": "a"},
    extra_body={"top_k": 20, "service_tier": "flex"},
)


@pytest.mark.parametrize("vendor", [OPENAI, ANTHROPIC])
async def test_options_of_endpoint_are_sent_below_the_tasks(server: ListeningServer, vendor: str) -> None:
    kind: Any = OpenAIProvider if vendor == OPENAI else AnthropicProvider
    provider = kind(api_key="k", base_url=server.url, options_of=lambda _model: OPTIONS)
    parameters = ModelParameters(temperature=0.0, extra_body_json='{"top_k": 40}')
    answer = await ask(provider, vendor, parameters=parameters, input_tokens=3000)
    assert answer.context_window_tokens == 4096
    assert server.requests[0].headers["x-team"] == "a"
    assert {name: server.body[name] for name in ("max_tokens", "top_k", "service_tier", "temperature", "model")} == {
        "max_tokens": 4096 - 3000,
        "top_k": 40,
        "service_tier": "flex",
        "temperature": 0.0,
        "model": "m",
    }


async def test_parameter_that_a_server_lacks_is_not_sent(server: ListeningServer) -> None:
    options = ModelOptions(dialect="deepseek")
    provider = OpenAIProvider(api_key="k", base_url=server.url, options_of=lambda _model: options)
    with pytest.raises(ModelCallFailed, match="the API of deepseek does not have the parameter seed") as failed:
        await ask(provider, OPENAI, parameters=ModelParameters(seed=1, effort=Effort.HIGH))
    assert (failed.value.error_class, failed.value.was_sent) == (FailureClass.INVALID_REQUEST, False)
    assert not server.requests


async def test_silence_names_its_setting_and_is_waited_longer(server: ListeningServer) -> None:
    server.is_silent = True
    provider = OpenAIProvider(api_key="k", base_url=server.url, silence_seconds=0.2)
    with pytest.raises(ModelCallFailed, match=r"sent nothing for 0\.2 s.*silence_seconds of the endpoint") as failed:
        await ask(provider, OPENAI)
    assert failed.value.error_class is FailureClass.SILENT
    assert provider.endpoint.silence_seconds("m", CALL_SECONDS) == 0.4


@pytest.mark.parametrize("status", [302, 307])
@pytest.mark.parametrize("vendor", [OPENAI, ANTHROPIC])
async def test_redirect_takes_no_key_and_no_prompt_along(server: ListeningServer, vendor: str, status: int) -> None:
    """All headers went to whatever host the answer named."""
    kind: Any = OpenAIProvider if vendor == OPENAI else AnthropicProvider
    async with ListeningServer() as elsewhere:
        server.moved_to, server.moved_status = elsewhere.url, status
        with pytest.raises(ModelCallFailed, match=rf"{status} and points to .127\.0\.0\.1:\d+., .*base URL") as failed:
            await ask(kind(api_key="k", base_url=server.url), vendor)
        assert (len(server.requests), elsewhere.requests) == (1, [])
    failure = failed.value
    assert (failure.error_class, failure.status_code, failure.retryable) == (FailureClass.CONNECTION, status, True)
    assert "sk-in-the-address" not in failure.message


@pytest.mark.parametrize("vendor", [OPENAI, ANTHROPIC])
async def test_values_of_extra_headers_are_hidden_in_failures(server: ListeningServer, vendor: str) -> None:
    kind: Any = OpenAIProvider if vendor == OPENAI else AnthropicProvider
    options = ModelOptions(extra_headers={"x-proxy-key": "Bearer sk-of-the-proxy", "x-team": "a"})
    server.refusal = "sk-of-the-proxy and Bearer sk-of-the-proxy have a quota"
    with pytest.raises(ModelCallFailed) as failed:
        await ask(kind(api_key="k", base_url=server.url, options_of=lambda _model: options), vendor)
    assert failed.value.message == "[x-proxy-key] and [x-proxy-key] have a quota"


async def test_model_of_a_vendor_without_variables_is_refused(server: ListeningServer) -> None:
    settings = ModelProviderSettings(openai=OpenAISettings(base_url=server.url, max_output_tokens=100))
    providers = open_providers(settings, silence_seconds=0.0, prompt_caching=True, counts_tokens=True)
    assert set(providers) == {OPENAI}
    async with ModelClient(providers, timeout_seconds=CALL_SECONDS) as client:
        call = ModelCall(lambda _block, _text: None, lambda: None)
        with pytest.raises(ModelCallFailed, match="no provider for the model") as failed:
            await client.answer(ModelRequest("claude-opus-4-8", GOAL, 100), call)
        assert failed.value.error_class is FailureClass.NOT_FOUND
        assert not server.requests
        await client.answer(ModelRequest("openai/m", GOAL, 8192), call)
    assert server.body["max_tokens"] == 100
