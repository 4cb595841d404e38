"""One call on a bare channel, and the laws that every answer obeys.

- Never INTERNAL, UNKNOWN, DATA_LOSS or UNIMPLEMENTED, and never a connection that ends: those are bugs of the service.
- An answer in time: within CALL_SECONDS, on a machine that may be busy.
- Every error says in an ErrorInfo of ours what it is.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from tenure.runtime.request_context import TENANT_KEY
from tenure.runtime.rpc.status import DOMAIN
from tests.fuzz.methods import Method
from tests.support.grpc_limits import STREAM_ENDED_DURING_WRITE
from tests.support.patience import CALL_SECONDS

WATCHED_SECONDS: Final = 0.25
"""How long a call is watched that has no end of its own."""
MAX_ANSWERS: Final = 20
FUZZED: Final = "fuzz"
"""The tenant of all that is generated; no other test suffers from its limits."""
_SHOWN: Final = 3000
_BUGS: Final = frozenset(
    (
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.UNIMPLEMENTED,
    )
)
_TOO_LARGE: Final = "larger than max"
"""In words of gRPC itself, which refuses a request before any code of ours sees it."""

Code = grpc.StatusCode


@dataclass(slots=True)
class Answer:
    """What came of a call."""

    code: Code
    reason: str
    text: str
    messages: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Tally:
    """What was sent and what came of it, by method and code."""

    codes: Counter[tuple[str, str]] = field(default_factory=Counter)

    def told(self) -> str:
        by_code: Counter[str] = Counter()
        for (_, code), count in self.codes.items():
            by_code[code] += count
        return f"{sum(by_code.values())} calls: " + ", ".join(f"{code} {n}" for code, n in by_code.most_common())


async def call(
    channel: grpc.aio.Channel,
    method: Method,
    requests: Sequence[Message | bytes],
    *,
    tenant: str = FUZZED,
    seconds: float | None = None,
) -> Answer:
    """Send these and hear what comes. A stream's first answers, or those of its first WATCHED_SECONDS: `seconds` for
    one that ends by itself.
    """
    kind = f"{'stream' if method.streams_in else 'unary'}_{'stream' if method.streams_out else 'unary'}"
    start = getattr(channel, kind)(method.path, _to_bytes, method.response.FromString)
    seconds = seconds or (WATCHED_SECONDS if method.may_wait else CALL_SECONDS)
    metadata = ((TENANT_KEY, tenant),)
    if method.streams_in:
        begun = start(timeout=seconds, metadata=metadata)
        await _write(begun, requests)
    else:
        begun = start(requests[0], timeout=seconds, metadata=metadata)
    heard: list[Any] = []
    try:
        if method.streams_out:
            async for message in begun:
                heard.append(message)
                if len(heard) >= MAX_ANSWERS:
                    begun.cancel()
                    break
        else:
            heard.append(await begun)
    except grpc.aio.AioRpcError as error:
        if method.streams_in and error.details() == STREAM_ENDED_DURING_WRITE:
            return Answer(Code.CANCELLED, "", "the service ended the stream", heard)
        return Answer(error.code(), _reason(error), error.details() or "", heard)
    except asyncio.CancelledError:
        if not begun.cancelled():
            raise
    return Answer(Code.OK, "", "", heard)


async def _write(begun: Any, requests: Sequence[Message | bytes]) -> None:
    """All of them, unless the service ends the stream before: how it ended is heard from the reading side."""
    try:
        for request in requests:
            await begun.write(request)
        await begun.done_writing()
    except (grpc.aio.BaseError, grpc.RpcError, asyncio.InvalidStateError):
        return


def check_answer(method: Method, sent: Any, answer: Answer) -> None:
    """The laws."""
    said = f"{method}: {answer.code.name} {answer.reason} {answer.text[:300]}\nfor {repr(sent)[:_SHOWN]}"
    assert answer.code not in _BUGS, said
    if answer.code is Code.OK:
        return
    ended_here = answer.code in (Code.DEADLINE_EXCEEDED, Code.CANCELLED) and method.may_wait
    too_large = answer.code is Code.RESOURCE_EXHAUSTED and _TOO_LARGE in answer.text and _size(sent) > 4 * 2**20 - 1024
    if not answer.reason and (ended_here or too_large):
        return
    assert answer.reason, f"an error without a reason of ours: {said}"


def _size(sent: Any) -> int:
    return max(
        (len(one) if isinstance(one, bytes) else one.ByteSize() for one in sent if isinstance(one, (bytes, Message))),
        default=0,
    )


def _to_bytes(request: Message | bytes) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()


def _reason(error: grpc.aio.AioRpcError) -> str:
    """Of our ErrorInfo; empty: an error of another program."""
    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin" or not isinstance(value, bytes):
            continue
        try:
            details = status_pb2.Status.FromString(value).details
        except DecodeError:
            return ""
        info = error_details_pb2.ErrorInfo()
        for detail in details:
            if detail.Unpack(info) and info.domain == DOMAIN:
                return str(info.reason)
    return ""
