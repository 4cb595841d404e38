"""How a call to etcd can fail, sorted by what is known about its effect.

    EtcdError
    ├── EtcdUnavailable         nothing was done, or nothing was read: the same call may succeed later
    ├── EtcdUnclear             a write that may or may not have been applied, now or in a moment: read it back
    │   └── SpaceExhausted      etcd is out of space: it refuses writes, and may have applied this one nevertheless
    └── EtcdRefused             etcd's answer is no; nothing was done
        ├── LeaseExpired        there is no such lease (expired, revoked, or never granted)
        ├── Compacted           the revision asked for is no longer kept: list again
        └── FutureRevision      the revision asked for is not there yet

A write is called unclear unless etcd's own words prove the contrary. A refused connection is no proof: the channel
may have broken after the request left.
"""
# ruff: noqa: N818 - like the domain's errors, these are named for what happened

from __future__ import annotations

from typing import TYPE_CHECKING

from grpc import StatusCode

if TYPE_CHECKING:
    from grpc.aio import AioRpcError


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
    return _refusal(error) or EtcdUnavailable(_told(error))


def write_error(error: AioRpcError) -> EtcdRefused | EtcdUnavailable | EtcdUnclear:
    """What a failed write means. Unclear, unless etcd said otherwise."""
    if refusal := _refusal(error):
        return refusal
    details = error.details() or ""
    if any(text in details for text in _NOTHING_PROPOSED):
        return EtcdUnavailable(_told(error))
    return SpaceExhausted(_told(error)) if _OUT_OF_SPACE in details else EtcdUnclear(_told(error))


def _refusal(error: AioRpcError) -> EtcdRefused | None:
    details = error.details() or ""
    for text, kind in _REFUSALS.items():
        if text in details:
            return kind(_told(error))
    return EtcdRefused(_told(error)) if error.code() in _DEFINITE_CODES else None


def _told(error: AioRpcError) -> str:
    return f"{error.code().name}: {error.details()}"
