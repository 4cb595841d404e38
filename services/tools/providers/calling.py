"""One call of a provider's tool: sent with its key and its claim's token, answered, or given up."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

import grpc

from services.tools.providers.refusals import read_refusal
from services.tools.providers.settings import ProviderSettings
from services.tools.sending import TELLING_SECONDS, AnswerLostError, Delivery, NotSentError, Sending, stale
from services.tools.tool import Arguments, CallContext, Tool, ToolAnswer
from tenure.domain.errors import TenureError
from tenure.domain.tools import EffectClass, OutcomeStatus, ToolDefinition
from tenure.runtime.rpc_channel import TenureChannel
from tenure.runtime.status import PeerFailed
from tenure.runtime.tenancy import as_tenant
from tenure.runtime.trace_context import traceparent
from tenure.v1 import token_pb2
from tenure.v1 import tool_provider_service_pb2 as pb
from tenure.v1.tool_provider_service_pb2_grpc import ToolProviderServiceStub
from tenure.wire.times import duration

_LATER_SECONDS: Final = 1.0
"""The RPC's deadline comes so much after the call's own, which says better what happened."""

_ENDING_SECONDS: Final = 1.0
_DETAIL: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}\Z")


def lane_of(name: str) -> str:
    """The places of a provider's calls are its own: a slow one holds up nobody else's tools."""
    return f"provider {name}"


@dataclass(frozen=True, slots=True)
class _Asked:
    """A call: the provider's own name of the tool, its class, and what it is called with."""

    tool: str
    effect_class: EffectClass
    context: CallContext
    arguments_json: str


class Caller:
    """Calls the tools of one provider over its channel, while its `async with` is open."""

    def __init__(self, name: str, settings: ProviderSettings, channel: TenureChannel) -> None:
        self._name, self._settings, self._channel = name, settings, channel
        self._who = f"The provider {name}"
        self._stub: Any = ToolProviderServiceStub(channel)
        self._ending: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._ending:
            task.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def tool(self, own_name: str, definition: ToolDefinition) -> Tool:
        """The tool as it is run here, under the name that agents see."""
        return Tool(
            definition,
            partial(self._run, own_name, definition.effect_class),
            lane=lane_of(self._name),
            guard_seconds=TELLING_SECONDS,
            keeps_any_timeout=True,
            acts_elsewhere=True,
        )

    async def _run(
        self, own_name: str, effect_class: EffectClass, context: CallContext, arguments: Arguments
    ) -> ToolAnswer:
        asked = _Asked(own_name, effect_class, context, _as_json(arguments))
        delivery = Delivery(self._who, effect_class, context, self._settings.connect_seconds)
        return await delivery.carry_out(partial(self._send, asked))

    async def _send(self, asked: _Asked, sending: Sending) -> ToolAnswer:
        await self._connect()
        request, seconds = self._request(asked, sending.left_seconds), sending.left_seconds + _LATER_SECONDS
        sending.go_out()
        with as_tenant(asked.context.tenant):
            call = self._stub.CallTool(request, timeout=seconds, metadata=self._metadata(asked.context))
        try:
            return await self._answer(call, asked.context)
        except (TenureError, PeerFailed) as error:
            return read_refusal(self._who, error)
        except BaseException:
            call.cancel()
            raise

    async def _connect(self) -> None:
        """Returns when there is a connection: a call that meets none would leave open whether it was sent."""
        ready, failing = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE
        try:
            async with asyncio.timeout(self._settings.connect_seconds):
                while (state := self._channel.get_state(try_to_connect=True)) is not ready:
                    if state is failing:
                        raise NotSentError(f"there is no connection to {self._settings.address}")
                    await self._channel.wait_for_state_change(state)
        except TimeoutError as error:
            raise NotSentError(f"{self._settings.address} accepts no connection") from error

    def _request(self, asked: _Asked, timeout_seconds: float) -> pb.CallToolRequest:
        context = asked.context
        passes_token = self._settings.send_token and context.token
        return pb.CallToolRequest(
            tool=asked.tool,
            arguments_json=asked.arguments_json,
            idempotency_key=context.idempotency_key,
            token=token_pb2.FencingToken.FromString(context.token) if passes_token else None,
            epoch=context.epoch,
            tenant=context.tenant,
            task_id=context.task_id,
            call_id=context.call_id,
            timeout=duration(timeout_seconds),
            traceparent=traceparent(),
        )

    def _metadata(self, context: CallContext) -> list[tuple[str, str]]:
        keys = [(name.lower(), value) for name, value in context.provider_headers.items()]
        return [*keys, *self._settings.metadata]

    async def _answer(self, call: Any, context: CallContext) -> ToolAnswer:
        while (response := await call.read()) is not grpc.aio.EOF:
            match response.WhichOneof("event"):
                case "output":
                    context.emit(response.output)
                case "outcome":
                    self._let_end(call)
                    return self._read_outcome(response.outcome)
        raise AnswerLostError("it ended the call without an outcome", again=False)

    def _read_outcome(self, outcome: pb.ProviderOutcome) -> ToolAnswer:
        detail = outcome.detail if _DETAIL.match(outcome.detail) else ""
        match outcome.status:
            case pb.PROVIDER_STATUS_SUCCEEDED:
                return ToolAnswer(outcome.content, detail=detail)
            case pb.PROVIDER_STATUS_STALE_EPOCH:
                return stale(self._who, outcome.content)
            case pb.PROVIDER_STATUS_IN_DOUBT:
                raise AnswerLostError(outcome.content or "it does not know itself what it did")
            case _:
                return ToolAnswer(outcome.content, OutcomeStatus.FAILED, detail)

    def _let_end(self, call: Any) -> None:
        """The answer is here, and does not wait for the stream's own end; nor is that cut off for the provider."""
        task = asyncio.create_task(_until_end(call), name=f"end of a call of {self._name}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


async def _until_end(call: Any) -> None:
    with suppress(TimeoutError, TenureError, PeerFailed):  # it was said already what the call came to
        async with asyncio.timeout(_ENDING_SECONDS):
            await call.read()
    call.cancel()


def _as_json(arguments: Arguments) -> str:
    """As short as it came; a half of a surrogate pair, which no message can carry, stays escaped."""
    told = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return told if told.isascii() or _is_text(told) else json.dumps(arguments)


def _is_text(told: str) -> bool:
    try:
        told.encode()
    except UnicodeEncodeError:
        return False
    return True
