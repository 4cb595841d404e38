"""One call to etcd: its deadline, what its failure means, and whether it may be tried again."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, TypeVar

import grpc.aio
from google.protobuf.message import Message
from grpc import StatusCode

from services.coordinator.etcd.endpoints import REQUIRE_LEADER, Endpoint, Endpoints

if TYPE_CHECKING:
    from collections.abc import Callable

    from grpc.aio import AioRpcError


# How a call to etcd can fail, sorted by what is known about its effect.

# ruff: noqa: N818 - like the domain's errors, these are named for what happened


class EtcdError(Exception):
    """The root of everything this package raises for a call to etcd."""


class EtcdUnavailable(EtcdError):
    """Nothing was done, or nothing was read: the same call may succeed later."""


class EtcdUnclear(EtcdError):
    """A write whose outcome is not known. It may still be applied after this was raised: absence proves nothing."""


class EtcdRefused(EtcdError):
    """etcd's answer is no, and nothing was done. The same call will be refused again."""


class LeaseExpired(EtcdRefused):
    """There is no such lease: it expired, was revoked, or was never granted."""


class Compacted(EtcdRefused):
    """The revision asked for is no longer kept: list again."""


class FutureRevision(EtcdRefused):
    """The revision asked for is not there yet: this etcd is behind the one that named it."""


class SpaceExhausted(EtcdUnclear):
    """etcd is out of space (NOSPACE alarm): it takes reads and deletes only until an operator intervenes.

    Unclear all the same: the write that first meets the quota where it is applied, and not at the door, is carried
    out and then answered with this (quotaApplierV3 of every release).
    """


# etcd, api/v3rpc/rpctypes/error.go: the texts are the API, several of them share a code.
_REFUSALS: dict[str, type[EtcdRefused]] = {
    "requested lease not found": LeaseExpired,
    "mvcc: required revision has been compacted": Compacted,
    "mvcc: required revision is a future revision": FutureRevision,
}
_OUT_OF_SPACE = "mvcc: database space exceeded"

# Given before anything is proposed to raft: a full queue of proposals; a member that knows of no leader (asked for by
# the `hasleader` metadata and checked by an interceptor in front of the handler).
_NOTHING_PROPOSED = ("etcdserver: too many requests", "etcdserver: no leader")

# etcd answers with these only when a request was rejected as a whole. RESOURCE_EXHAUSTED is not among them: gRPC itself
# uses it for an answer that is too large, that is, after the write.
_DEFINITE_CODES = frozenset(
    {
        StatusCode.INVALID_ARGUMENT,
        StatusCode.NOT_FOUND,
        StatusCode.ALREADY_EXISTS,
        StatusCode.PERMISSION_DENIED,
        StatusCode.UNAUTHENTICATED,
        StatusCode.FAILED_PRECONDITION,
        StatusCode.OUT_OF_RANGE,
        StatusCode.UNIMPLEMENTED,
    }
)


def read_error(error: AioRpcError) -> EtcdRefused | EtcdUnavailable:
    """What a failed read means: it changed nothing, so whatever is not a refusal is worth another try."""
    return _refusal(error) or EtcdUnavailable(_message(error))


def write_error(error: AioRpcError) -> EtcdRefused | EtcdUnavailable | EtcdUnclear:
    """What a failed write means. Unclear, unless etcd said otherwise."""
    if refusal := _refusal(error):
        return refusal
    details = error.details() or ""
    if any(text in details for text in _NOTHING_PROPOSED):
        return EtcdUnavailable(_message(error))
    return SpaceExhausted(_message(error)) if _OUT_OF_SPACE in details else EtcdUnclear(_message(error))


def _refusal(error: AioRpcError) -> EtcdRefused | None:
    details = error.details() or ""
    for text, kind in _REFUSALS.items():
        if text in details:
            return kind(_message(error))
    return EtcdRefused(_message(error)) if error.code() in _DEFINITE_CODES else None


def _message(error: AioRpcError) -> str:
    return f"{error.code().name}: {error.details()}"


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
