"""The worker's client of the tool service: calls travel in frames, tool lists and fences in single requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from services.worker.frame_client import FrameClient, FrameShape, Tagged
from tenure.domain.entries import ToolIntent, ToolsDefined
from tenure.domain.in_doubt import Resolution, ResolvedCall
from tenure.domain.outputs import FileDigest
from tenure.domain.texts import KeptContent
from tenure.domain.tools import CallStatuses, Outcome, ToolDefinition
from tenure.runtime.request_context import traceparent
from tenure.runtime.rpc.client import TenureChannel
from tenure.v1 import token_pb2
from tenure.v1 import tool_service_pb2 as pb
from tenure.v1 import tool_service_pb2_grpc as grpc_pb
from tenure.wire.common import duration
from tenure.wire.tool import (
    call_statuses_to_domain,
    kept_to_domain,
    outcome_to_domain,
    resolution_to_wire,
    resolved_call_to_wire,
    tool_to_domain,
    tool_to_wire,
)

UNARY_TIMEOUT_SECONDS: Final = 10.0
DIGEST_TIMEOUT_SECONDS: Final = 60.0
"""A workspace holds half a GiB by default: the tool service reads all of it in a few seconds."""


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The limits of a call.

    `outcome_seconds`: the wait for an outcome, anew after each event that says that the call is being settled; after it
    the call is executed again. `tool_seconds`: the run time of the
    tool; None: the tool's own limit. `output_bytes`: the output that fits into the conversation; 0: the tool's own
    limit.
    """

    outcome_seconds: float
    tool_seconds: float | None = None
    output_bytes: int = 0


@dataclass(frozen=True, slots=True)
class OwnCall:
    """The fields that a call of an own tool adds to its request.

    `outcome`: what its run in this process came to, if it has ended. `on_order`: gets each order to run it, and the
    function that sends what the run came to.
    """

    definition: ToolDefinition
    outcome: pb.OwnOutcome | None
    on_order: Callable[[pb.RunHere, Callable[[pb.OwnOutcome], None]], None]

    def add_to(self, request: pb.ExecuteRequest) -> None:
        """Adds the call's own fields to its request."""
        request.own_tool.CopyFrom(tool_to_wire(self.definition))
        if self.outcome is not None:
            request.own_outcome.CopyFrom(self.outcome)


