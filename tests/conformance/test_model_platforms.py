"""Anthropic's models on the platforms of others, with the library's own clients against a server in their form."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import AsyncIterator
from typing import Any, Self

import pytest

from devstack.simulator.http_server import HttpRequest, HttpServer, Reply, plain_refusal
from tenure.domain.models import ANTHROPIC, OPENAI
from tenure.model_providers import platforms
from tenure.model_providers.anthropic_models import AnthropicProvider
from tenure.model_providers.client import ModelCall, ModelCallFailed, ModelClient, ModelRequest
from tenure.model_providers.platforms import BEDROCK, VERTEX, missing_extra
from tenure.model_providers.settings import AnthropicSettings, ModelProviderSettings, OpenAISettings, open_providers
from tenure.runtime.settings import ConfigurationError, load
from tests.support.hostile_answers import call_of, stream_of, written
from tests.support.patience import CALL_SECONDS

HELLO = {"type": "text", "text": ""}, [{"type": "text_delta", "text": "Hello."}]
EVENTS = stream_of([HELLO, call_of("list_files", '{"path": "."}')], "tool_use", input_tokens=7)
PATHS = {
    BEDROCK: "/model/anthropic.claude:0/invoke-with-response-stream",
    VERTEX: "/projects/p/locations/r/publishers/anthropic/models/anthropic.claude:0:streamRawPredict",
}


def frame(payload: dict[str, Any], **headers: str) -> bytes:
    """A frame of Amazon's event stream."""
    head = b""
    for name, value in {"message-type": "event", "event-type": "chunk", **headers}.items():
        key = f":{name.replace('_', '-')}".encode()
        head += struct.pack("!B", len(key)) + key + b"\x07" + struct.pack("!H", len(value)) + value.encode()
    body = json.dumps(payload).encode()
    prelude = struct.pack("!II", 16 + len(head) + len(body), len(head))
    message = prelude + struct.pack("!I", zlib.crc32(prelude)) + head + body
    return message + struct.pack("!I", zlib.crc32(message))


def frames(events: Any) -> bytes:
    return b"".join(frame({"bytes": base64.b64encode(json.dumps(event).encode()).decode()}) for event in events)


