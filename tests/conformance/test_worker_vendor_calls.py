"""The clients of the vendors' libraries over a scripted model runner: one request, no gap, and their own errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import httpx2
import openai
import pytest
from anthropic import AsyncAnthropic

from services.worker.control.model_calls import AttemptReport
from services.worker.vendor_calls import VendorCalls
from tenure.agents import vendor_clients
from tenure.agents.failures import ModelRequestFailed, refuses_images
from tenure.agents.openai_agents.model_errors import recorded_failures
from tenure.agents.vendor_clients import by_runner, name_missing_keys, sending
from tenure.control.failures import failure_of_call
from tenure.control.model_calls import ModelCallAnswer, ModelCallReport, VendorCallFailed, VendorRequest
from tenure.domain.budget import TokenUsage
from tenure.domain.entries import ModelAttempt
from tenure.domain.errors import StaleEpoch
from tenure.domain.retry import FailureClass
from tenure.model_providers.client import ModelAnswer, ModelCallFailed
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import model_service_pb2 as pb
from tenure.wire.common import duration
from tests.conformance.test_worker_model_runner import ATTEMPT, JOINED, SENT, Heard, ScriptedRunner, models_of, parts


def events(*texts: str) -> bytes:
    """A streamed answer of Chat Completions."""
    chunks = [{"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"} for _ in texts]
    deltas = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    lines = [f"data: {json.dumps(chunk | delta)}\n\n" for chunk, delta in zip(chunks, deltas, strict=True)]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def body(data: bytes, offset: int = 0, content_type: str = "text/event-stream") -> pb.GenerateResponse:
    part = pb.VendorPart(content_type=content_type, provider_request_id="req_1", offset=offset, data=data)
    return pb.GenerateResponse(vendor_part=part)


END = pb.GenerateResponse(
    vendor_end=pb.VendorEnd(usage=task_pb2.TokenUsage(input_tokens=7, output_tokens=3), provider_request_id="req_1")
)


def failed(error_class: str, status: int = 0, after: float | None = None) -> pb.GenerateResponse:
    failure = ledger_pb2.ModelFailure(
        attempt_number=2,
        error_class=error_class,
        message="as the runner says",
        status_code=status,
        retry_after=None if after is None else duration(after),
    )
    return pb.GenerateResponse(failure=failure)


@asynccontextmanager
async def calls_of(runner: ScriptedRunner) -> AsyncIterator[VendorCalls]:
    async with models_of(runner) as models:
        calls = VendorCalls(models, ATTEMPT, Heard().events(), max_output_tokens=100_000, timeout_seconds=30.0)
        with sending(calls.send):
            yield calls
        calls.close()


def client() -> openai.AsyncOpenAI:
    made = openai.AsyncOpenAI(api_key="sk-at-the-worker", base_url="https://api.openai.com/v1", max_retries=0)
    assert by_runner(made)
    assert by_runner(made)
    return made


async def said(made: openai.AsyncOpenAI, prompt: str = "hi") -> str:
    stream = await made.chat.completions.create(
        model="gpt-5", messages=[{"role": "user", "content": prompt}], stream=True
    )
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def test_response_is_read_without_a_gap_after_breaks() -> None:
    whole = events("Hel", "lo ", "world")
    broken = parts(SENT, body(b""), body(whole[:150]), then=grpc.StatusCode.UNAVAILABLE)
    gap = parts(JOINED, body(whole[200:], 200), END)
    joined = parts(JOINED, body(whole[:40]), body(whole[40:], 40), END)
    runner = ScriptedRunner([broken, gap, joined])
    async with calls_of(runner) as calls:
        assert await said(client()) == "Hello world"
    assert isinstance(calls.ended, ModelAnswer)
    assert (calls.ended.usage, calls.ended.request_id, calls.failed) == (TokenUsage(7, 3), "req_1", None)
    assert len({request.SerializeToString(deterministic=True) for request in runner.requests}) == 1
    request = runner.requests[0]
    assert (request.step, request.attempt_number, request.max_output_tokens) == (3, 2, 64_000)
    assert request.vendor_request.path == "/chat/completions"
    assert json.loads(request.vendor_request.body)["model"] == "gpt-5"
    assert b"sk-at-the-worker" not in request.SerializeToString()


async def test_whole_response_has_its_id_and_its_beta() -> None:
    answer = {
        "id": "m", "type": "message", "role": "assistant", "model": "claude", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "Hello"}], "usage": {"input_tokens": 7, "output_tokens": 3},
    }  # fmt: skip
    runner = ScriptedRunner([parts(SENT, body(json.dumps(answer).encode(), content_type="application/json"), END)])
    anthropic = AsyncAnthropic(api_key="sk", base_url="https://api.anthropic.com", max_retries=0)
    assert by_runner(anthropic)
    async with calls_of(runner):
        message = await anthropic.beta.messages.create(
            model="claude", max_tokens=9, messages=[{"role": "user", "content": "hi"}], betas=["files-api-2025-04-14"]
        )
    assert (message.content[0].type, message._request_id) == ("text", "req_1")
    sent = runner.requests[0].vendor_request
    assert (sent.path, sent.beta) == ("/v1/messages", "files-api-2025-04-14")


async def test_answer_is_billed_as_the_runner_read_it() -> None:
    """The client reads up to [DONE], and the runner's end comes later."""
    runner = ScriptedRunner([parts(SENT, body(events("Hello")), body(b"", len(events("Hello"))), END)])
    async with calls_of(runner) as calls:
        attempt = ModelAttempt(2, "openai/gpt-5", 10, 20, 30)
        report = AttemptReport("task", 3, attempt, 30.0, lambda *_: None, lambda: None, vendor_calls=calls)

        async def run(_report: ModelCallReport) -> ModelCallAnswer:
            return ModelCallAnswer(result=1, text=await said(client()), usage=TokenUsage(7, 1))

        answer = await report.make(run)
    assert answer.usage == report.usage == TokenUsage(7, 3)


