"""Limits the calls at one server: at a gateway per client and tenant, elsewhere per identity of a worker.

A call beyond the limit of running calls waits, fairly between the clients of the tenant, because a client
that is refused at once repeats the call at once. All other limits refuse.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final
from weakref import WeakValueDictionary

from tenure.domain.access import Principal
from tenure.domain.call_limits import (
    FREE_RETRY_SECONDS,
    Call,
    CallUsage,
    ClientCallLimits,
    InFlight,
    LimitedCaller,
    limit_reached,
    limited_client,
    limited_worker,
)
from tenure.runtime.settings import setting

WAIT_SECONDS: Final = 5.0
"""How long a call waits before it is refused."""
MAX_WAITING: Final = 1000
"""The waiting calls of a tenant, and of one client half of them; beyond it, a call is refused at once."""
OPENING_SECONDS: Final = 1.0
"""How long a stream or long poll counts as running at most: it may have no message for minutes."""
_SPARE: Final = 100
"""Clients and tenants that are remembered although they are unused, beside as many as are used."""

Answered = Callable[[], None]


def uncounted() -> None:
    """Is called with each message of a stream without limits."""


class CallQueue:
    """The running calls of one tenant, and the calls that wait."""

    def __init__(self, owner: str, most: int, most_of_client: int) -> None:
        self._owner, self._most, self._most_of_client = owner, most, most_of_client
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def is_unused(self) -> bool:
        """Whether no call runs or waits."""
        return not self._running and not self._waiting

    async def take(self, client: str) -> None:
        """Waits until a call of the client may run, and counts it. Raises LimitReached."""
        if client not in self._waiting and self._is_free(client):
            self._running[client] += 1
            return
        of_client = len(self._waiting.get(client, ()))
        if of_client >= MAX_WAITING // 2 or sum(map(len, self._waiting.values())) >= MAX_WAITING:
            raise self._refusal()
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(waiter)
        try:
            await asyncio.wait([waiter], timeout=WAIT_SECONDS)
        except asyncio.CancelledError:
            self._leave(client, waiter)
            raise
        if not waiter.done():
            self._leave(client, waiter)
            raise self._refusal()

    def give(self, client: str) -> None:
        """Counts the end of a running call, and lets the next one run."""
        self._running[client] -= 1
        if not self._running[client]:
            del self._running[client]
        following = next((name for name in self._waiting if self._is_free(name)), None)
        if following is not None:
            waiter = self._waiting[following].popleft()
            self._waiting.move_to_end(following)
            self._drop_if_empty(following)
            self._running[following] += 1
            waiter.set_result(None)

    def _is_free(self, client: str) -> bool:
        return self._running.total() < self._most and self._running[client] < self._most_of_client

    def _leave(self, client: str, waiter: asyncio.Future[None]) -> None:
        if waiter.done():
            self.give(client)
        else:
            self._waiting[client].remove(waiter)
            self._drop_if_empty(client)

    def _drop_if_empty(self, client: str) -> None:
        if not self._waiting[client]:
            del self._waiting[client]

    def _refusal(self) -> Exception:
        text = f"{self._most} running calls"
        if self._most_of_client < self._most:
            text = f"{text}, or {self._most_of_client} of one client,"
        return limit_reached(self._owner, "RUNNING_CALLS", text, FREE_RETRY_SECONDS)


@dataclass(frozen=True, slots=True)
class InFlightLimits:
    """The limits of a caller's requests without a result, over all its streams of requests."""

    requests: int
    size_bytes: int


