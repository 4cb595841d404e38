"""Checks the messages of workers to coordinators, and the requests of gateways to workers."""

from __future__ import annotations

from typing import Any, Final

from tenure.domain.agents import BUILD, BUILD_RULE
from tenure.domain.live_address import problem_of
from tenure.domain.session_secret import MAX_BYTES, MIN_BYTES
from tenure.domain.states import ReleaseReason
from tenure.v1 import coordinator_service_pb2 as coordinator
from tenure.v1 import task_pb2
from tenure.v1 import worker_service_pb2 as worker
from tenure.validators.common import (
    LOOP,
    MAX_CHOICES,
    MAX_HOLDINGS,
    MAX_ID_CHARACTERS,
    MAX_LOOPS,
    MAX_SLOTS,
    MAX_TRANSITION_MESSAGE,
    NAME,
    WORKER_ID,
    WORKER_ID_RULE,
    Check,
    Violations,
    check_lower_tiers,
    check_task_id,
)

_RELEASE_REASONS: Final = frozenset(ReleaseReason)
_RELEASE_NAMES: Final = ", ".join(ReleaseReason)


def _session(request: coordinator.SessionRequest, v: Violations) -> None:
    message = request.WhichOneof("message")
    v.require(message is not None, "message", "must be set")
    match message:
        case "hello":
            _hello(request.hello, v)
        case "renew":
            v.require(request.renew.renew_number >= 1, "renew.renew_number", "must be 1 or more")
            _holdings("renew.holdings", request.renew.holdings, v)
            _slots("renew", request.renew, v)
        case "calls_heard":
            _holdings("calls_heard.holdings", request.calls_heard.holdings, v)
        case "slots":
            _slots("slots", request.slots, v)
        case "release":
            _claim_ids("release", request.release, v)
            v.require(request.release.reason in _RELEASE_REASONS, "release.reason", f"must be one of {_RELEASE_NAMES}")
            v.length("release.message", request.release.message, 0, MAX_TRANSITION_MESSAGE)


def _hello(hello: coordinator.Hello, v: Violations) -> None:
    v.require(bool(WORKER_ID.match(hello.worker_id)), "hello.worker_id", f"must be {WORKER_ID_RULE}")
    v.length("hello.session_id", hello.session_id, 0, MAX_ID_CHARACTERS)
    address_problem = problem_of(hello.live_address) if hello.live_address else None
    v.require(address_problem is None, "hello.live_address", f"{address_problem}; or empty")
    secret_bytes = len(hello.session_secret)
    v.require(
        not secret_bytes or MIN_BYTES <= secret_bytes <= MAX_BYTES,
        "hello.session_secret",
        f"must be {MIN_BYTES} to {MAX_BYTES} bytes, or empty",
    )
    v.between("hello.free_slots", hello.free_slots, 0, MAX_SLOTS)
    check_lower_tiers("hello.lower_tiers", hello.lower_tiers, v)
    _holdings("hello.holdings", hello.holdings, v)
    _names("hello.queues", hello.queues, v)
    _loops("hello.loops", hello.loops, v)
    v.require(not hello.build or bool(BUILD.match(hello.build)), "hello.build", f"must be {BUILD_RULE}; or empty")
    v.require(len(hello.priorities) <= MAX_CHOICES, "hello.priorities", f"at most {MAX_CHOICES}")
    for index, priority in enumerate(hello.priorities[:MAX_CHOICES]):
        v.known(f"hello.priorities[{index}]", task_pb2.Priority, priority)


def _names(field: str, names: Any, v: Violations) -> None:
    v.require(len(names) <= MAX_CHOICES, field, f"at most {MAX_CHOICES}")
    for index, name in enumerate(names[:MAX_CHOICES]):
        v.require(bool(NAME.match(name)), f"{field}[{index}]", "must be a name of up to 63 characters")


def _loops(field: str, names: Any, v: Violations) -> None:
    v.require(len(names) <= MAX_LOOPS, field, f"at most {MAX_LOOPS}")
    for index, name in enumerate(names[:MAX_LOOPS]):
        v.require(bool(LOOP.match(name)), f"{field}[{index}]", "must be a name of up to 63 characters")


def _slots(field: str, message: coordinator.Renew | coordinator.Slots, v: Violations) -> None:
    v.between(f"{field}.free_slots", message.free_slots, 0, MAX_SLOTS)
    check_lower_tiers(f"{field}.lower_tiers", message.lower_tiers, v)
    v.require(message.grants_read >= 0, f"{field}.grants_read", "must not be negative")


def _holdings(field: str, holdings: Any, v: Violations) -> None:
    """Checks the held tasks of a worker, cheaply, because every renewal of every worker has them.

    Does not parse UUIDs: an id that is not a UUID belongs to no claim.
    """
    v.require(len(holdings) <= MAX_HOLDINGS, field, f"at most {MAX_HOLDINGS}")
    for index, holding in enumerate(holdings[:MAX_HOLDINGS]):
        if not (0 < len(holding.task_id) <= MAX_ID_CHARACTERS and 0 < len(holding.claim_id) <= MAX_ID_CHARACTERS):
            _claim_ids(f"{field}[{index}]", holding, v)


def _claim_ids(field: str, named: coordinator.Holding | coordinator.Release, v: Violations) -> None:
    v.length(f"{field}.task_id", named.task_id, 1, MAX_ID_CHARACTERS)
    v.length(f"{field}.claim_id", named.claim_id, 1, MAX_ID_CHARACTERS)


CHECKS: Final[dict[type, Check]] = {
    coordinator.SessionRequest: _session,
    coordinator.GetLiveSourceRequest: check_task_id,
    worker.WatchLiveRequest: check_task_id,
}
