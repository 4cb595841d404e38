"""Decides whether a caller may begin a call: limits of calls, streams, connections and bytes.

The limits of a gateway hold per client and tenant, and keep one tenant from delaying the others. Those of the other
services hold per identity of a worker, and keep one worker from delaying the others.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final, Self

from tenure.domain.access import Principal, Role
from tenure.domain.errors import LimitReached

BURST_SECONDS: Final = 2.0
"""An unused rate adds up to this many seconds of it."""
_ROUNDING_SECONDS: Final = 1e-6
FREE_RETRY_SECONDS: Final = 1.0
"""The retry time where another call has to end first: its end cannot be predicted."""
IN_FLIGHT_RETRY: Final = 0.2
"""Seconds: requests of a stream get their results sooner than calls end."""


@dataclass(frozen=True, slots=True)
class LimitedCaller:
    """The owner of limits, as errors name it. `client`: the part of them that one client has; None: all of them."""

    group: str
    client: str | None = None


def limited_client(principal: Principal) -> LimitedCaller | None:
    """Returns the limits that a client shares with its tenant. Operators and processes have none."""
    if principal.tenant is None:
        return None
    group = f"the tenant {principal.tenant}"
    return LimitedCaller(group, f"the client {principal.name} of {group}")


def limited_worker(principal: Principal) -> LimitedCaller | None:
    """Returns the limits of a worker's identity, which the workers of a pool may share. All other callers have none."""
    return LimitedCaller(f"the worker {principal.name}") if principal.role is Role.WORKER else None


@dataclass(frozen=True, slots=True)
class ClientCallLimits:
    """The limits at one server. `bytes`: of requests. `connections`: those with a call.

    `calls`: those that run at once. `streams`: open streams and long polls; they run only while they begin.
    """

    calls: int
    streams: int
    connections: int
    calls_per_second: float
    bytes_per_second: float

    def part(self, percent: int) -> ClientCallLimits:
        """Returns a part of these limits, at least 1 of each."""
        share = percent / 100
        return ClientCallLimits(
            max(1, round(self.calls * share)),
            max(1, round(self.streams * share)),
            max(1, round(self.connections * share)),
            max(1.0, self.calls_per_second * share),
            max(1.0, self.bytes_per_second * share),
        )


@dataclass(frozen=True, slots=True)
class Call:
    """A call that begins. `connection`: the address of the client. `size_bytes`: of the request.

    `is_long`: a stream or a long poll.
    """

    is_long: bool
    connection: str
    size_bytes: int


@dataclass(slots=True)
class Rate:
    """A token bucket. One call may overdraw it, so that a request larger than the bucket passes."""

    per_second: float
    _level: float = 0.0
    _at_seconds: float = float("-inf")

    def wait_seconds(self, now_seconds: float) -> float:
        """Returns the time until a call may begin, 0 for now."""
        self._refill(now_seconds)
        wait_seconds = (1.0 - self._level) / self.per_second
        return wait_seconds if wait_seconds > _ROUNDING_SECONDS else 0.0

    def is_full(self, now_seconds: float) -> bool:
        """Whether nothing of the bucket is used."""
        self._refill(now_seconds)
        return self._level == self.per_second * BURST_SECONDS

    def spend(self, amount: float) -> None:
        """Takes an amount for a call."""
        self._level -= amount

    def _refill(self, now_seconds: float) -> None:
        earned = (now_seconds - self._at_seconds) * self.per_second
        self._level = min(self.per_second * BURST_SECONDS, self._level + earned)
        self._at_seconds = now_seconds


class CallUsage:
    """The open streams, the connections and the rates of one client, or of one tenant. `owner`: names it in errors."""

    def __init__(self, owner: str, limits: ClientCallLimits) -> None:
        self.owner, self._limits = owner, limits
        self._streams = 0
        self._connections: Counter[str] = Counter()
        self._call_rate, self._byte_rate = Rate(limits.calls_per_second), Rate(limits.bytes_per_second)

    def is_unused(self, now_seconds: float) -> bool:
        """Whether no call runs and the rates are as at first, so that this object may be made anew."""
        rates = (self._call_rate, self._byte_rate)
        return not self._connections and all(rate.is_full(now_seconds) for rate in rates)

    def check(self, call: Call, now_seconds: float) -> None:
        """Raises LimitReached if the call may not begin now. Takes nothing."""
        limits = self._limits
        if call.is_long and self._streams >= limits.streams:
            raise limit_reached(self.owner, "OPEN_STREAMS", f"{limits.streams} open streams", FREE_RETRY_SECONDS)
        if call.connection not in self._connections and len(self._connections) >= limits.connections:
            text = f"calls on {limits.connections} connections"
            raise limit_reached(self.owner, "CONNECTIONS", text, FREE_RETRY_SECONDS)
        if wait := self._call_rate.wait_seconds(now_seconds):
            raise limit_reached(self.owner, "CALL_RATE", f"{limits.calls_per_second:g} calls per second", wait)
        if wait := self._byte_rate.wait_seconds(now_seconds):
            text = f"{limits.bytes_per_second:g} bytes of requests per second"
            raise limit_reached(self.owner, "BYTE_RATE", text, wait)

    def begin(self, call: Call) -> None:
        """Counts a call that `check` has accepted."""
        self._streams += call.is_long
        self._connections[call.connection] += 1
        self._call_rate.spend(1)
        self._byte_rate.spend(call.size_bytes)

    def end(self, call: Call) -> None:
        """Counts the end of a call that began."""
        self._streams -= call.is_long
        self._connections[call.connection] -= 1
        if not self._connections[call.connection]:
            del self._connections[call.connection]


def limit_reached(owner: str, reason: str, limit: str, retry_after_seconds: float) -> LimitReached:
    """Returns the refusal of a call beyond a limit."""
    return LimitReached(
        f"{owner} has reached its limit of {limit} at this server; try again later",
        reason=reason,
        retry_after_seconds=retry_after_seconds,
        metadata={"subject": owner},
    )


class InFlight:
    """The requests without a result of one caller, over all its streams of requests at one server.

    A request whose size is known only later may exceed the limit of bytes; no further one begins then.
    """

    __slots__ = ("__weakref__", "_bytes", "_most", "_most_bytes", "_owner", "_requests")

    def __init__(self, owner: str, most: float, most_bytes: float) -> None:
        self._owner, self._most, self._most_bytes = owner, most, most_bytes
        self._requests = self._bytes = 0

    @classmethod
    def unlimited(cls) -> Self:
        """Returns the requests in flight of a caller without limits."""
        return cls("", float("inf"), float("inf"))

    def begin(self) -> None:
        """Counts a request. Raises LimitReached."""
        if self._requests >= self._most:
            raise limit_reached(self._owner, "REQUESTS_IN_FLIGHT", f"{self._most} requests in flight", IN_FLIGHT_RETRY)
        if self._bytes >= self._most_bytes:
            text = f"{self._most_bytes} bytes of requests in flight"
            raise limit_reached(self._owner, "BYTES_IN_FLIGHT", text, IN_FLIGHT_RETRY)
        self._requests += 1

    def grow(self, size_bytes: int) -> None:
        """Adds the size of a request that has begun."""
        self._bytes += size_bytes

    def end(self, size_bytes: int = 0) -> None:
        """Counts the result of a request. `size_bytes`: as in `grow`."""
        self._requests -= 1
        self._bytes -= size_bytes