class CallLimiter:
    """Counts calls and rates. `limited`: returns who has the limits, or None for a caller without limits.

    `client_percent`: the part of the limits that one client of a group may use.
    """

    def __init__(
        self,
        limits: ClientCallLimits,
        client_percent: int,
        clock: Callable[[], float] = monotonic,
        *,
        limited: Callable[[Principal], LimitedCaller | None] = limited_client,
        in_flight: InFlightLimits | None = None,
    ) -> None:
        self._group_limits, self._client_limits = limits, limits.part(client_percent)
        self._limited, self._clock, self._in_flight_limits = limited, clock, in_flight
        self._queues: dict[str, CallQueue] = {}
        self._usages: dict[str, CallUsage] = {}
        self._most_usages = _SPARE
        self._in_flight: WeakValueDictionary[str, InFlight] = WeakValueDictionary()

    def in_flight(self, principal: Principal) -> InFlight:
        """Returns the requests in flight of all streams of a caller: the same object while one of them is open."""
        caller, limits = self._limited(principal), self._in_flight_limits
        if caller is None or limits is None:
            return InFlight.unlimited()
        shared = self._in_flight.get(caller.group)
        if shared is None:
            shared = self._in_flight[caller.group] = InFlight(caller.group, limits.requests, limits.size_bytes)
        return shared

    @asynccontextmanager
    async def running(
        self, principal: Principal, *, is_long: bool, size_bytes: int | None, connection: str
    ) -> AsyncIterator[Answered]:
        """Counts a call while the block runs, after it waited until it may run. Raises LimitReached.

        Yields a function to call with each message of a stream. `is_long`: a stream or a long poll.
        `size_bytes`: of the request, or None for a stream of requests, which does not wait: `in_flight` limits them.
        """
        caller = self._limited(principal)
        if caller is None:
            yield uncounted
            return
        call = Call(is_long, connection, size_bytes or 0)
        usages = self._begin(caller, call)
        try:
            turn = nullcontext(uncounted) if size_bytes is None else self._wait(caller, is_long=is_long)
            async with turn as answered:
                yield answered
        finally:
            for usage in usages:
                usage.end(call)

    @asynccontextmanager
    async def _wait(self, caller: LimitedCaller, *, is_long: bool) -> AsyncIterator[Answered]:
        client = caller.client or caller.group
        queue = self._queues.get(caller.group)
        if queue is None:
            most = self._group_limits.calls
            most_of_client = most if caller.client is None else self._client_limits.calls
            queue = self._queues[caller.group] = CallQueue(caller.group, most, most_of_client)
        try:
            await queue.take(client)
            running = _RunningCall(partial(queue.give, client))
            opened = asyncio.get_running_loop().call_later(OPENING_SECONDS, running.end) if is_long else None
            try:
                yield running.end if is_long else uncounted
            finally:
                running.end()
                if opened is not None:
                    opened.cancel()
        finally:
            if self._queues.get(caller.group) is queue and queue.is_unused:
                del self._queues[caller.group]

    def _begin(self, caller: LimitedCaller, call: Call) -> list[CallUsage]:
        now_seconds = self._clock()
        self._forget_unused(now_seconds)
        usages = [self._usage(caller.client, self._client_limits)] if caller.client is not None else []
        usages.append(self._usage(caller.group, self._group_limits))
        for usage in usages:
            usage.check(call, now_seconds)
        for usage in usages:
            usage.begin(call)
        return usages

    def _usage(self, owner: str, limits: ClientCallLimits) -> CallUsage:
        usage = self._usages.get(owner)
        if usage is None:
            usage = self._usages[owner] = CallUsage(owner, limits)
        return usage

    def _forget_unused(self, now_seconds: float) -> None:
        if len(self._usages) >= self._most_usages:
            self._usages = {owner: one for owner, one in self._usages.items() if not one.is_unused(now_seconds)}
            self._most_usages = 2 * len(self._usages) + _SPARE


class _RunningCall:
    """A running call, which ends once: with a stream's first message, after `OPENING_SECONDS`, or with the call."""

    def __init__(self, give: Callable[[], None]) -> None:
        self._give = give
        self._has_ended = False

    def end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._give()


@dataclass(frozen=True, kw_only=True)
class WorkerLimitSettings:
    """The limits of each identity of a worker at one server, under TENURE_<SERVICE>_LIMIT_."""

    calls: int = setting("calls of a worker's identity that run at once; others wait up to 5 s", default=64, minimum=1)
    streams: int = setting("open streams of a worker's identity", default=2000, minimum=1)
    connections: int = setting("connections of a worker's identity with a running call", default=1000, minimum=1)
    calls_per_second: float = setting("calls of a worker's identity, streams included", default=5000.0, minimum=0.1)
    bytes_per_second: float = setting(
        "request bytes of a worker's identity, besides those in streams", default=32.0 * 1024 * 1024, minimum=1.0
    )
    requests_in_flight: int = setting(
        "requests without a result in the streams of a worker's identity", default=2048, minimum=1
    )
    bytes_in_flight: int = setting("bytes of these requests", default=32 * 1024 * 1024, minimum=1)

    def limiter(self) -> CallLimiter:
        """Returns the limiter of one server."""
        limits = ClientCallLimits(
            self.calls, self.streams, self.connections, self.calls_per_second, self.bytes_per_second
        )
        in_flight = InFlightLimits(self.requests_in_flight, self.bytes_in_flight)
        return CallLimiter(limits, 100, limited=limited_worker, in_flight=in_flight)
