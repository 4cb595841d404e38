"""Checks the messages of workers to coordinators, and the requests of gateways to workers."""

from __future__ import annotations

from typing import Final

from tenure.domain.agents import BUILD, BUILD_RULE
from tenure.domain.fencing import MAX_BYTES, MIN_BYTES
from tenure.domain.outbound import problem_of
from tenure.domain.states import ReleaseReason
from tenure.v1 import coordinator_service_pb2 as coordinator
from tenure.validators.common import Check
from tenure.validators.rules import Violations

_RELEASE_REASONS: Final = frozenset(ReleaseReason)
_RELEASE_NAMES: Final = ", ".join(ReleaseReason)


def _session(request: coordinator.SessionRequest, v: Violations) -> None:
    message = request.WhichOneof("message")
    v.require(message is not None, "message", "must be set")
    match message:
        case "hello":
            _hello(request.hello, v)
        case "release":
            v.require(request.release.reason in _RELEASE_REASONS, "release.reason", f"must be one of {_RELEASE_NAMES}")


def _hello(hello: coordinator.Hello, v: Violations) -> None:
    address_problem = problem_of(hello.live_address) if hello.live_address else None
    v.require(address_problem is None, "hello.live_address", f"{address_problem}; or empty")
    secret_bytes = len(hello.session_secret)
    v.require(
        MIN_BYTES <= secret_bytes <= MAX_BYTES, "hello.session_secret", f"must be {MIN_BYTES} to {MAX_BYTES} bytes"
    )
    v.require(not hello.build or bool(BUILD.match(hello.build)), "hello.build", f"must be {BUILD_RULE}; or empty")


CHECKS: Final[dict[type, Check]] = {
    coordinator.SessionRequest: _session,
}
