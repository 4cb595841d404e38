"""Which endpoint gets a call: circuits, the order of a task, and the failures that move a call."""

from __future__ import annotations

import itertools
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
        (FailureClass.SILENT, True, False, False),
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


TASKS = itertools.count()


def end(circuit: Circuit, now: float, error_class: FailureClass | None, tenant: str = "t", task: str = "") -> None:
    """The end of a call that was admitted at the same moment."""
    is_try = circuit.begin(now, tenant)
    circuit.end(now, error_class, task_id=task or str(next(TASKS)), tenant=tenant, is_try=is_try)


def fail(circuit: Circuit, now: float, times: int = 1, tenant: str = "t") -> None:
    for _ in range(times):
        end(circuit, now, OVERLOADED, tenant)


def test_a_circuit_opens_after_failures_in_a_row() -> None:
    circuit = Circuit()
    fail(circuit, 0, FAILURES_TO_OPEN - 1)
    end(circuit, 0, None)
    fail(circuit, 0, FAILURES_TO_OPEN - 1)
    assert circuit.wait_seconds(0, "t") == 0
    fail(circuit, 0)
    assert circuit.wait_seconds(0, "t") == FIRST_PAUSE_SECONDS


def test_one_call_tries_an_open_circuit() -> None:
    circuit = Circuit()
    is_old_try = circuit.begin(0, "t")
    fail(circuit, 0, FAILURES_TO_OPEN)
    now = FIRST_PAUSE_SECONDS
    assert circuit.wait_seconds(now, "t") == 0
    is_try = circuit.begin(now, "t")
    assert (is_old_try, is_try, circuit.begin(now, "t")) == (False, True, False)
    assert circuit.wait_seconds(now, "t") == math.inf
    circuit.end(now, None, task_id="try", tenant="t", is_try=True)
    assert circuit.wait_seconds(now, "t") == 0
    assert not circuit.is_open


def test_a_cancelled_try_leaves_room_for_another() -> None:
    circuit = Circuit()
    fail(circuit, 0, FAILURES_TO_OPEN)
    end(circuit, 99, FailureClass.INTERRUPTED)
    assert circuit.is_open
    assert circuit.begin(99, "t")


def test_failures_of_one_task_keep_nothing_out() -> None:
    circuit = Circuit()
    for _ in range(9):
        end(circuit, 0, OVERLOADED, task="its prompt may be at fault")
    assert not circuit.is_open


def test_failures_of_one_tenant_keep_out_that_tenant_only() -> None:
    circuit = Circuit()
    fail(circuit, 0, 9, "noisy")
    assert circuit.wait_seconds(0, "noisy") == FIRST_PAUSE_SECONDS
    assert circuit.wait_seconds(0, "other") == 0
    assert not circuit.begin(0, "other"), "a usual call"
    fail(circuit, 0, 1, "other")
    assert circuit.wait_seconds(0, "third") == FIRST_PAUSE_SECONDS
    end(circuit, FIRST_PAUSE_SECONDS, None, "third")
    assert circuit.wait_seconds(FIRST_PAUSE_SECONDS, "noisy") == 0


def test_pauses_double_to_a_limit() -> None:
    circuit, now, pauses = Circuit(), 0.0, []
    fail(circuit, now, FAILURES_TO_OPEN - 1)
    for _ in range(7):
        fail(circuit, now)
        pauses.append(circuit.wait_seconds(now, "t"))
        now += pauses[-1]
    assert pauses == [10, 20, 40, 80, 160, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS]


def test_calls_that_meet_one_outage_make_one_pause() -> None:
    circuit = Circuit()
    for _ in range(50):
        circuit.end(1, OVERLOADED, task_id=str(next(TASKS)), tenant="t")
    assert circuit.wait_seconds(1, "t") == FIRST_PAUSE_SECONDS
    fail(circuit, 11)
    assert circuit.wait_seconds(11, "t") == 2 * FIRST_PAUSE_SECONDS


def test_refused_request_does_not_open_the_circuit() -> None:
    circuit = Circuit()
    for _ in range(9):
        for error_class in (FailureClass.INVALID_REQUEST, FailureClass.RATE_LIMITED, FailureClass.PERMISSION):
            end(circuit, 0, error_class)
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
