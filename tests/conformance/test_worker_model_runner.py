"""The client of the model runners against a scripted runner behind a socket: it joins, and never asks anew."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from services.worker import model_runner
from services.worker.interrupts import TrustGate, trust_clock
from services.worker.model_runner import RunnerModels
from services.worker.models import CallEvents, ClaimedAttempt
from tenure.domain.budget import TokenUsage
from tenure.domain.errors import StaleEpoch, Unavailable
from tenure.domain.retry import FailureClass
from tenure.model_providers.client import ModelAnswer, ModelCallFailed, ModelRequest
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import ledger_pb2, task_pb2, token_pb2
from tenure.v1 import model_service_pb2 as pb
from tenure.v1.model_service_pb2_grpc import ModelServiceServicer, add_ModelServiceServicer_to_server
from tenure.wire.common import duration

ACCEPTED = pb.GenerateResponse(state=pb.GenerationState(kind=pb.GenerationState.KIND_ACCEPTED))
SENT = pb.GenerateResponse(state=pb.GenerationState(kind=pb.GenerationState.KIND_SENT))
JOINED = pb.GenerateResponse(state=pb.GenerationState(kind=pb.GenerationState.KIND_SENT, joined=True))
Script = Callable[[Any], AsyncIterator[pb.GenerateResponse]]


def piece(text: str, offset: int, block: int = 0) -> pb.GenerateResponse:
    return pb.GenerateResponse(text=pb.GeneratedText(block=block, offset=offset, text=text))


def usage(output: int) -> pb.GenerateResponse:
    return pb.GenerateResponse(usage=task_pb2.TokenUsage(input_tokens=7, output_tokens=output))


def answer(text: str = "Hello world") -> ledger_pb2.AssistantMessage:
    return ledger_pb2.AssistantMessage(
        attempt_number=2,
        content_json=json.dumps([{"type": "text", "text": text}]),
        stop_reason="end_turn",
        usage=task_pb2.TokenUsage(input_tokens=7, output_tokens=3),
        model="sim-1",
        provider_request_id="req_1",
        latency=duration(1.5),
    )


@dataclass
class ScriptedRunner(ModelServiceServicer):
    """Answers each request of Generate by the next script; after the last one by that again."""

    scripts: list[Script]
    cancelled: pb.CancelGenerationResponse | None = None
    cancels: int = 0
    cancel_status: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    requests: list[pb.GenerateRequest] = field(default_factory=list)

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        self.requests.append(request)
        script = self.scripts[min(len(self.requests), len(self.scripts)) - 1]
        async for part in script(context):
            yield part

    async def CancelGeneration(self, _request: Any, context: Any) -> pb.CancelGenerationResponse:
        self.cancels += 1
        if self.cancelled is None:
            await context.abort(self.cancel_status, "as the test wants it")
        assert self.cancelled is not None
        return self.cancelled

    async def CountInputTokens(self, _request: pb.CountInputTokensRequest, context: Any) -> pb.CountInputTokensResponse:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "draining")
        raise AssertionError("unreachable: abort raises")


def parts(*messages: pb.GenerateResponse, then: grpc.StatusCode | None = None) -> Script:
    async def play(context: Any) -> AsyncIterator[pb.GenerateResponse]:
        for message in messages:
            yield message
        if then is not None:
            await context.abort(then, "as the test wants it")

    return play


@dataclass
class Heard:
    """The events of a call at its worker."""

    texts: list[tuple[int, str]] = field(default_factory=list)
    usages: int = 0
    waits: int = 0
    held: list[bool] = field(default_factory=list)

    def events(self) -> CallEvents:
        on_text: Callable[[int, str], None] = lambda block, text: self.texts.append((block, text))  # noqa: E731
        return CallEvents(on_text, self.on_usage, self.on_wait, self.held.append)

    def on_usage(self) -> None:
        self.usages += 1

    def on_wait(self) -> None:
        self.waits += 1


ATTEMPT = ClaimedAttempt(token_pb2.FencingToken, 3, 2)
REQUEST = ModelRequest("sim-1", [{"role": "user", "content": "hi"}], 100, system="be kind", timeout_seconds=30.0)


@asynccontextmanager
async def served(runner: ScriptedRunner) -> AsyncIterator[str]:
    """The address at which it answers."""
    server = grpc.aio.server()
    add_ModelServiceServicer_to_server(runner, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def models_of(runner: ScriptedRunner) -> AsyncIterator[RunnerModels]:
    trust = TrustGate()
    trust.begin(trust_clock(), 3600.0)
    async with served(runner) as address, open_channel(address) as channel:
        yield RunnerModels(channel, trust, timeout_seconds=60.0)


async def ask(runner: ScriptedRunner, heard: Heard | None = None) -> ModelAnswer:
    async with models_of(runner) as models, asyncio.timeout(60):
        return await models.call(ATTEMPT, REQUEST, (heard or Heard()).events()).answer()


async def test_an_answer_arrives_with_its_text_and_usage() -> None:
    runner = ScriptedRunner(
        [parts(SENT, piece("Hello ", 0), usage(1), piece("world", 6), pb.GenerateResponse(answer=answer()))]
    )
    heard = Heard()
    got = await ask(runner, heard)
    assert heard.texts == [(0, "Hello "), (0, "world")]
    assert (got.content, got.usage, got.request_id) == (
        ({"type": "text", "text": "Hello world"},),
        TokenUsage(7, 3),
        "req_1",
    )
    (request,) = runner.requests
    assert (request.step, request.attempt_number, request.max_output_tokens) == (3, 2, 100)
    assert list(request.prompt.messages_json) == ['{"role":"user","content":"hi"}']
    assert (request.prompt.model, request.prompt.system, request.timeout.seconds) == ("sim-1", "be kind", 30)


async def test_parts_in_a_bundle_are_read_in_their_order() -> None:
    first = pb.GenerationBundle(parts=[SENT, piece("Hello ", 0), usage(1)])
    last = pb.GenerationBundle(parts=[piece("world", 6), usage(2), pb.GenerateResponse(answer=answer())])
    runner = ScriptedRunner([parts(pb.GenerateResponse(bundle=first), pb.GenerateResponse(bundle=last))])
    heard = Heard()
    got = await ask(runner, heard)
    assert heard.texts == [(0, "Hello "), (0, "world")]
    assert (got.usage, got.request_id) == (TokenUsage(7, 3), "req_1")


async def test_a_broken_stream_is_joined_without_a_gap() -> None:
    broken = parts(SENT, piece("Hel", 0), then=grpc.StatusCode.UNAVAILABLE)
    ended = parts(JOINED, piece("Hello w", 0))
    whole = parts(JOINED, piece("Hello world", 0), pb.GenerateResponse(answer=answer()))
    runner, heard = ScriptedRunner([broken, ended, whole]), Heard()
    await ask(runner, heard)
    assert heard.texts == [(0, "Hel"), (0, "lo w"), (0, "orld")]
    assert len({request.SerializeToString(deterministic=True) for request in runner.requests}) == 1


async def test_gap_in_the_text_requests_the_call_again() -> None:
    runner = ScriptedRunner(
        [
            parts(SENT, piece("world", 6), pb.GenerateResponse(answer=answer())),
            parts(JOINED, piece("Hello world", 0), pb.GenerateResponse(answer=answer())),
        ]
    )
    heard = Heard()
    await ask(runner, heard)
    assert heard.texts == [(0, "Hello world")]


@pytest.mark.parametrize(
    ("error_class", "known"),
    [("OVERLOADED", FailureClass.OVERLOADED), ("OF_A_NEWER_RUNNER", FailureClass.SERVER_ERROR)],
)
async def test_a_recorded_failure_is_the_calls_failure(error_class: str, known: FailureClass) -> None:
    failure = ledger_pb2.ModelFailure(
        attempt_number=2, error_class=error_class, message="busy", status_code=529, retry_after=duration(2.5)
    )
    with pytest.raises(ModelCallFailed) as failed:
        await ask(ScriptedRunner([parts(SENT, pb.GenerateResponse(failure=failure))]))
    assert (failed.value.error_class, failed.value.status_code, failed.value.retry_after_seconds) == (known, 529, 2.5)
    assert failed.value.retryable


async def test_a_refused_request_is_a_failure_and_not_repeated() -> None:
    runner = ScriptedRunner([parts(then=grpc.StatusCode.INVALID_ARGUMENT)])
    with pytest.raises(ModelCallFailed) as failed:
        await ask(runner)
    assert failed.value.error_class is FailureClass.INVALID_REQUEST
    assert len(runner.requests) == 1


async def test_a_stale_claim_is_fenced() -> None:
    runner = ScriptedRunner([parts(then=grpc.StatusCode.ABORTED)])
    with pytest.raises(Exception) as fenced:
        await ask(runner)
    assert not isinstance(fenced.value, ModelCallFailed | Unavailable) or isinstance(fenced.value, StaleEpoch)
    assert len(runner.requests) == 1


async def test_task_is_released_when_no_runner_is_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_runner, "PATIENCE_SECONDS", 4.0)
    runner = ScriptedRunner([parts(then=grpc.StatusCode.UNAVAILABLE)])
    with pytest.raises(Unavailable):
        await ask(runner)
    assert len(runner.requests) > 1


async def test_a_stream_that_was_silent_for_long_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call at the rate limit says nothing for minutes; the drain of its runner must not cost the worker its claim."""
    monkeypatch.setattr(model_runner, "PATIENCE_SECONDS", 1.0)

    async def silent(context: Any) -> AsyncIterator[pb.GenerateResponse]:
        yield SENT
        await asyncio.sleep(1.5)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the runner drains")

    runner = ScriptedRunner([silent, parts(JOINED, pb.GenerateResponse(answer=answer()))])
    assert (await ask(runner)).usage == TokenUsage(7, 3)


