"""Which endpoint gets a call: circuits, the order of a task, and the failures that move a call."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.models.failover import (
    FAILURES_TO_OPEN,
    FIRST_PAUSE_SECONDS,
    KEPT_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Circuit,
    RankedEndpoint,
    WarmCaches,
    may_move,
    preferred_order,
)
from tenure.domain.retry import FailureClass

OVERLOADED = FailureClass.OVERLOADED


@pytest.mark.parametrize(
    ("error_class", "was_sent", "was_taken", "moves"),
    [
        (FailureClass.OVERLOADED, True, False, True),
        (FailureClass.SERVER_ERROR, True, False, True),
        (FailureClass.RATE_LIMITED, True, False, True),
        (FailureClass.CONNECTION, False, False, True),
        (FailureClass.TIMEOUT, False, False, True),
        (FailureClass.CONNECTION, True, False, False),
        (FailureClass.TIMEOUT, True, False, False),
        (FailureClass.OVERLOADED, True, True, False),
        (FailureClass.BROKEN_STREAM, True, True, False),
        (FailureClass.INVALID_REQUEST, True, False, False),
        (FailureClass.AUTHENTICATION, True, False, False),
        (FailureClass.PROMPT_TOO_LONG, True, False, False),
    ],
)
def test_only_an_unbilled_call_moves(error_class: FailureClass, was_sent: bool, was_taken: bool, moves: bool) -> None:
    assert may_move(error_class, 0, was_sent=was_sent, was_taken=was_taken) is moves


@pytest.mark.parametrize(("status", "moves"), [(500, True), (503, True), (502, False), (524, False)])
def test_a_call_that_a_gateway_lost_stays(status: int, moves: bool) -> None:
    """The provider behind the gateway may have taken the call, and bill it."""
    assert may_move(FailureClass.SERVER_ERROR, status, was_sent=True, was_taken=False) is moves
    assert may_move(FailureClass.SERVER_ERROR, status, was_sent=False, was_taken=False)


@given(st.sampled_from(FailureClass), st.booleans())
def test_an_answered_call_never_moves(error_class: FailureClass, was_sent: bool) -> None:
    assert not may_move(error_class, 0, was_sent=was_sent, was_taken=True)


def fail(circuit: Circuit, now: float, times: int = 1) -> None:
    for _ in range(times):
        circuit.end(now, OVERLOADED, is_try=circuit.begin(now))


def test_a_circuit_opens_after_failures_in_a_row() -> None:
    circuit = Circuit()
    fail(circuit, 0, FAILURES_TO_OPEN - 1)
    circuit.end(0, None, is_try=circuit.begin(0))
    fail(circuit, 0, FAILURES_TO_OPEN - 1)
    assert circuit.wait_seconds(0) == 0
    fail(circuit, 0)
    assert circuit.wait_seconds(0) == FIRST_PAUSE_SECONDS


def test_one_call_tries_an_open_circuit() -> None:
    circuit = Circuit()
    is_old_try = circuit.begin(0)
    fail(circuit, 0, FAILURES_TO_OPEN)
    now = FIRST_PAUSE_SECONDS
    assert circuit.wait_seconds(now) == 0
    is_try = circuit.begin(now)
    assert (is_old_try, is_try) == (False, True)
    assert circuit.wait_seconds(now) == math.inf
    circuit.end(now, None, is_try=is_try)
    assert circuit.wait_seconds(now) == 0
    assert not circuit.is_open


def test_a_cancelled_try_leaves_room_for_another() -> None:
    circuit = Circuit()
    fail(circuit, 0, FAILURES_TO_OPEN)
    circuit.end(99, FailureClass.INTERRUPTED, is_try=circuit.begin(99))
    assert circuit.is_open
    assert circuit.begin(99)


def test_pauses_double_to_a_limit() -> None:
    circuit, now, pauses = Circuit(), 0.0, []
    fail(circuit, now, FAILURES_TO_OPEN - 1)
    for _ in range(7):
        fail(circuit, now)
        pauses.append(circuit.wait_seconds(now))
        now += pauses[-1]
    assert pauses == [10, 20, 40, 80, 160, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS]


def test_calls_that_meet_one_outage_make_one_pause() -> None:
    circuit = Circuit()
    sent = [circuit.begin(0) for _ in range(50)]
    for is_try in sent:
        circuit.end(1, OVERLOADED, is_try=is_try)
    assert circuit.wait_seconds(1) == FIRST_PAUSE_SECONDS
    fail(circuit, 11)
    assert circuit.wait_seconds(11) == 2 * FIRST_PAUSE_SECONDS


def test_refused_request_does_not_open_the_circuit() -> None:
    circuit = Circuit()
    for _ in range(9):
        circuit.end(0, FailureClass.INVALID_REQUEST, is_try=circuit.begin(0))
        circuit.end(0, FailureClass.RATE_LIMITED, is_try=circuit.begin(0))
    assert not circuit.is_open


def test_tasks_share_the_endpoints_of_a_rank() -> None:
    endpoints = [RankedEndpoint(1, "a"), RankedEndpoint(1, "b"), RankedEndpoint(1, "c"), RankedEndpoint(2, "d")]
    orders = {f"task-{number}": preferred_order(f"task-{number}", endpoints) for number in range(3000)}
    firsts = Counter(order[0] for order in orders.values())
    assert set(firsts) == {"a", "b", "c"}
    assert min(firsts.values()) > 800
    assert all(order[-1] == "d" for order in orders.values())
    without_b = [endpoint for endpoint in endpoints if endpoint.name != "b"]
    for task, order in orders.items():
        assert preferred_order(task, without_b) == [name for name in order if name != "b"], "the others stay"


def test_a_task_stays_where_its_prompt_is_cached() -> None:
    warm = WarmCaches()
    warm.keep(0, "t", "b")
    assert warm.order(KEPT_SECONDS - 1, "t", ["a", "b", "c"]) == ["b", "a", "c"]
    assert warm.order(KEPT_SECONDS, "t", ["a", "b", "c"]) == ["a", "b", "c"]
    assert warm.order(1, "t", ["a", "c"]) == ["a", "c"], "the endpoint lost the model"
    assert warm.order(1, "other", ["a", "b"]) == ["a", "b"]


def test_cold_tasks_are_forgotten() -> None:
    kept = OrderedDict[str, tuple[str, float]]()
    warm = WarmCaches(kept)
    for number in range(1000):
        warm.keep(number, f"t{number}", "a")
    assert len(kept) <= KEPT_SECONDS + 1
