"""The worker's side of the tool service: calls in frames, definitions and fences one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import grpc

from services.worker.frame_client import FrameClient, FrameShape, Tagged
from tenure.domain.entries import ToolIntent, ToolsDefined
from tenure.domain.errors import Unavailable
from tenure.domain.in_doubt import Resolution
from tenure.domain.tools import CallStatuses, Outcome
from tenure.runtime.request_context import traceparent
from tenure.runtime.rpc_client import TenureChannel
from tenure.runtime.rpc_status import OUTCOME_UNKNOWN
from tenure.v1 import token_pb2
from tenure.v1 import tool_service_pb2 as pb
from tenure.v1 import tool_service_pb2_grpc as grpc_pb
from tenure.wire.common import duration, refusal_to_domain
from tenure.wire.tool import call_statuses_to_domain, outcome_to_domain, resolution_to_wire, tool_to_domain

UNARY_TIMEOUT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class CallLimits:
    """`outcome_seconds`: without an outcome for so long, the call is to be executed again. `tool_seconds`: how long the
    tool may run; None: as long as it does by itself. `output_bytes`: so much the model can be shown; 0: the tool's own.
    """

    outcome_seconds: float
    tool_seconds: float | None = None
    output_bytes: int = 0


class ToolsClient:
    """Raises domain errors: Fenced when the tools' fence is above this claim."""

    def __init__(self, channel: TenureChannel) -> None:
        self._channel = channel
        self._stub: Any = grpc_pb.ToolServiceStub(channel)
        self._frames = FrameClient(FrameShape("tools", self._stub.ExecuteStream, _build_frame, _events))

    async def run(self) -> None:
        """Keeps the call stream; a duty."""
        await self._frames.run()

    @property
    def in_reach(self) -> bool:
        """False while its stream is broken and no connection stands."""
        return not self._frames.is_broken or self._channel.get_state() is grpc.ChannelConnectivity.READY

    async def list_tools(self, token: token_pb2.FencingToken) -> ToolsDefined:
        """The tools this token may call, and the names it allows in vain; both by name."""
        answer = await self._stub.ListTools(pb.ListToolsRequest(token=token), timeout=UNARY_TIMEOUT_SECONDS)
        return ToolsDefined(tuple(tool_to_domain(tool) for tool in answer.tools), tuple(answer.unknown_names))

    async def fence(self, token: token_pb2.FencingToken, *, close: bool) -> CallStatuses:
        """Raises the fence; with `close` nothing of this task starts or runs any more. Repeatable."""
        answer = await self._stub.Fence(pb.FenceRequest(token=token, close=close), timeout=UNARY_TIMEOUT_SECONDS)
        return call_statuses_to_domain(answer.calls)

    async def execute(
        self,
        token: token_pb2.FencingToken,
        intent: ToolIntent,
        on_sign: Callable[[], None],
        limits: CallLimits,
        resolution: Resolution | None,
    ) -> Outcome:
        """Runs the call or joins it. `on_sign` hears every sign of life of it; a refusal is none. Cancelling this stops
        waiting, not the tool. `resolution`: a word on the call, from the ledger.

        Unavailable when there was no outcome in time: execute it again, which joins.
        """
        ending: asyncio.Future[pb.TaggedExecuteEvent] = asyncio.get_running_loop().create_future()

        def hear(event: pb.TaggedExecuteEvent) -> None:
            if not event.HasField("refusal"):
                on_sign()
            if event.WhichOneof("event") in {"outcome", "refusal"} and not ending.done():
                ending.set_result(event)

        tag = self._frames.ask(_build_request(token, intent, limits, resolution), hear)
        try:
            async with asyncio.timeout(limits.outcome_seconds):
                event = await ending
            if event.HasField("refusal"):
                raise refusal_to_domain(event.refusal)
        except TimeoutError:
            self._frames.give_up_stream_of(tag)
            raise Unavailable(
                f"call {intent.call_id} of {intent.tool} gave no outcome within {limits.outcome_seconds:g} s",
                reason="TIMEOUT",
                metadata=OUTCOME_UNKNOWN,
            ) from None
        except Unavailable:
            self._frames.give_up_stream_of(tag)
            raise
        finally:
            self._frames.forget(tag)
        return outcome_to_domain(event.outcome)


def _build_request(
    token: token_pb2.FencingToken, intent: ToolIntent, limits: CallLimits, resolution: Resolution | None
) -> pb.ExecuteRequest:
    return pb.ExecuteRequest(
        token=token,
        call_id=intent.call_id,
        tool=intent.tool,
        arguments_json=intent.arguments_json,
        traceparent=traceparent(),
        output_limit_bytes=limits.output_bytes,
        timeout=None if limits.tool_seconds is None else duration(limits.tool_seconds),
        resolution=None if resolution is None else resolution_to_wire(resolution),
    )


def _build_frame(batch: list[Tagged]) -> pb.ExecuteStreamRequest:
    return pb.ExecuteStreamRequest(calls=[pb.TaggedExecute(tag=tag, call=call) for tag, call in batch])


def _events(frame: pb.ExecuteStreamResponse) -> Iterator[Tagged]:
    return ((event.tag, event) for event in frame.events)
