"""Connects to providers, lists their tools, and calls them.

A provider describes its tools again after each loss of its connection, and periodically.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

import grpc

from edges.providers.settings import ProviderSettings
from services.tools.answer_files import AnswerParts, Keep, part_text
from services.tools.registry import ToolRegistry
from services.tools.schemas import shortened
from services.tools.sending import (
    TELLING_SECONDS,
    AnswerLostError,
    AskedToWaitError,
    CallDelivery,
    NotSentError,
    SendAttempt,
    stale,
)
from services.tools.source_facts import MAX_PROBLEMS
from services.tools.sources import offered
from services.tools.tool import Arguments, CallContext, Tool, ToolAnswer, nothing_done
from tenure.domain.errors import Fenced, LimitReached, Refused, TenureError, TryLater
from tenure.domain.retry import RetryPolicy
from tenure.domain.tools import EffectClass, OutcomeStatus, ToolDefinition, ToolSourceKind
from tenure.runtime.process import Duties, Process, rest, resting
from tenure.runtime.request_context import as_tenant, traceparent
from tenure.runtime.rpc.client import TenureChannel, open_channel
from tenure.runtime.rpc.options import Keepalive
from tenure.runtime.rpc.status import OUTCOME_UNKNOWN, PeerFailed
from tenure.runtime.security.tls import ClientTls
from tenure.v1 import token_pb2
from tenure.v1 import tool_provider_service_pb2 as pb
from tenure.v1.tool_provider_service_pb2_grpc import ToolProviderServiceStub
from tenure.wire.common import duration
from tenure.wire.tool import tool_to_domain

# What the status of a provider's call says about its effect: see ToolProviderService.CallTool.

TOO_LARGE: Final = "MESSAGE_TOO_LARGE"


def read_refusal(who: str, error: TenureError | PeerFailed) -> ToolAnswer:
    """Returns the answer for a provider's error status.

    Raises AnswerLostError when the status leaves open whether the effect happened, and AskedToWaitError when the
    provider asks to retry later.
    """
    message = shortened(error.message)
    if isinstance(error, PeerFailed):
        if error.code is grpc.StatusCode.UNIMPLEMENTED:
            return _refused(who, message, error.code.name)
        raise AnswerLostError(f"it failed with {error.code.name} ({message})", again=False) from error
    if error.metadata.items() >= OUTCOME_UNKNOWN.items():
        raise AnswerLostError(message) from error
    if error.reason == TOO_LARGE:
        raise AnswerLostError(f"a message is too large ({message})", again=False) from error
    if isinstance(error, Fenced):
        return stale(who, message)
    answer = _refused(who, message, error.reason)
    if isinstance(error, TryLater) and error.retry_after_seconds is not None:
        raise AskedToWaitError(answer, error.retry_after_seconds) from error
    assert isinstance(error, Refused | LimitReached | TryLater)
    return answer


def _refused(who: str, message: str, reason: str) -> ToolAnswer:
    """Returns the answer for a refusal. `reason`: any text of the provider, which is the detail if it is a code."""
    detail = reason if _DETAIL.match(reason) else ""
    return nothing_done(f"{who} refused the call.", detail, said=message)


# One call of a provider's tool, with its idempotency key and its claim's fencing token.

_RPC_MARGIN_SECONDS: Final = 1.0
"""How much later the RPC's deadline is than the call's timeout, which gives the better error."""

_ENDING_SECONDS: Final = 1.0
_DETAIL: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}\Z")


def lane_of(name: str) -> str:
    """Returns the lane of a provider. Each provider has its own slots, so a slow one does not delay other tools."""
    return f"provider {name}"


@dataclass(frozen=True, slots=True)
class _ProviderCall:
    """One call. `tool`: the provider's own tool name."""

    tool: str
    effect_class: EffectClass
    context: CallContext
    arguments_json: str


