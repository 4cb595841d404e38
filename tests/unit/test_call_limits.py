"""Limits of a client's and a tenant's calls: which call is refused, for how long, and what is remembered."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.access import Principal
from tenure.domain.call_limits import BURST_SECONDS, CallLimits
from tenure.domain.errors import LimitReached
from tenure.runtime.call_limiter import CallLimiter
from tenure.v1 import task_service_pb2 as api

LIMITS = CallLimits(calls=4, streams=6, connections=3, calls_per_second=100.0, bytes_per_second=1e6)


class Clock:
    """Moves by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limiter(clock: Clock) -> CallLimiter:
    return CallLimiter(LIMITS, 50, clock)


def client(name: str = "key/a", tenant: str | None = "acme") -> Principal:
    return Principal(name, tenant=tenant)


def running(limiter: CallLimiter, principal: Principal, **fields: Any) -> Any:
    options = {"is_stream": False, "request": api.GetTaskRequest(), "connection": "ipv4:1", **fields}
    return limiter.running(principal, **options)


def reason(limiter: CallLimiter, principal: Principal, **fields: Any) -> str:
    """The reason with which a call is refused now, or "" for an accepted one."""
    try:
        with running(limiter, principal, **fields):
            return ""
    except LimitReached as refusal:
        return refusal.reason if refusal.retry_after_seconds else "no retry time"


def test_a_client_has_a_part_of_its_tenants_calls(limiter: CallLimiter) -> None:
    with ExitStack() as calls:
        for _ in range(2):
            calls.enter_context(running(limiter, client()))
        assert reason(limiter, client()) == "RUNNING_CALLS"
        assert reason(limiter, client(), is_stream=True) == ""
        for _ in range(2):
            calls.enter_context(running(limiter, client("key/b")))
        with pytest.raises(LimitReached, match="the tenant acme has reached its limit of 4 running calls") as refused:
            calls.enter_context(running(limiter, client("key/c")))
        assert refused.value.metadata["subject"] == "the tenant acme"
        assert reason(limiter, client("key/a", "other")) == ""
    assert reason(limiter, client()) == ""


def test_streams_and_connections_are_limited_while_they_are_used(limiter: CallLimiter) -> None:
    with ExitStack() as calls:
        for _ in range(3):
            calls.enter_context(running(limiter, client(), is_stream=True))
        assert reason(limiter, client(), is_stream=True) == "OPEN_STREAMS"
        calls.enter_context(running(limiter, client("key/b"), connection="ipv4:2"))
        calls.enter_context(running(limiter, client("key/c"), connection="ipv4:3"))
        assert reason(limiter, client("key/d"), connection="ipv4:4") == "CONNECTIONS"
        assert reason(limiter, client("key/d"), connection="ipv4:3") == ""


def test_calls_per_second_refill(limiter: CallLimiter, clock: Clock) -> None:
    begun = 0
    while reason(limiter, client()) == "":
        begun += 1
    assert begun == 50 * BURST_SECONDS
    with pytest.raises(LimitReached) as refused:
        running(limiter, client()).__enter__()
    assert refused.value.retry_after_seconds == pytest.approx(1 / 50)
    clock.now += 1 / 50
    assert reason(limiter, client()) == ""
    assert reason(limiter, client()) == "CALL_RATE"


def test_a_request_larger_than_the_rate_passes_and_is_paid_later(clock: Clock) -> None:
    limiter = CallLimiter(CallLimits(10, 10, 10, 100.0, bytes_per_second=1000.0), 100, clock)
    large = api.SubmitTaskRequest(goal="x" * 10_000)
    assert reason(limiter, client(), request=large) == ""
    with pytest.raises(LimitReached) as refused:
        running(limiter, client()).__enter__()
    assert refused.value.reason == "BYTE_RATE"
    wait = refused.value.retry_after_seconds
    assert wait is not None
    assert wait == pytest.approx((large.ByteSize() - 2000) / 1000, abs=0.01)
    clock.now += wait
    assert reason(limiter, client()) == ""


@pytest.mark.parametrize("principal", [client(tenant=None), Principal("spiffe://tenure/operator/o")])
def test_operators_have_no_limits(limiter: CallLimiter, principal: Principal) -> None:
    with ExitStack() as calls:
        for _ in range(1000):
            calls.enter_context(running(limiter, principal))


def test_a_failed_call_is_over_too(limiter: CallLimiter) -> None:
    for _ in range(10):
        with pytest.raises(ZeroDivisionError), running(limiter, client()):
            _ = 1 // 0
    assert reason(limiter, client()) == ""


def test_clients_without_calls_are_forgotten_and_their_rates_are_not(limiter: CallLimiter, clock: Clock) -> None:
    while reason(limiter, client()) == "":
        pass
    held = running(limiter, client("key/held"), is_stream=True)
    held.__enter__()
    for number in range(10_000):
        clock.now += 0.01
        assert reason(limiter, client(f"key/{number}", f"tenant-{number}")) == ""
        if number == 50:
            assert reason(limiter, client()) in {"", "CALL_RATE"}
    assert len(limiter._usages) < 2500
    assert any("key/held" in owner for owner in limiter._usages)
    held.__exit__(None, None, None)


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 5000)), max_size=50))
def test_no_client_gets_more_bytes_than_its_rate(calls: list[tuple[float, int]]) -> None:
    clock = Clock()
    began = clock.now
    limiter = CallLimiter(CallLimits(10, 10, 10, 1e9, bytes_per_second=1000.0), 100, clock)
    taken, largest = 0, 0
    for pause, size in calls:
        clock.now += pause
        message = api.SubmitTaskRequest(goal="x" * size)
        if reason(limiter, client(), request=message) == "":
            taken += message.ByteSize()
            largest = max(largest, message.ByteSize())
    assert taken <= 1000 * (clock.now - began + BURST_SECONDS) + largest
