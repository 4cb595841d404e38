"""Laws of the error tree and of the one table between it and gRPC."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import grpc
import pytest

from tenure.domain import errors
from tenure.runtime.rpc import status as rpc_status


@pytest.mark.parametrize("kind", errors.LEAVES)
def test_every_leaf_has_a_reason_of_its_own_and_a_code(kind: Any) -> None:
    assert [other for other in errors.LEAVES if other.default_reason == kind.default_reason] == [kind]
    assert kind.default_reason == kind.default_reason.upper()
    assert rpc_status.code_of(kind("why")) is not grpc.StatusCode.OK


def test_the_tree_has_no_leaf_that_is_not_listed() -> None:
    branches = (errors.Refused, errors.Fenced, errors.TryLater)
    of_the_domain = {kind for kind in errors.TenureError.__subclasses__() if kind.__module__ == errors.__name__}
    assert of_the_domain == set(branches)
    own = {kind for branch in branches for kind in branch.__subclasses__() if kind.__module__ == errors.__name__}
    assert own == set(errors.LEAVES)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.InvalidRequest, "INVALID_ARGUMENT"),
        (errors.NotFound, "NOT_FOUND"),
        (errors.AlreadyExists, "ALREADY_EXISTS"),
        (errors.WrongState, "FAILED_PRECONDITION"),
        (errors.BudgetExhausted, "FAILED_PRECONDITION"),
        (errors.OutOfRange, "OUT_OF_RANGE"),
        (errors.Unauthenticated, "UNAUTHENTICATED"),
        (errors.PermissionDenied, "PERMISSION_DENIED"),
        (errors.StaleEpoch, "ABORTED"),
        (errors.SequenceConflict, "ABORTED"),
        (errors.Unavailable, "UNAVAILABLE"),
        (errors.LimitReached, "RESOURCE_EXHAUSTED"),
    ],
)
def test_the_codes_are_those_promised(kind: Any, code: str) -> None:
    assert rpc_status.code_of(kind("why")).name == code


def test_a_fence_refusal_has_no_code_that_clients_retry() -> None:
    fenced = {rpc_status.code_of(kind("why")) for kind in errors.Fenced.__subclasses__()}
    assert fenced.isdisjoint({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED})


def test_stale_epoch_has_both_epochs() -> None:
    error = errors.StaleEpoch(presented=33, current=34, metadata={"task": "t"})
    assert (error.presented, error.current) == (33, 34)
    assert error.metadata == {"task": "t", "presented": "33", "current": "34"}
    assert "33" in error.message
    assert "34" in error.message


def test_absent_epoch_is_unknown() -> None:
    error = errors.StaleEpoch("somebody else holds it", metadata={"presented": "what"})
    assert (error.presented, error.current) == (None, None)


def test_violations_are_reported_together() -> None:
    error = errors.InvalidRequest(violations=[("goal", "must not be empty"), ("limits.max_tokens", "must be positive")])
    assert error.message == "goal: must not be empty; limits.max_tokens: must be positive"


@pytest.mark.parametrize("clone", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_can_be_copied(clone: Any) -> None:
    error = errors.InvalidRequest("no", violations=[("a", "b")], reason="R", metadata={"k": "v"})
    copied = clone(error)
    assert type(copied) is errors.InvalidRequest
    assert (vars(copied), copied.args) == (vars(error), error.args)


@pytest.mark.parametrize("code", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"])
def test_a_call_that_broke_has_an_unknown_outcome(code: str) -> None:
    error = rpc_status.from_rpc_error(bare(code, "Socket closed"))
    assert isinstance(error, errors.Unavailable)
    assert (error.reason, error.message, error.metadata) == (code, "Socket closed", {"outcome": "unknown"})


@pytest.mark.parametrize("code", ["INTERNAL", "UNKNOWN", "DATA_LOSS", "UNIMPLEMENTED"])
def test_bug_of_a_peer_is_not_a_domain_error(code: str) -> None:
    error = rpc_status.from_rpc_error(bare(code, "oops"))
    assert isinstance(error, rpc_status.PeerFailed)
    assert (error.code.name, error.message) == (code, "oops")


@pytest.mark.parametrize(
    "words", ["Received message larger than max (5 vs. 4)", "received metadata size exceeds hard limit (5 vs. 4)"]
)
def test_limit_of_grpc_has_an_unknown_outcome(words: str) -> None:
    error = rpc_status.from_rpc_error(bare("RESOURCE_EXHAUSTED", words))
    assert isinstance(error, errors.InvalidRequest)
    assert error.reason == "MESSAGE_TOO_LARGE"


def test_foreign_status_becomes_the_leaf_of_its_code() -> None:
    error = rpc_status.from_rpc_error(bare("NOT_FOUND", "no such key"))
    assert isinstance(error, errors.NotFound)
    assert error.reason == "NOT_FOUND"


@pytest.mark.parametrize("blob", [b"\xff\xff\xff", b"", "text"])
def test_details_that_do_not_parse_never_hide_the_status(blob: Any) -> None:
    metadata = grpc.aio.Metadata(("grpc-status-details-bin", blob))
    error = rpc_status.from_rpc_error(grpc.aio.AioRpcError(grpc.StatusCode.ABORTED, None, metadata, details="fenced"))
    assert isinstance(error, errors.Fenced)


def test_a_newer_peers_leaf_is_known_by_its_code() -> None:
    error = rpc_status.from_plain(10, "SOMETHING_NEW", "m", {"tenure-kind": "SOMETHING_NEW", "a": "b"})
    assert isinstance(error, errors.Fenced)
    assert (error.reason, error.metadata) == ("SOMETHING_NEW", {"a": "b"})


@pytest.mark.parametrize("code", [2, 13, 4711])
def test_unknown_status_code_is_a_failure_of_the_peer(code: int) -> None:
    assert isinstance(rpc_status.from_plain(code, "X", "m", {}), rpc_status.PeerFailed)


def bare(code: str, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(grpc.StatusCode[code], grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)
