"""The client of the model runners, whose calls outlive this worker.

A call is begun or joined by the same request, so every repeat is safe: the provider gets one request for each attempt.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final, Protocol

import grpc

from services.worker.interrupts import TrustGate
from services.worker.models import CallEvents, ClaimedAttempt, FollowedCall
from tenure.domain import entries
from tenure.domain.budget import TokenUsage
from tenure.domain.errors import InvalidRequest, TryLater, Unavailable, WrongState
from tenure.domain.model_parameters import NO_PARAMETERS
from tenure.domain.retry import FailureClass, RetryPolicy
from tenure.model_providers.client import ModelAnswer, ModelCallFailed, ModelRequest
from tenure.model_providers.message_texts import TOOL_TEXTS, as_json
from tenure.runtime.observability import metrics
from tenure.runtime.rpc.client import TenureChannel
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import ledger_pb2, tool_pb2
from tenure.v1 import model_service_pb2 as pb
from tenure.v1 import model_service_pb2_grpc as grpc_pb
from tenure.wire.common import PRIORITIES, duration
from tenure.wire.ledger import body_to_domain
from tenure.wire.model_service import REQUEST_DIFFERS
from tenure.wire.task import parameters_to_wire, usage_to_domain

_log: Final = logging.getLogger(__name__)
AGAIN: Final = RetryPolicy(initial_seconds=0.1, factor=2.0, cap_seconds=2.0)
PATIENCE_SECONDS: Final = 60.0
"""The time without a message of a model runner after which the claim is released. The call goes on, and the next owner
joins it.
"""

STILL_WAITING_SECONDS: Final = 10.0
"""How often a connected call without a message is announced as alive: a call at the rate limit may wait for long."""

CANCEL_TIMEOUT_SECONDS: Final = 30.0
COUNT_TIMEOUT_SECONDS: Final = 10.0
_MAYBE_ANSWERED: Final = frozenset({"BROKEN_STREAM", "UNUSABLE_ANSWER", "LOST"})
"""Failures of calls that the provider took: they are billed for their input at least."""


class RunnerModels:
    """The models behind the model runners. Calls outlive this worker."""

    outlives_worker = True

    def __init__(self, channel: TenureChannel, trust: TrustGate, *, timeout_seconds: float) -> None:
        self._channel, self._trust = channel, trust
        self._stub: Any = grpc_pb.ModelServiceStub(channel)
        self._is_broken = False
        self.timeout_seconds = timeout_seconds

    @property
    def in_reach(self) -> bool:
        """False from a broken stream until a connection is ready or a call gives a sign again."""
        return not self._is_broken or self._channel.get_state(True) is grpc.ChannelConnectivity.READY

    def note_reach(self, *, is_broken: bool) -> None:
        """Takes from a call whether its newest stream broke."""
        self._is_broken = is_broken

    def call(self, attempt: ClaimedAttempt, request: ModelRequest, events: CallEvents) -> FollowedCall:
        """Returns the call of the attempt. Its `answer` begins or joins it."""
        sent = {
            "prompt": _prompt(request),
            "max_output_tokens": request.max_output_tokens,
            "timeout": duration(request.timeout_seconds) if request.timeout_seconds else None,
            "input_tokens": request.input_tokens,
        }
        return RunnerCall(self._stub, self._trust, attempt, sent, events, self.note_reach)

    def pass_on(self, attempt: ClaimedAttempt, sent: Mapping[str, Any], events: CallEvents) -> VendorRunnerCall:
        """Returns the call that passes a vendor's request on. `sent`: the fields of the request to the runner."""
        return VendorRunnerCall(self._stub, self._trust, attempt, sent, events, self.note_reach)

    async def cancel(self, attempt: ClaimedAttempt) -> ModelAnswer | None:
        """Stops the call at its runner. Repeatable."""
        request = pb.CancelGenerationRequest(
            token=attempt.token(),
            step=attempt.step,
            attempt_number=attempt.attempt_number,
            reserved_epoch=attempt.reserved_epoch,
        )
        answer = await self._stub.CancelGeneration(request, timeout=CANCEL_TIMEOUT_SECONDS)
        match answer.WhichOneof("end"):
            case "answer":
                return _answer(answer.answer)
            case "vendor_end":
                return _vendor_answer(answer.vendor_end)
            case "failure":
                raise _failure(answer.failure)
            case _:
                return None

    async def count(self, attempt: ClaimedAttempt, request: ModelRequest) -> int | None:
        """Returns the provider's count, or None. A failure is not an error: the worker's own bound remains."""
        counting = pb.CountInputTokensRequest(token=attempt.token(), prompt=_prompt(request))
        try:
            counted = await self._stub.CountInputTokens(counting, timeout=COUNT_TIMEOUT_SECONDS)
        except (TryLater, PeerFailed, InvalidRequest) as error:
            _log.warning("the model runner did not count a prompt", extra={"why": str(error)})
            return None
        return counted.input_tokens if counted.HasField("input_tokens") else None