class ToolsClient:
    """Raises domain errors: Fenced when the claim is stale at the tool service's fence."""

    def __init__(self, channel: TenureChannel) -> None:
        self._stub: Any = grpc_pb.ToolServiceStub(channel)
        self._frames = FrameClient(FrameShape("tools", channel, self._stub.ExecuteStream, build_frame, _events))

    async def run(self) -> None:
        """Keeps the call stream open, as a duty."""
        await self._frames.run()

    @property
    def in_reach(self) -> bool:
        """False while the call stream is broken and no connection is ready."""
        return self._frames.in_reach

    async def list_tools(self, token: token_pb2.FencingToken) -> ToolsDefined:
        """Returns the tools that the token allows, and the allowed names that do not exist; both sorted by name."""
        answer = await self._stub.ListTools(pb.ListToolsRequest(token=token), timeout=UNARY_TIMEOUT_SECONDS)
        return ToolsDefined(tuple(tool_to_domain(tool) for tool in answer.tools), tuple(answer.unknown_names))

    async def fence(
        self, token: token_pb2.FencingToken, *, close: bool, resolved: Iterable[ResolvedCall] = ()
    ) -> CallStatuses:
        """Raises the tool service's fence to this claim. With `close`, no call of the task starts or runs any more.

        `resolved`: the resolutions that no owner has sent yet. A repeat is safe.
        """
        calls = map(resolved_call_to_wire, resolved)
        request = pb.FenceRequest(token=token, close=close, resolved_calls=calls)
        answer = await self._stub.Fence(request, timeout=UNARY_TIMEOUT_SECONDS)
        return call_statuses_to_domain(answer.calls)

    async def digest_files(self, token: token_pb2.FencingToken, paths: Sequence[str]) -> dict[str, FileDigest]:
        """Returns the digests of the task's files by path, without those of files that do not exist."""
        request = pb.DigestFilesRequest(token=token, paths=paths)
        answer = await self._stub.DigestFiles(request, timeout=DIGEST_TIMEOUT_SECONDS)
        return {file.path: FileDigest(file.digest, file.size_bytes) for file in answer.files}

    async def keep_content(
        self, token: token_pb2.FencingToken, kept: KeptContent, offset: int, part: bytes
    ) -> KeptContent | None:
        """Writes a part of content to the task's workspace. Returns the content after the last part."""
        request = pb.KeepContentRequest(
            token=token, digest=kept.digest, size_bytes=kept.size_bytes, offset=offset, part=part
        )
        answer = await self._stub.KeepContent(request, timeout=DIGEST_TIMEOUT_SECONDS)
        return kept_to_domain(answer.kept) if answer.HasField("kept") else None

    async def read_content(self, token: token_pb2.FencingToken, path: str, offset: int) -> bytes:
        """Returns a part of kept content; b"" at its end."""
        request = pb.ReadContentRequest(token=token, path=path, offset=offset)
        answer = await self._stub.ReadContent(request, timeout=DIGEST_TIMEOUT_SECONDS)
        return bytes(answer.part)

    async def execute(
        self,
        token: token_pb2.FencingToken,
        intent: ToolIntent,
        on_event: Callable[[], None],
        limits: CallLimits,
        resolution: Resolution | None,
        own: OwnCall | None = None,
        *,
        needs_approval: bool = False,
    ) -> Outcome:
        """Runs the call, or joins the running call. `on_event` is called with every event of the call except a refusal.

        Cancelling this coroutine ends the wait, not the tool. `resolution` is the ledger's resolution of the call, if
        any. `own`: this process runs the call. `needs_approval`: only a plan may permit it. Raises Unavailable when
        there was no outcome in time: execute the call again, which joins it.
        """
        final_event: asyncio.Future[pb.TaggedExecuteEvent] = asyncio.get_running_loop().create_future()
        request = _build_request(token, intent, limits, resolution)
        request.needs_approval = needs_approval
        if own is not None:
            own.add_to(request)

        def answer(outcome: pb.OwnOutcome) -> None:
            self._frames.follow_up(tag, outcome, _with_outcome(request, outcome))

        def take_event(event: pb.TaggedExecuteEvent) -> None:
            kind = event.WhichOneof("event")
            if kind != "refusal":
                on_event()
            if kind == "settling":
                self._frames.wait_longer(tag, limits.outcome_seconds)
            if kind == "run_here" and own is not None:
                own.on_order(event.run_here, answer)
            if kind in {"outcome", "refusal"} and not final_event.done():
                final_event.set_result(event)

        tag = self._frames.send(request, take_event)
        what_is_late = f"call {intent.call_id} of {intent.tool} gave no outcome"
        event = await self._frames.last_event(tag, final_event, limits.outcome_seconds, what_is_late)
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
        undoes=intent.undoes,
    )


def _with_outcome(request: pb.ExecuteRequest, outcome: pb.OwnOutcome) -> pb.ExecuteRequest:
    """Returns the request as a later stream sends it again."""
    repeated = pb.ExecuteRequest()
    repeated.CopyFrom(request)
    repeated.own_outcome.CopyFrom(outcome)
    return repeated


def build_frame(batch: list[Tagged]) -> pb.ExecuteStreamRequest:
    frame = pb.ExecuteStreamRequest()
    for tag, message in batch:
        if isinstance(message, pb.OwnOutcome):
            frame.outcomes.add(tag=tag, outcome=message)
        else:
            frame.calls.add(tag=tag, call=message)
    return frame


def _events(frame: pb.ExecuteStreamResponse) -> Iterator[Tagged]:
    return ((event.tag, event) for event in frame.events)
