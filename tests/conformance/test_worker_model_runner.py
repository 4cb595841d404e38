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
from tenure.domain import entries as facts
from tenure.domain.budget import TokenUsage
from tenure.domain.errors import StaleEpoch, Unavailable
from tenure.domain.retry import FailureClass
from tenure.domain.states import TaskState
from tenure.domain.tools import OutcomeStatus
from tenure.model_providers.client import ModelAnswer, ModelCallFailed, ModelRequest
from tenure.runtime.rpc_client import open_channel
from tenure.v1 import ledger_pb2, task_pb2, token_pb2
from tenure.v1 import model_service_pb2 as pb
from tenure.v1.model_service_pb2_grpc import ModelServiceServicer, add_ModelServiceServicer_to_server
from tenure.wire.common import duration, state_name
from tests.support.fix_worker import WorkerBench
from tests.support.patience import PATIENCE_SECONDS

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
    """What a call told its worker."""

    texts: list[tuple[int, str]] = field(default_factory=list)
    usages: int = 0
    waits: int = 0

    def events(self) -> CallEvents:
        return CallEvents(lambda block, text: self.texts.append((block, text)), self.on_usage, self.on_wait)

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
    assert runner.requests[0].takes_bundles


async def test_a_broken_stream_is_joined_without_a_gap() -> None:
    broken = parts(SENT, piece("Hel", 0), then=grpc.StatusCode.UNAVAILABLE)
    ended = parts(JOINED, piece("Hello w", 0))
    whole = parts(JOINED, piece("Hello world", 0), pb.GenerateResponse(answer=answer()))
    runner, heard = ScriptedRunner([broken, ended, whole]), Heard()
    await ask(runner, heard)
    assert heard.texts == [(0, "Hel"), (0, "lo w"), (0, "orld")]
    assert len({request.SerializeToString(deterministic=True) for request in runner.requests}) == 1


async def test_a_gap_in_the_text_asks_for_the_call_again() -> None:
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


async def test_a_runner_that_is_away_too_long_gives_the_task_back(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_call_that_waits_for_its_turn_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_runner, "STILL_WAITING_SECONDS", 0.05)
    heard = Heard()

    async def wait_for_turn(_context: Any) -> AsyncIterator[pb.GenerateResponse]:
        yield pb.GenerateResponse(state=pb.GenerationState(kind=pb.GenerationState.KIND_ACCEPTED))
        while heard.waits < 3:
            await asyncio.sleep(0.01)
        yield pb.GenerateResponse(answer=answer())

    await ask(ScriptedRunner([wait_for_turn]), heard)
    assert heard.waits >= 3


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


async def test_a_count_that_fails_is_none() -> None:
    async with models_of(ScriptedRunner([])) as models:
        assert await models.count(ATTEMPT, REQUEST) is None


async def never_ends(_context: Any) -> AsyncIterator[pb.GenerateResponse]:
    yield SENT
    await asyncio.Event().wait()


async def cancelled_task(bench: WorkerBench, runner: ScriptedRunner) -> list[facts.Entry]:
    """The ledger of a task that was cancelled while its call ran at the runner."""
    async with served(runner) as address:
        await bench.start_worker(models_address=address)
        task_id = await bench.submit("sim-1")
        await bench.reached(task_id, facts.ModelAttempt)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not runner.requests:
                await asyncio.sleep(0.05)
        await bench.cancel(task_id)
        task = await bench.ended(task_id)
    assert state_name(task.state) == TaskState.CANCELLED
    assert task.budget.reserved_tokens == 0
    return await bench.entries(task_id)


@pytest.mark.server
async def test_an_answer_before_the_cancel_is_kept(bench: WorkerBench) -> None:
    """The provider was paid for it, so it is in the ledger; its tool calls are not made."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "append_record", "input": {"file": "f", "line": "l"}}
    content = [{"type": "text", "text": "I write."}, use]
    kept = answer()
    kept.attempt_number, kept.content_json, kept.stop_reason = 1, json.dumps(content), "tool_use"
    runner = ScriptedRunner([never_ends], pb.CancelGenerationResponse(answer=kept))
    bodies = [entry.body for entry in await cancelled_task(bench, runner)]
    (message,) = [body for body in bodies if isinstance(body, facts.AssistantMessage)]
    assert (message.usage, message.provider_request_id) == (TokenUsage(7, 3), "req_1")
    (outcome,) = [body for body in bodies if isinstance(body, facts.ToolOutcome)]
    assert outcome.outcome.status is OutcomeStatus.NOT_RUN
    assert isinstance(bodies[-1], facts.Transition)
    assert bodies[-1].result == "I write."


@pytest.mark.server
@pytest.mark.parametrize("status", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION])
async def test_a_cancel_that_no_runner_hears_ends_the_task(bench: WorkerBench, status: grpc.StatusCode) -> None:
    """The ledger settles the call as lost; the runner reports what it used as soon as it is back.

    FAILED_PRECONDITION: the runners have a later call of the task, as after a restore of the ledger alone.
    """
    runner = ScriptedRunner([never_ends], cancel_status=status)
    bodies = [entry.body for entry in await cancelled_task(bench, runner)]
    assert runner.cancels >= 1
    assert [type(body) for body in bodies if isinstance(body, facts.AttemptLost | facts.ModelFailure)] == [
        facts.AttemptLost
    ]


@pytest.mark.server
async def test_every_owner_names_the_epoch_of_the_reservation(bench: WorkerBench) -> None:
    """By it a runner knows, after a restore, whether its recorded call is the one that the ledger means."""
    runner = ScriptedRunner([never_ends], pb.CancelGenerationResponse())
    async with served(runner) as address:
        first = await bench.start_worker(models_address=address)
        task_id = await bench.submit("sim-1")
        for requests in (1, 2):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(runner.requests) < requests:
                    await asyncio.sleep(0.05)
            if requests == 1:
                first.kill()
                await bench.start_worker(models_address=address)
        joined_under = (await bench.task(task_id)).epoch
        await bench.cancel(task_id)
        await bench.ended(task_id)
    (reserved,) = [one.epoch for one in await bench.entries(task_id) if isinstance(one.body, facts.ModelAttempt)]
    assert [request.reserved_epoch for request in runner.requests] == [reserved, reserved]
    assert reserved < joined_under