class NoteReach(Protocol):
    """Takes whether the newest stream of a call broke."""

    def __call__(self, *, is_broken: bool) -> None: ...


class RunnerCall:
    """A call at a model runner, as this worker follows it. `sent`: what is sent, as fields of the request."""

    def __init__(
        self,
        stub: Any,
        trust: TrustGate,
        attempt: ClaimedAttempt,
        sent: Mapping[str, Any],
        events: CallEvents,
        note_reach: NoteReach,
    ) -> None:
        self._stub, self._trust, self._attempt, self._sent = stub, trust, attempt, sent
        self._events, self._note_reach = events, note_reach
        self._lengths: dict[int, int] = {}
        self._heard_at = monotonic()
        self._alarm: asyncio.TimerHandle | None = None
        self.usage, self.request_id = TokenUsage(), ""

    async def answer(self) -> ModelAnswer:
        """Begins or joins the call, again after each broken stream. Raises ModelCallFailed.

        Raises TryLater or PeerFailed when no runner gave a message for too long.
        """
        self._heard_at, failures = monotonic(), 0
        while True:
            await self._trust.wait_open()
            before = self._heard_at
            try:
                return await self._follow()
            except (InvalidRequest, WrongState) as refusal:  # no repeat can help, and nothing was sent
                differs = isinstance(refusal, WrongState) and refusal.reason == REQUEST_DIFFERS
                error_class = FailureClass.INTERRUPTED if differs else FailureClass.INVALID_REQUEST
                raise ModelCallFailed(error_class, str(refusal)) from refusal
            except (TryLater, PeerFailed) as error:
                if self._heard_at == before:
                    failures += 1
                else:  # the stream was there until now, however long the call said nothing
                    failures, self._heard_at = 1, monotonic()
                retry_after = error.retry_after_seconds if isinstance(error, TryLater) else None
                wait_seconds = AGAIN.wait_seconds(failures, random.random(), retry_after)
                if monotonic() + wait_seconds - self._heard_at >= PATIENCE_SECONDS:
                    raise
                self._note_break(error)
            await asyncio.sleep(wait_seconds)

    def _note_break(self, error: TryLater | PeerFailed) -> None:
        self._note_reach(is_broken=isinstance(error, Unavailable))
        reason = error.reason if isinstance(error, TryLater) else "PEER_FAILED"
        metrics.count("tenure_worker_model_rejoins_total", reason=reason)
        _log.info("a model call is asked for again", extra={"step": self._attempt.step, "why": str(error)})
        self._events.on_wait()

    async def _follow(self) -> ModelAnswer:
        """Reads the call's stream to its end."""
        stream = self._stub.Generate(self._generate())
        self._announce_wait()
        try:
            while True:
                message = await stream.read()
                if not isinstance(message, pb.GenerateResponse):
                    text = "the model runner ended the stream before the end of the call"
                    raise Unavailable(text, reason="STREAM_ENDED")
                self._heard_at = monotonic()
                self._note_reach(is_broken=False)
                for part in message.bundle.parts if message.HasField("bundle") else (message,):
                    if (answer := self._take(part)) is not None:
                        return answer
        finally:
            stream.cancel()
            if self._alarm is not None:
                self._alarm.cancel()

    def _take(self, part: pb.GenerateResponse) -> ModelAnswer | None:
        """Takes a part. Returns the answer if it is the end. Raises ModelCallFailed if the end is a failure."""
        self._events.on_state(part.state.kind == pb.GenerationState.KIND_ACCEPTED)
        match part.WhichOneof("part"):
            case "state":
                self._take_state(part.state)
            case "text":
                self._take_text(part.text)
            case "usage":
                self.usage = usage_to_domain(part.usage)
                self._events.on_usage()
            case "answer":
                return self._ended(_answer(part.answer))
            case "failure":
                raise _failure(part.failure)
        return None

    def _announce_wait(self) -> None:
        """Announces a connected call without a message as alive, again and again: it may wait at the rate limit."""
        if monotonic() - self._heard_at >= STILL_WAITING_SECONDS:
            self._events.on_wait()
        self._alarm = asyncio.get_running_loop().call_later(STILL_WAITING_SECONDS, self._announce_wait)

    def _take_state(self, state: pb.GenerationState) -> None:
        if state.joined:
            metrics.count("tenure_worker_model_calls_joined_total")
            fields = {"step": self._attempt.step, "state": pb.GenerationState.Kind.Name(state.kind)}
            _log.info("a model call is joined", extra=fields)

    def _take_text(self, text: pb.GeneratedText) -> None:
        """Passes on the part of a piece that is new: a joined call sends its text from the beginning."""
        known = self._lengths.get(text.block, 0)
        if text.offset > known:
            raise Unavailable("the model runner left out text of the call", reason="TEXT_GAP")
        if new := text.text[known - text.offset :]:
            self._lengths[text.block] = known + len(new)
            self._events.on_text(text.block, new)
            self._events.on_usage()

    def _ended(self, answer: ModelAnswer) -> ModelAnswer:
        self.usage, self.request_id = answer.usage, answer.request_id
        return answer

    def _generate(self) -> pb.GenerateRequest:
        attempt = self._attempt
        return pb.GenerateRequest(
            token=attempt.token(),
            step=attempt.step,
            attempt_number=attempt.attempt_number,
            priority=PRIORITIES.to_wire(attempt.priority),
            reserved_epoch=attempt.reserved_epoch,
            **self._sent,
        )


