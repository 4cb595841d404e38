from __future__ import annotations

import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata

from services.coordinator.etcd.calls import (
    Compacted,
    EtcdError,
    EtcdRefused,
    EtcdUnavailable,
    EtcdUnclear,
    FutureRevision,
    LeaseExpired,
    SpaceExhausted,
    read_error,
    write_error,
)


def _error(code: StatusCode, details: str) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(), details=details)


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"),
        (StatusCode.UNAVAILABLE, "failed to connect to all addresses"),
        (StatusCode.UNAVAILABLE, "etcdserver: request timed out"),
        (StatusCode.UNAVAILABLE, "etcdserver: leader changed"),
        (StatusCode.UNAVAILABLE, "Socket closed"),
        (StatusCode.UNKNOWN, "context deadline exceeded"),
        (StatusCode.INTERNAL, "Received RST_STREAM"),
        (StatusCode.CANCELLED, "Received RST_STREAM"),
        (StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max"),
    ],
)
def test_a_write_without_a_definite_answer_is_unclear(code: StatusCode, details: str) -> None:
    assert type(write_error(_error(code, details))) is EtcdUnclear
    assert type(read_error(_error(code, details))) is EtcdUnavailable


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests"),
        (StatusCode.UNAVAILABLE, "etcdserver: no leader"),
    ],
)
def test_a_write_that_was_never_proposed_was_not_applied(code: StatusCode, details: str) -> None:
    assert type(write_error(_error(code, details))) is EtcdUnavailable


def test_a_write_at_the_quota_is_unclear_and_typed() -> None:
    meaning = write_error(_error(StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded"))
    assert type(meaning) is SpaceExhausted
    assert isinstance(meaning, EtcdUnclear)


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (StatusCode.NOT_FOUND, "etcdserver: requested lease not found", LeaseExpired),
        (StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", Compacted),
        (StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision", FutureRevision),
        (StatusCode.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request", EtcdRefused),
        (StatusCode.INVALID_ARGUMENT, "etcdserver: request is too large", EtcdRefused),
    ],
)
def test_refusal_has_a_type(code: StatusCode, details: str, kind: type[EtcdError]) -> None:
    assert type(write_error(_error(code, details))) is kind
    assert type(read_error(_error(code, details))) is kind
    assert details in str(write_error(_error(code, details)))