class PlatformServer:
    """Answers every request with `body` and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[HttpRequest] = []
        self.status, self.body, self.content_type = 200, b"", "application/json"
        self._server = HttpServer(self._answer, max_body_bytes=2**20, refusal=plain_refusal)

    async def __aenter__(self) -> Self:
        await self._server.start("127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    async def _answer(self, request: HttpRequest, reply: Reply) -> None:
        self.requests.append(request)
        reply.begin(self.status, {"content-type": self.content_type, "request-id": "req_1"})
        reply.write(self.body)
        reply.end()


@pytest.fixture
async def server() -> AsyncIterator[PlatformServer]:
    async with PlatformServer() as server:
        yield server


@pytest.fixture(autouse=True)
def login(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "CLOUD_ML_REGION": "r",
        "ANTHROPIC_VERTEX_PROJECT_ID": "p",
    }.items():
        monkeypatch.setenv(name, value)


def provider_of(platform: str, url: str) -> AnthropicProvider:
    provider = AnthropicProvider(api_key="", base_url=url, silence_seconds=CALL_SECONDS, platform=platform)
    provider._client.access_token = "token"
    return provider


async def answer_of(platform: str, server: PlatformServer) -> Any:
    request = ModelRequest("anthropic.claude:0", [{"role": "user", "content": "Hi."}], 100, attempt="t/1/1")
    async with ModelClient({ANTHROPIC: provider_of(platform, server.url)}, timeout_seconds=CALL_SECONDS) as client:
        assert await client.count(request) is None or platform == VERTEX
        server.requests.clear()
        return await client.answer(request, ModelCall(on_text=lambda *_: None, on_usage=lambda: None))


@pytest.mark.parametrize("platform", [BEDROCK, VERTEX])
async def test_a_platform_answers_as_anthropic_does(server: PlatformServer, platform: str) -> None:
    server.body = frames(EVENTS) if platform == BEDROCK else b"".join(map(written, EVENTS))
    answer = await answer_of(platform, server)
    assert [block["type"] for block in answer.content] == ["text", "tool_use"]
    assert answer.content[1]["input"] == {"path": "."}
    assert (answer.stop_reason, answer.usage.total) == ("tool_use", 37)
    (request,) = server.requests
    assert request.path == PATHS[platform]
    assert request.headers["authorization"].startswith("AWS4-HMAC" if platform == BEDROCK else "Bearer token")


@pytest.mark.parametrize("platform", [BEDROCK, VERTEX])
async def test_platform_refusal_has_its_class(server: PlatformServer, platform: str) -> None:
    server.status, server.body = 429, b'{"message": "Too many requests"}'
    with pytest.raises(ModelCallFailed) as failed:
        await answer_of(platform, server)
    assert failed.value.error_class == "RATE_LIMITED"
    assert len(server.requests) == 1, "the library repeated the request"


@pytest.mark.parametrize(
    "body",
    [
        b"\x00" * 100,
        frames(EVENTS)[:-20],
        frames(EVENTS[:3]) + frame({"bytes": "?"}),
        frames(EVENTS[:3]) + frame({"message": "late"}, message_type="exception", exception_type="throttlingException"),
        frame({"bytes": base64.b64encode(b'{"type": 7}').decode()}),
        frame({}),
    ],
    ids=range(6),
)
async def test_malformed_frames_may_be_tried_again(server: PlatformServer, body: bytes) -> None:
    server.body = body
    with pytest.raises(ModelCallFailed) as failed:
        await answer_of(BEDROCK, server)
    assert failed.value.retryable, failed.value


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_extra(BEDROCK) is None
    monkeypatch.setattr(platforms, "find_spec", lambda _: None)
    assert "pip install 'tenure[bedrock]'" in str(missing_extra(BEDROCK))
    (problem,) = ModelProviderSettings(
        anthropic_platform=VERTEX, anthropic=AnthropicSettings(), openai=OpenAISettings()
    ).missing("claude")
    assert "pip install 'tenure[vertex]'" in problem


def test_a_platform_without_region_is_a_setting_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLOUD_ML_REGION")
    settings = ModelProviderSettings(anthropic_platform=VERTEX, anthropic=AnthropicSettings(), openai=OpenAISettings())
    with pytest.raises(ConfigurationError, match="region"):
        open_providers(settings, silence_seconds=1.0, prompt_caching=True, counts_tokens=True)


@pytest.mark.parametrize(
    ("model", "variable"), [("claude-opus-4-8", "ANTHROPIC_API_KEY"), ("openai/gpt-5", "OPENAI_API_KEY")]
)
def test_the_default_model_needs_its_provider(model: str, variable: str) -> None:
    settings = ModelProviderSettings(anthropic=AnthropicSettings(), openai=OpenAISettings())
    (problem,) = settings.missing(model)
    assert variable in problem
    assert open_providers(settings, silence_seconds=1.0, prompt_caching=True, counts_tokens=True) == {}


def test_a_key_may_be_in_a_file(tmp_path: Any) -> None:
    path = tmp_path / "key"
    environment = {"OPENAI_API_KEY_FILE": str(path)}
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY cannot be read from"):
        load(ModelProviderSettings, environment, prefix="TENURE_WORKER_")
    path.write_text("sk-file\n")
    settings = load(ModelProviderSettings, environment, prefix="TENURE_WORKER_")
    providers: Any = open_providers(settings, silence_seconds=1.0, prompt_caching=True, counts_tokens=True)
    assert set(providers) == {OPENAI}
    assert providers[OPENAI]._client.api_key == "sk-file"
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY_FILE too; unset one of them") as refused:
        load(ModelProviderSettings, {**environment, "OPENAI_API_KEY": "sk-hidden"}, prefix="TENURE_WORKER_")
    assert "sk-" not in str(refused.value)
