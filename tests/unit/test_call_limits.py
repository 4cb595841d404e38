"""Limits of a client's and a tenant's calls: which call waits or is refused, for how long, and what is remembered."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.access import Principal, Role
from tenure.domain.call_limits import BURST_SECONDS, CallUsage, ClientCallLimits, limited_worker
from tenure.domain.errors import LimitReached
from tenure.runtime.rpc import call_limiter
from tenure.runtime.rpc.call_limiter import CallLimiter, CallQueue, InFlightLimits

LIMITS = ClientCallLimits(calls=4, streams=6, connections=3, calls_per_second=100.0, bytes_per_second=1e6)


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
def limiter(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> CallLimiter:
    monkeypatch.setattr(call_limiter, "WAIT_SECONDS", 0.01)
    return CallLimiter(LIMITS, 50, clock)


def client(name: str = "key/a", tenant: str | None = "acme") -> Principal:
    return Principal(name, tenant=tenant)


def running(limiter: CallLimiter, principal: Principal, **fields: Any) -> Any:
    options = {"is_long": False, "size_bytes": 0, "connection": "ipv4:1", **fields}
    return limiter.running(principal, **options)


async def reason(limiter: CallLimiter, principal: Principal, **fields: Any) -> str:
    """The reason with which a call is refused now, or "" for an accepted one."""
    try:
        async with running(limiter, principal, **fields):
            return ""
    except LimitReached as refusal:
        return refusal.reason if refusal.retry_after_seconds else "no retry time"


async def test_a_client_has_a_part_of_its_tenants_calls(limiter: CallLimiter) -> None:
    async with AsyncExitStack() as calls:
        for _ in range(2):
            await calls.enter_async_context(running(limiter, client()))
        assert await reason(limiter, client()) == "RUNNING_CALLS"
        for _ in range(2):
            await calls.enter_async_context(running(limiter, client("key/b")))
        with pytest.raises(LimitReached, match="tenant acme") as refused:
            await calls.enter_async_context(running(limiter, client("key/c")))
        assert refused.value.metadata["subject"] == "the tenant acme"
        assert await reason(limiter, client("key/a", "other")) == ""
    assert await reason(limiter, client()) == ""


async def test_streams_and_connections_are_limited_while_they_are_used(limiter: CallLimiter) -> None:
    async with AsyncExitStack() as calls:
        for _ in range(3):
            (await calls.enter_async_context(running(limiter, client(), is_long=True)))()
        with pytest.raises(LimitReached, match="client key/a"):
            await calls.enter_async_context(running(limiter, client(), is_long=True))
        assert await reason(limiter, client(), is_long=True) == "OPEN_STREAMS"
        await calls.enter_async_context(running(limiter, client("key/b"), connection="ipv4:2"))
        await calls.enter_async_context(running(limiter, client("key/c"), connection="ipv4:3"))
        assert await reason(limiter, client("key/d"), connection="ipv4:4") == "CONNECTIONS"
        assert await reason(limiter, client("key/d"), connection="ipv4:3") == ""


async def test_a_long_call_runs_until_its_first_message(limiter: CallLimiter, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncExitStack() as calls:
        answered = [await calls.enter_async_context(running(limiter, client(), is_long=True)) for _ in range(2)]
        assert await reason(limiter, client()) == "RUNNING_CALLS"
        answered[0]()
        answered[0]()
        assert await reason(limiter, client()) == ""
        monkeypatch.setattr(call_limiter, "OPENING_SECONDS", 0.0)
        await calls.enter_async_context(running(limiter, client(), is_long=True))
        assert await reason(limiter, client()) == "", "it had no message, and its time is over"
        answered[1]()


@asynccontextmanager
async def waiting(queue: CallQueue, client: str) -> AsyncIterator[asyncio.Task[None]]:
    """A call that waits for its turn; cancelled at the end."""
    call = asyncio.create_task(queue.take(client))
    await asyncio.sleep(0)
    assert not call.done()
    yield call
    call.cancel()
    await asyncio.wait([call])


async def test_waiting_calls_run_in_turn_of_their_clients() -> None:
    queue = CallQueue("acme", 2, 2)
    await queue.take("a")
    await queue.take("a")
    async with waiting(queue, "a") as first, waiting(queue, "a") as second, waiting(queue, "b") as other:
        queue.give("a")
        await first
        queue.give("a")
        await other
        assert not second.done()
        queue.give("b")
        await second


async def test_a_waiting_call_of_a_client_at_its_limit_is_passed_over() -> None:
    queue = CallQueue("acme", 3, 2)
    for name in ("a", "a", "b"):
        await queue.take(name)
    async with waiting(queue, "a") as blocked, waiting(queue, "b") as other:
        queue.give("b")
        await other
        queue.give("a")
        await blocked


async def test_a_call_that_is_cancelled_in_its_turn_gives_it_back() -> None:
    queue = CallQueue("acme", 1, 1)
    await queue.take("a")
    async with waiting(queue, "a") as first, waiting(queue, "b") as second:
        queue.give("a")  # the turn is the first one's, which is cancelled before it hears of it
        first.cancel()
        await second
        queue.give("b")
    assert queue.is_unused


async def test_more_calls_than_may_wait_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_limiter, "MAX_WAITING", 2)
    queue = CallQueue("acme", 1, 1)
    await queue.take("a")
    async with waiting(queue, "a"):
        with pytest.raises(LimitReached):  # one client has half of the places
            await asyncio.wait_for(queue.take("a"), 0.1)
        async with waiting(queue, "b"):
            with pytest.raises(LimitReached):
                await asyncio.wait_for(queue.take("c"), 0.1)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["begin", "end", "cancel"])), max_size=60))
def test_turns_are_never_lost_or_given_twice(acts: list[tuple[str, str]]) -> None:
    async def play() -> None:
        queue, calls = CallQueue("acme", 3, 2), list[tuple[str, asyncio.Task[None]]]()
        for name, act in acts:
            mine = [call for owner, call in calls if owner == name]
            if act == "begin":
                calls.append((name, asyncio.create_task(queue.take(name))))
            elif act == "cancel" and mine:
                mine[-1].cancel()
            elif act == "end" and (ready := [call for call in mine if call.done()]):
                calls.remove((name, ready[0]))
                if not ready[0].cancelled():
                    queue.give(name)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            running = [owner for owner, call in calls if call.done() and not call.cancelled()]
            assert len(running) <= 3
            assert all(running.count(owner) <= 2 for owner in running)
            blocked = [owner for owner, call in calls if not call.done()]
            assert len(running) == 3 or all(running.count(owner) == 2 for owner in blocked), "a turn is unused"
        for name, call in calls:
            call.cancel()
            await asyncio.wait([call])
            if not call.cancelled():
                queue.give(name)
        assert queue.is_unused

    asyncio.run(play())


async def test_calls_per_second_refill(limiter: CallLimiter, clock: Clock) -> None:
    begun = 0
    while await reason(limiter, client()) == "":
        begun += 1
    assert begun == 50 * BURST_SECONDS
    with pytest.raises(LimitReached) as refused:
        await running(limiter, client()).__aenter__()
    assert refused.value.retry_after_seconds == pytest.approx(1 / 50)
    clock.now += 1 / 50
    assert await reason(limiter, client()) == ""
    assert await reason(limiter, client()) == "CALL_RATE"


async def test_a_request_larger_than_the_rate_passes_and_is_paid_later(clock: Clock) -> None:
    limiter = CallLimiter(ClientCallLimits(10, 10, 10, 100.0, bytes_per_second=1000.0), 100, clock)
    assert await reason(limiter, client(), size_bytes=10_000) == ""
    with pytest.raises(LimitReached) as refused:
        await running(limiter, client()).__aenter__()
    assert refused.value.reason == "BYTE_RATE"
    wait = refused.value.retry_after_seconds
    assert wait is not None
    assert wait == pytest.approx((10_000 - 2000) / 1000, abs=0.01)
    clock.now += wait
    assert await reason(limiter, client()) == ""


@pytest.mark.parametrize("principal", [client(tenant=None), Principal("spiffe://tenure/operator/o")])
async def test_operators_have_no_limits(limiter: CallLimiter, principal: Principal) -> None:
    async with AsyncExitStack() as calls:
        for _ in range(1000):
            await calls.enter_async_context(running(limiter, principal))


async def test_a_failed_call_is_over_too(limiter: CallLimiter) -> None:
    for _ in range(10):
        with pytest.raises(ZeroDivisionError):
            async with running(limiter, client()):
                _ = 1 // 0
    assert await reason(limiter, client()) == ""


async def test_clients_without_calls_are_forgotten_but_not_their_rates(limiter: CallLimiter, clock: Clock) -> None:
    while await reason(limiter, client()) == "":
        pass
    held = running(limiter, client("key/held"), is_long=True)
    await held.__aenter__()
    for number in range(10_000):
        clock.now += 0.01
        assert await reason(limiter, client(f"key/{number}", f"tenant-{number}")) == ""
        if number == 50:
            assert await reason(limiter, client()) in {"", "CALL_RATE"}
    gc.collect()
    assert sum(isinstance(one, CallUsage) for one in gc.get_objects()) < 2500
    await held.__aexit__(None, None, None)


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 5000)), max_size=50))
def test_no_client_gets_more_bytes_than_its_rate(calls: list[tuple[float, int]]) -> None:
    clock = Clock()
    began = clock.now
    limiter = CallLimiter(ClientCallLimits(10, 10, 10, 1e9, bytes_per_second=1000.0), 100, clock)
    taken, largest = 0, 0
    for pause, size in calls:
        clock.now += pause
        if asyncio.run(reason(limiter, client(), size_bytes=size)) == "":
            taken += size
            largest = max(largest, size)
    assert taken <= 1000 * (clock.now - began + BURST_SECONDS) + largest


@pytest.fixture
def worker_limiter(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> CallLimiter:
    monkeypatch.setattr(call_limiter, "WAIT_SECONDS", 0.01)
    return CallLimiter(LIMITS, 100, clock, limited=limited_worker, in_flight=InFlightLimits(3, 1000))


def worker(name: str = "w") -> Principal:
    return Principal(f"spiffe://tenure/worker/{name}", Role.WORKER)


async def test_each_identity_of_a_worker_has_the_limits(worker_limiter: CallLimiter) -> None:
    async with AsyncExitStack() as calls:
        for _ in range(LIMITS.calls):
            await calls.enter_async_context(running(worker_limiter, worker()))
        with pytest.raises(LimitReached, match="spiffe://tenure/worker/w"):
            await calls.enter_async_context(running(worker_limiter, worker()))
        assert await reason(worker_limiter, worker("other")) == ""
        for role in (Role.GATEWAY, Role.COORDINATOR):
            assert await reason(worker_limiter, Principal("spiffe://tenure/x/w", role)) == ""
    assert await reason(worker_limiter, worker()) == ""


async def test_a_stream_of_requests_needs_no_turn(worker_limiter: CallLimiter) -> None:
    """A thousand workers attach at once after a restart, and their streams have no first message to wait for."""
    options: dict[str, Any] = {"is_long": True, "size_bytes": None}
    async with AsyncExitStack() as calls:
        for _ in range(LIMITS.streams):
            await calls.enter_async_context(running(worker_limiter, worker(), **options))
        assert await reason(worker_limiter, worker(), **options) == "OPEN_STREAMS"
        assert await reason(worker_limiter, worker()) == ""


def refused_in_flight(limiter: CallLimiter, principal: Principal) -> str:
    try:
        limiter.in_flight(principal).begin()
    except LimitReached as refusal:
        return refusal.reason if refusal.retry_after_seconds else "no retry time"
    return ""


def test_streams_of_an_identity_share_their_requests_in_flight(worker_limiter: CallLimiter) -> None:
    first, second = (worker_limiter.in_flight(worker()) for _ in range(2))
    first.begin()
    second.begin()
    second.begin()
    assert refused_in_flight(worker_limiter, worker()) == "REQUESTS_IN_FLIGHT"
    assert refused_in_flight(worker_limiter, worker("other")) == ""
    second.end()
    second.grow(1000)
    assert refused_in_flight(worker_limiter, worker()) == "BYTES_IN_FLIGHT"
    second.end(1000)
    assert refused_in_flight(worker_limiter, worker()) == ""
    del first, second
    assert refused_in_flight(worker_limiter, worker()) == "", "the streams are closed, and nothing is remembered"
    gateway = Principal("spiffe://tenure/gateway/g", Role.GATEWAY)
    assert [refused_in_flight(worker_limiter, gateway) for _ in range(9)] == [""] * 9