async def test_request_with_a_query_goes_to_the_runner() -> None:
    """As that of Azure. Sent directly, it would be paid again by the next owner, which joins no direct request."""
    runner = ScriptedRunner([parts(SENT, body(events("Hello")), END)])
    made = client().with_options(default_query={"api-version": "preview"})
    async with calls_of(runner):
        assert await said(made) == "Hello"
    assert runner.requests[0].vendor_request.path == "/chat/completions?api-version=preview"


async def test_too_large_request_is_refused_as_by_the_provider() -> None:
    """So the agent makes it again without its images. The limit of a message would be an error of gRPC."""
    runner = ScriptedRunner([])
    async with calls_of(runner):
        with pytest.raises(ModelRequestFailed, match=r"413: .* 33554432 bytes") as refused, recorded_failures():
            await said(client(), "x" * 33_554_432)
    assert refuses_images(failure_of_call(refused.value).failure)
    assert runner.requests == []


@pytest.mark.parametrize(
    ("end", "error", "status"),
    [
        (failed("RATE_LIMITED", 429, 2.5), openai.RateLimitError, 429),
        (failed("INVALID_REQUEST", 400), openai.BadRequestError, 400),
        (failed("NOT_FOUND"), openai.BadRequestError, 400),  # the runner has no endpoint: no retry helps
        (failed("LOST"), openai.APIConnectionError, 0),
        (failed("TIMEOUT"), openai.APIConnectionError, 0),
    ],
)
async def test_failure_is_an_error_of_the_library(
    end: pb.GenerateResponse, error: type[openai.APIError], status: int
) -> None:
    async with calls_of(ScriptedRunner([parts(SENT, end)])) as calls:
        with pytest.raises(error) as raised:
            await said(client())
    assert isinstance(calls.ended, ModelCallFailed)
    assert calls.ended.error_class == end.failure.error_class
    assert ("FUNCTIONS_USE_RUNNER" in calls.ended.message) == (end.failure.error_class == "NOT_FOUND")
    if isinstance(raised.value, openai.APIStatusError):
        assert raised.value.status_code == status
        assert "as the runner says" in raised.value.message
        after = raised.value.response.headers.get("retry-after")
        assert after == ("2.5" if end.failure.HasField("retry_after") else None)