async def test_a_worker_without_a_runner_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no tasks then; a connection that is ready again ends that."""
    monkeypatch.setattr(model_runner, "PATIENCE_SECONDS", 0.5)
    async with open_channel("127.0.0.1:9") as channel:
        trust = TrustGate()
        trust.begin(trust_clock(), 3600.0)
        models = RunnerModels(channel, trust, timeout_seconds=60.0)
        assert models.in_reach
        with pytest.raises(Unavailable):
            await models.call(ATTEMPT, REQUEST, Heard().events()).answer()
        assert not models.in_reach


async def test_waiting_call_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_runner, "STILL_WAITING_SECONDS", 0.05)
    heard = Heard()

    async def wait_for_turn(_context: Any) -> AsyncIterator[pb.GenerateResponse]:
        yield ACCEPTED
        while heard.waits < 3:
            await asyncio.sleep(0.01)
        yield pb.GenerateResponse(answer=answer())

    await ask(ScriptedRunner([wait_for_turn]), heard)
    assert heard.waits >= 3


async def test_call_waits_until_it_is_sent() -> None:
    heard = Heard()
    broken, sent = (
        parts(ACCEPTED, then=grpc.StatusCode.UNAVAILABLE),
        parts(ACCEPTED, SENT, pb.GenerateResponse(answer=answer())),
    )
    await ask(ScriptedRunner([broken, sent]), heard)
    assert heard.held == [True, True, False, False]


async def test_a_cancel_returns_how_the_call_ended() -> None:
    runner = ScriptedRunner([], pb.CancelGenerationResponse(answer=answer()))
    async with models_of(runner) as models:
        ended = await models.cancel(ATTEMPT)
        assert ended is not None
        assert ended.usage == TokenUsage(7, 3)
        runner.cancelled = pb.CancelGenerationResponse()
        assert await models.cancel(ATTEMPT) is None
        failure = ledger_pb2.ModelFailure(
            attempt_number=2, error_class="INTERRUPTED", message="stopped", usage=task_pb2.TokenUsage(output_tokens=4)
        )
        runner.cancelled = pb.CancelGenerationResponse(failure=failure)
        with pytest.raises(ModelCallFailed) as failed:
            await models.cancel(ATTEMPT)
    assert (failed.value.usage, failed.value.was_answered) == (TokenUsage(0, 4), True)


async def test_failed_count_returns_none() -> None:
    async with models_of(ScriptedRunner([])) as models:
        assert await models.count(ATTEMPT, REQUEST) is None
