"""One call to etcd: its deadline, what its failure means, and whether it may be tried again."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, TypeVar

import grpc.aio
from google.protobuf.message import Message

from tenure.runtime.etcd.endpoints import REQUIRE_LEADER, Endpoint, Endpoints
from tenure.runtime.etcd.errors import EtcdRefused, EtcdUnavailable, SpaceExhausted, read_error, write_error

if TYPE_CHECKING:
    from collections.abc import Callable

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT")

# etcd's default of --max-request-bytes.
MAX_REQUEST_BYTES = 1_572_864

_READ_TRIES = 4
_BACKOFF_BASE_SECONDS = 0.05
_BACKOFF_CAP_SECONDS = 1.0


def backoff_seconds(failures: int) -> float:
    """How long to wait after so many failures in a row: exponential, with full jitter, one second at most."""
    return random.uniform(0, min(_BACKOFF_CAP_SECONDS, _BACKOFF_BASE_SECONDS * 2 ** min(failures, 10)))


async def write(
    endpoints: Endpoints,
    method: Callable[[Endpoint], grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT]],
    request: RequestT,
    *,
    timeout_seconds: float,
) -> ResponseT:
    """Send a write exactly once. Raises EtcdRefused, EtcdUnavailable (not applied) or EtcdUnclear (not known)."""
    if (size := request.ByteSize()) > MAX_REQUEST_BYTES:
        # Judged here: the gRPC server in etcd would cut it off with an answer that leaves the outcome open.
        raise EtcdRefused(f"a request of {size} bytes; etcd takes {MAX_REQUEST_BYTES}")
    endpoint = endpoints.current
    try:
        return await method(endpoint)(request, timeout=timeout_seconds, metadata=REQUIRE_LEADER)
    except grpc.aio.AioRpcError as error:
        meaning = write_error(error)
        if not isinstance(meaning, EtcdRefused | SpaceExhausted):  # those are the cluster's answer, not the member's
            endpoints.rotate(endpoint)
        raise meaning from error


async def read(
    endpoints: Endpoints,
    method: Callable[[Endpoint], grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT]],
    request: RequestT,
    *,
    timeout_seconds: float,
) -> ResponseT:
    """Ask, going round the members a few times within the deadline. Raises EtcdRefused or EtcdUnavailable."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    for tries_left in range(_READ_TRIES, 0, -1):
        endpoint = endpoints.current
        remaining = deadline - loop.time()
        # With others to ask, a member that does not answer gets a share of the time only.
        share = remaining / tries_left if len(endpoints) > 1 else remaining
        try:
            return await method(endpoint)(request, timeout=share, metadata=REQUIRE_LEADER)
        except grpc.aio.AioRpcError as error:
            meaning = read_error(error)
            if isinstance(meaning, EtcdRefused):
                raise meaning from error
            endpoints.rotate(endpoint)
            pause = backoff_seconds(_READ_TRIES - tries_left)
            if tries_left == 1 or loop.time() + pause >= deadline:
                raise meaning from error
            await asyncio.sleep(pause)
    raise EtcdUnavailable("no try left")  # pragma: no cover - the last try returns or raises


async def read_from(
    endpoints: Endpoints,
    endpoint: Endpoint,
    method: Callable[[Endpoint], grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT]],
    request: RequestT,
    *,
    timeout_seconds: float,
) -> ResponseT:
    """Ask this member, leader or not, and no other. Raises EtcdRefused or EtcdUnavailable."""
    try:
        return await method(endpoint)(request, timeout=timeout_seconds)
    except grpc.aio.AioRpcError as error:
        endpoints.rotate(endpoint)
        raise read_error(error) from error