async def test_failure_in_a_response_breaks_its_stream() -> None:
    runner = ScriptedRunner([parts(SENT, body(events("Hel", "lo")[:150]), failed("BROKEN_STREAM"))])
    async with calls_of(runner) as calls:
        with pytest.raises((httpx2.ReadError, openai.APIConnectionError)):
            await said(client())
    assert calls.failed is not None
    assert calls.failed.error_class is FailureClass.BROKEN_STREAM


async def test_attempt_is_one_request_and_a_repeat_joins_it() -> None:
    runner = ScriptedRunner([parts(SENT, body(events("Hello")), END)])
    async with calls_of(runner):
        made = client()
        assert await said(made) == await said(made) == "Hello"
        with pytest.raises(openai.BadRequestError, match="two different requests"):
            await said(made, "another one")
    assert len(runner.requests) == 2


async def test_lost_claim_ends_the_work_and_not_the_call() -> None:
    async def stale(context: Any) -> AsyncIterator[pb.GenerateResponse]:
        error = StaleEpoch("a higher epoch exists")
        context.set_trailing_metadata((("tenure-error-reason", error.reason),))
        await context.abort(grpc.StatusCode.ABORTED, "a higher epoch exists")
        yield SENT

    async with calls_of(ScriptedRunner([stale])) as calls:
        with pytest.raises(openai.APIConnectionError):
            await said(client())
    assert calls.leaves is not None
    assert calls.ended is None


async def test_request_outside_of_a_model_call_goes_to_the_provider() -> None:
    seen: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.url.path)
        return httpx2.Response(200, json={"object": "list", "data": []})

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    made = openai.AsyncOpenAI(api_key="k", base_url="https://api.openai.com/v1", http_client=http, max_retries=0)
    assert by_runner(made)

    async def refuse(_request: VendorRequest) -> Any:
        raise VendorCallFailed("not this one", status_code=400, retryable=False, retry_after_seconds=None)

    with sending(refuse):
        await made.models.list()
    assert await said(made) == ""
    assert seen == ["/v1/models", "/v1/chat/completions"]


def test_only_clients_of_the_runners_endpoints_are_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://gateway:4000/v1/")
    monkeypatch.setattr(vendor_clients, "usual_address", vendor_clients.usual_address.__wrapped__)
    at = {url: openai.AsyncOpenAI(api_key="k", base_url=url) for url in ("https://api.openai.com/v1", "http://own/v1")}
    azure = openai.AsyncAzureOpenAI(api_key="k", azure_endpoint="https://a.openai.azure.com", api_version="2024-10-21")
    assert by_runner(openai.AsyncOpenAI(api_key="k"))
    assert [by_runner(made) for made in (*at.values(), azure, openai.OpenAI(api_key="k"), None)] == [
        False, False, False, False, False,
    ]  # fmt: skip


def test_missing_keys_name_the_runner() -> None:
    environment = {"OPENAI_API_KEY": "sk-mine"}
    name_missing_keys(environment)
    assert environment == {"OPENAI_API_KEY": "sk-mine", "ANTHROPIC_API_KEY": "ANTHROPIC_API_KEY-is-at-the-model-runner"}
    for keyless in (dict[str, str](), {"OPENAI_API_KEY": "", "ANTHROPIC_API_KEY": ""}):
        name_missing_keys(keyless)
        assert keyless == {
            "ANTHROPIC_API_KEY": "ANTHROPIC_API_KEY-is-at-the-model-runner",
            "OPENAI_API_KEY": "OPENAI_API_KEY-is-at-the-model-runner",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
        }
    name_missing_keys(with_token := {"ANTHROPIC_AUTH_TOKEN": "token"})
    assert "ANTHROPIC_API_KEY" not in with_token