class VendorRunnerCall(RunnerCall):
    """A call whose response the runner passes on as it came. `body`: what has arrived. `content_type` "": nothing yet.

    `on_news`: the response has begun, or goes on.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.content_type, self.body = "", bytearray()
        self.on_news: Callable[[], None] = lambda: None

    def _take(self, part: pb.GenerateResponse) -> ModelAnswer | None:
        match part.WhichOneof("part"):
            case "vendor_part":
                self._take_body(part.vendor_part)
            case "vendor_end":
                return self._ended(_vendor_answer(part.vendor_end))
            case _:
                return super()._take(part)
        return None

    def _take_body(self, part: pb.VendorPart) -> None:
        """Keeps the part of a piece that is new: a joined call sends its response from the beginning."""
        self.content_type, self.request_id = part.content_type, part.provider_request_id
        if part.offset > len(self.body):
            raise Unavailable("the model runner left out a part of the response", reason="TEXT_GAP")
        self.body += part.data[len(self.body) - part.offset :]
        self.on_news()
        self._events.on_usage()


def _vendor_answer(end: pb.VendorEnd) -> ModelAnswer:
    """Returns what is known of a response without its content."""
    usage = usage_to_domain(end.usage)
    return ModelAnswer((), "", usage, model="", request_id=end.provider_request_id, latency_seconds=0.0)


def _prompt(request: ModelRequest) -> pb.Prompt:
    return pb.Prompt(
        model=request.model,
        system=request.system,
        messages_json=request.texts or map(as_json, request.messages),
        tools=[
            tool_pb2.ToolDefinition(
                name=tool["name"],
                description=tool["description"],
                input_schema_json=TOOL_TEXTS.of(tool["input_schema"]),
            )
            for tool in request.tools
        ],
        is_repeated_soon=request.is_repeated_soon,
        parameters=None if request.parameters == NO_PARAMETERS else parameters_to_wire(request.parameters),
    )


def _answer(message: ledger_pb2.AssistantMessage) -> ModelAnswer:
    body = body_to_domain(ledger_pb2.EntryBody(assistant_message=message))
    assert isinstance(body, entries.AssistantMessage), "the body has this kind"
    return ModelAnswer(
        content=body.content,
        stop_reason=body.stop_reason,
        usage=body.usage,
        model=body.model,
        request_id=body.provider_request_id,
        latency_seconds=body.latency_seconds,
        usage_estimated=body.usage_estimated,
        context_window_tokens=body.context_window_tokens,
    )


def _failure(message: ledger_pb2.ModelFailure) -> ModelCallFailed:
    """Returns the recorded failure. A class that only a newer runner knows counts as a server error."""
    known = message.error_class in FailureClass.__members__
    failure = ModelCallFailed(
        FailureClass(message.error_class) if known else FailureClass.SERVER_ERROR,
        message.message,
        status_code=message.status_code,
        retry_after_seconds=message.retry_after.ToMilliseconds() / 1000 if message.HasField("retry_after") else None,
    )
    failure.usage, failure.request_id = usage_to_domain(message.usage), message.provider_request_id
    failure.context_window_tokens = message.context_window_tokens
    failure.refused_tools = tuple(message.refused_tools)
    failure.was_answered = failure.usage.total > 0 or message.error_class in _MAYBE_ANSWERED
    return failure
