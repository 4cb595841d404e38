"""Makes one call to etcd: its deadline, the meaning of its failure, and its retries."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

import grpc.aio
from google.protobuf.message import Message
from grpc import StatusCode
from grpc.aio import AioRpcError

from services.coordinator.etcd.endpoints import REQUIRE_LEADER, Endpoint, Endpoints
from tenure.runtime.observability import metrics

# The failures of a call to etcd, by the knowledge about its effect.

# ruff: noqa: N818 - like the domain's errors, these are named for what happened


class EtcdError(Exception):
    """The base class of all errors that this package raises for a call to etcd."""


class EtcdUnavailable(EtcdError):
    """The call had no effect and read nothing. The same call may succeed later."""


class EtcdUnclear(EtcdError):
    """The outcome of a write is unknown. It may still be applied later, so an absent key proves nothing."""


class EtcdRefused(EtcdError):
    """etcd refused the call, which had no effect. The same call will be refused again."""


class LeaseExpired(EtcdRefused):
    """The lease does not exist: it expired, was revoked, or was never granted."""


class Compacted(EtcdRefused):
    """The requested revision is compacted: list again."""


class FutureRevision(EtcdRefused):
    """The requested revision does not exist yet: this etcd is behind the one that gave it."""


class SpaceExhausted(EtcdUnclear):
    """etcd is out of space (NOSPACE alarm): it accepts only reads and deletes until an operator intervenes.

    The outcome is still unclear: when a write meets the quota only where it is applied, etcd carries it out and then
    answers with this error (quotaApplierV3 of every release).
    """


# etcd, api/v3rpc/rpctypes/error.go: the texts are the API, because several errors share a code.
_REFUSALS: dict[str, type[EtcdRefused]] = {
    "requested lease not found": LeaseExpired,
    "mvcc: required revision has been compacted": Compacted,
    "mvcc: required revision is a future revision": FutureRevision,
}
_OUT_OF_SPACE = "mvcc: database space exceeded"

# etcd gives these answers before it proposes anything to raft: a full queue of proposals; a member without a leader
# (requested by the `hasleader` metadata and checked by an interceptor before the handler).
_NOTHING_PROPOSED = ("etcdserver: too many requests", "etcdserver: no leader")

# etcd answers with these codes only when it rejected a request as a whole. RESOURCE_EXHAUSTED is not among them: gRPC
# itself uses it for an answer that is too large, that is, after the write.
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
    """Returns the meaning of a failed read. It changed nothing, so every failure except a refusal may be retried."""
    return _refusal(error) or EtcdUnavailable(_message(error))


def write_error(error: AioRpcError) -> EtcdRefused | EtcdUnavailable | EtcdUnclear:
    """Returns the meaning of a failed write: unclear, unless etcd's answer says otherwise."""
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
    """Returns the pause after this number of failures in a row: exponential, with full jitter, at most one second."""
    return random.uniform(0, min(_BACKOFF_CAP_SECONDS, _BACKOFF_BASE_SECONDS * 2 ** min(failures, 10)))


_READ_SECONDS = metrics.histogram("tenure_etcd_call_seconds", kind="read")
_WRITE_SECONDS = metrics.histogram("tenure_etcd_call_seconds", kind="write")


for _kind in ("read", "write"):
    metrics.cell("tenure_etcd_failures_total", kind=_kind, meaning=EtcdUnavailable.__name__)  # from 0 on


def _count_failure(kind: str, meaning: EtcdError) -> None:
    metrics.count("tenure_etcd_failures_total", kind=kind, meaning=type(meaning).__name__)


async def write(
    endpoints: Endpoints,
    method: Callable[[Endpoint], grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT]],
    request: RequestT,
    *,
    timeout_seconds: float,
) -> ResponseT:
    """Sends a write exactly once.

    Raises EtcdRefused, EtcdUnavailable (not applied) or EtcdUnclear (outcome unknown).
    """
    if (size := request.ByteSize()) > MAX_REQUEST_BYTES:
        # Checked here, because the gRPC server in etcd would refuse it with an answer that leaves the outcome open.
        raise EtcdRefused(f"a request has {size} bytes, more than etcd's limit of {MAX_REQUEST_BYTES}")
    endpoint = endpoints.current
    began = monotonic()
    try:
        answer = await method(endpoint)(request, timeout=timeout_seconds, metadata=REQUIRE_LEADER)
    except grpc.aio.AioRpcError as error:
        meaning = write_error(error)
        _count_failure("write", meaning)
        # those errors come from the whole cluster, not from this member
        if not isinstance(meaning, EtcdRefused | SpaceExhausted):
            endpoints.rotate(endpoint)
        raise meaning from error
    _WRITE_SECONDS.observe(monotonic() - began)
    return answer


async def read(
    endpoints: Endpoints,
    method: Callable[[Endpoint], grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT]],
    request: RequestT,
    *,
    timeout_seconds: float,
) -> ResponseT:
    """Sends a read, to several members in turn within the deadline. Raises EtcdRefused or EtcdUnavailable."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    for tries_left in range(_READ_TRIES, 0, -1):
        endpoint = endpoints.current
        remaining = deadline - loop.time()
        # With several members, a member that does not answer gets only a share of the time.
        share = remaining / tries_left if len(endpoints) > 1 else remaining
        began = monotonic()
        try:
            answer = await method(endpoint)(request, timeout=share, metadata=REQUIRE_LEADER)
        except grpc.aio.AioRpcError as error:
            meaning = read_error(error)
            _count_failure("read", meaning)
            if isinstance(meaning, EtcdRefused):
                raise meaning from error
            endpoints.rotate(endpoint)
            pause = backoff_seconds(_READ_TRIES - tries_left)
            if tries_left == 1 or loop.time() + pause >= deadline:
                raise meaning from error
            await asyncio.sleep(pause)
        else:
            _READ_SECONDS.observe(monotonic() - began)
            return answer
    raise EtcdUnavailable(
        "unreachable: the last try returns or raises"
    )  # pragma: no cover - the last try returns or raises


async def read_from(
    endpoints: Endpoints,
    endpoint: Endpoint,
    method: Callable[[Endpoint], grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT]],
    request: RequestT,
    *,
    timeout_seconds: float,
) -> ResponseT:
    """Sends a read to this member only, whether it has a leader or not. Raises EtcdRefused or EtcdUnavailable."""
    try:
        return await method(endpoint)(request, timeout=timeout_seconds)
    except grpc.aio.AioRpcError as error:
        endpoints.rotate(endpoint)
        raise read_error(error) from error