class Caller:
    """Calls the tools of one provider over its channel. Use it with `async with`."""

    def __init__(self, name: str, settings: ProviderSettings, channel: TenureChannel, parts: AnswerParts) -> None:
        self._name, self._settings, self._channel, self._parts = name, settings, channel, parts
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
        """Returns a tool under the name that agents see. `own_name`: the provider's own tool name."""
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
        provider_call = _ProviderCall(own_name, effect_class, context, _as_json(arguments))
        delivery = CallDelivery(self._who, effect_class, context, self._settings.connect_seconds)
        return await delivery.carry_out(partial(self._send, provider_call))

    async def _send(self, provider_call: _ProviderCall, sending: SendAttempt) -> ToolAnswer:
        await self._connect()
        request = self._request(provider_call, sending.left_seconds)
        seconds = sending.left_seconds + _RPC_MARGIN_SECONDS
        sending.go_out()
        with as_tenant(provider_call.context.tenant):
            call = self._stub.CallTool(request, timeout=seconds, metadata=self._metadata(provider_call.context))
        try:
            return await self._answer(call, provider_call.context)
        except (TenureError, PeerFailed) as error:
            return read_refusal(self._who, error)
        except BaseException:
            call.cancel()
            raise

    async def _connect(self) -> None:
        """Waits for a connection. A call without a connection would leave open whether it was sent."""
        ready, failing = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE
        try:
            async with asyncio.timeout(self._settings.connect_seconds):
                while (state := self._channel.get_state(try_to_connect=True)) is not ready:
                    if state is failing:
                        raise NotSentError(f"the connection to {self._settings.address} failed")
                    await self._channel.wait_for_state_change(state)
        except TimeoutError as error:
            raise NotSentError(f"the connection to {self._settings.address} timed out") from error

    def _request(self, call: _ProviderCall, timeout_seconds: float) -> pb.CallToolRequest:
        context = call.context
        passes_token = self._settings.send_token and context.token
        return pb.CallToolRequest(
            tool=call.tool,
            arguments_json=call.arguments_json,
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
                    self._finish_stream(call)
                    return await self._read_outcome(response.outcome, context)
        raise AnswerLostError("the provider ended the call without an outcome", again=False)

    async def _read_outcome(self, outcome: pb.ProviderOutcome, context: CallContext) -> ToolAnswer:
        detail = outcome.detail if _DETAIL.match(outcome.detail) else ""
        match outcome.status:
            case pb.PROVIDER_STATUS_SUCCEEDED if outcome.parts:
                return await self._parts.answer(context, partial(_text_with_parts, outcome), detail=detail)
            case pb.PROVIDER_STATUS_SUCCEEDED:
                return ToolAnswer(outcome.content, detail=detail)
            case pb.PROVIDER_STATUS_STALE_EPOCH:
                return stale(self._who, outcome.content)
            case pb.PROVIDER_STATUS_IN_DOUBT:
                raise AnswerLostError(outcome.content or "the provider does not know whether the call happened")
            case _:
                return ToolAnswer(outcome.content, OutcomeStatus.FAILED, detail)

    def _finish_stream(self, call: Any) -> None:
        """Waits for the end of the stream in the background: neither delays the answer nor cuts the provider off."""
        task = asyncio.create_task(_until_end(call), name=f"end of a call of {self._name}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def _text_with_parts(outcome: pb.ProviderOutcome, keep: Keep) -> str:
    parts = (part_text(f"part ({one.mime_type[:100]})", one.content, one.mime_type, keep) for one in outcome.parts)
    return "\n".join([*([outcome.content] if outcome.content else []), *parts])


async def _until_end(call: Any) -> None:
    with suppress(TimeoutError, TenureError, PeerFailed):  # the outcome is already known
        async with asyncio.timeout(_ENDING_SECONDS):
            await call.read()
    call.cancel()


def _as_json(arguments: Arguments) -> str:
    """Returns the arguments as compact JSON. Escapes a lone surrogate, which no message can carry."""
    encoded = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return encoded if encoded.isascii() or _is_text(encoded) else json.dumps(arguments)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_log: Final = logging.getLogger(__name__)
RECONNECT: Final = RetryPolicy(initial_seconds=0.5, factor=2.0, cap_seconds=15.0)
DESCRIBE_SECONDS: Final = 10.0
MIN_INTERVAL_SECONDS: Final = 1.0
"""The shortest time between two DescribeTools requests, also when every connection ends at once."""

# By default gRPC servers end a connection that pings more often than every five minutes, or without a call.
KEEPALIVE: Final = Keepalive(interval_seconds=330.0, timeout_seconds=20.0, without_calls=False)


class Provider:
    """Keeps one provider's tools in the registry up to date with the duty `watch`.

    Keeps them while it is unreachable.
    """

    def __init__(self, name: str, settings: ProviderSettings, registry: ToolRegistry, parts: AnswerParts) -> None:
        self._name, self._settings, self._registry, self._parts = name, settings, registry, parts
        self._fact = registry.facts.add(name, ToolSourceKind.PROVIDER, settings.tenants, settings.secrets)
        self._open = AsyncExitStack()
        self._reached = asyncio.Event()
        self._described: pb.DescribeToolsResponse | None = None

    async def __aenter__(self) -> Self:
        self._registry.expect(self._name, self._settings.tenants)
        tls = self._settings.tls
        files = None if tls is None else ClientTls(tls.ca_file, tls.cert_file, tls.key_file)
        channel = open_channel(self._settings.address, tls=files, keepalive=KEEPALIVE)
        self._channel: TenureChannel = await self._open.enter_async_context(channel)
        self._caller = await self._open.enter_async_context(
            Caller(self._name, self._settings, self._channel, self._parts)
        )
        self._stub: Any = ToolProviderServiceStub(self._channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def reached(self) -> None:
        """Waits until the provider's tools are known, at most `connect_seconds`, so that it cannot delay others for
        long.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.connect_seconds):
                await self._reached.wait()

    async def watch(self) -> None:
        """Lists the tools after every loss of the connection, and every `refresh_seconds`."""
        failures = 0
        while True:
            try:
                await self._describe()
            except (TenureError, PeerFailed) as error:
                failures += 1
                self._fact.lost(str(error))
                extra = {"provider": self._name, "failures": failures, "error": str(error)}
                _log.warning("a provider could not list its tools: retrying after a pause", extra=extra)
                await rest(RECONNECT.wait_seconds(failures, random.random()))
                continue
            if failures:
                _log.info("a provider answers again", extra={"provider": self._name})
            failures = 0
            self._fact.linked()
            await rest(MIN_INTERVAL_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.refresh_seconds):
                    with resting():  # the timeout ends this wait
                        await self._channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
                    self._fact.lost("the connection ended")

    async def _describe(self) -> None:
        request = pb.DescribeToolsRequest()
        described = await self._stub.DescribeTools(request, timeout=DESCRIBE_SECONDS, metadata=self._settings.metadata)
        if described != self._described:
            self._take(described)
            self._described = described
        self._reached.set()

    def _take(self, described: pb.DescribeToolsResponse) -> None:
        definitions, problems = offered(self._name, map(tool_to_domain, described.tools), self._settings.rules)
        tools = [self._caller.tool(own_name, definition) for own_name, definition in definitions.items()]
        refused = self._registry.put(self._name, tools, self._settings.tenants)
        problems += refused
        self._fact.took(len(tools) - len(refused), problems)
        for problem in problems[:MAX_PROBLEMS]:
            _log.warning("a tool of a provider has a problem", extra={"provider": self._name, "problem": problem})
        if (more := len(problems) - MAX_PROBLEMS) > 0:
            _log.warning("more tools of a provider have problems", extra={"provider": self._name, "count": more})
        _log.info("registered the tools of a provider", extra={"provider": self._name, "tools": len(tools)})


# All providers of the config file.

SILENCE_SECONDS: Final = 60.0
"""The silence limit of the duty `watch`. One request to a provider has a deadline of seconds."""


async def open_providers(
    process: Process, settings: Mapping[str, ProviderSettings], registry: ToolRegistry, parts: AnswerParts
) -> None:
    """Opens the providers. Waits for each up to its `connect_seconds`, so that the first tasks see their tools."""
    providers = [
        await process.open(Provider(name, provider_settings, registry, parts))
        for name, provider_settings in settings.items()
    ]
    duties = await process.open(Duties())
    for name, provider in zip(settings, providers, strict=True):
        duties.start(f"watch provider {name}", provider.watch, silence_seconds=SILENCE_SECONDS)
    await asyncio.gather(*(provider.reached() for provider in providers))
