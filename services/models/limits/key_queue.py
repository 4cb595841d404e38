"""The calls that wait for one key and model.

The rule of tenure.domain.rate_limits says when the next one goes, and that of tenure.domain.fairness whose it is.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Final, NamedTuple

from tenure.domain.budget import TokenUsage
from tenure.domain.fairness import FLOOR_SLOTS, Line, Load, Slots, Waiting, order_of_tiers, share
from tenure.domain.rate_limits import CallSize, Flight, KeyLimiter
from tenure.domain.retry import FailureClass
from tenure.domain.task import Priority
from tenure.model_providers.client import ModelCallFailed
from tenure.model_providers.rate_limit_headers import stated_limits

MAX_WAITING: Final = 20_000
_RATE_LIMITED: Final = 429
_FULL_RETRY_SECONDS: Final = 10.0
_LONGEST_TIMER_SECONDS: Final = 60.0
_SMALLEST: Final = CallSize(0, 0)


class LineCaller(NamedTuple):
    """Whose call it is. `is_new`: the first one of its task."""

    tenant: str
    priority: Priority
    is_new: bool = False

    @property
    def line(self) -> Line:
        """The line in which the call waits."""
        return Line(self.priority, self.tenant, self.is_new)


@dataclass(eq=False, slots=True)
class WaitingCall:
    """A call that waits. `went`: done when it may be sent."""

    caller: LineCaller
    size: CallSize
    went: asyncio.Future[KeyFlight]
    was_taken: bool = False
    since: float = field(default_factory=monotonic)
    since_time: datetime = field(default_factory=lambda: datetime.now(UTC))

    def take(self) -> KeyFlight:
        """Returns the flight, which the caller ends."""
        self.was_taken = True
        return self.went.result()


class KeyQueue:
    """The limiter of one key and model, and the calls that wait for it."""

    def __init__(self) -> None:
        self.limiter = KeyLimiter()
        self._lines: dict[Line, deque[WaitingCall]] = {}
        self._running: Counter[str] = Counter()
        self._position = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """The number of calls that wait."""
        return sum(map(len, self._lines.values()))

    @property
    def is_idle(self) -> bool:
        """Whether no call waits and none is in flight."""
        return not self._lines and not self.limiter.in_flight

    def oldest_wait_seconds(self) -> float:
        """Returns how long the oldest call has waited; 0 without one."""
        return monotonic() - min((line[0].since for line in self._lines.values()), default=monotonic())

    def expected_wait_seconds(self, size: CallSize) -> float:
        """Returns how long a new call waits at least, as far as that is known."""
        wait = self.limiter.wait_seconds(monotonic(), size)
        return max(wait if math.isfinite(wait) else 0.0, self.oldest_wait_seconds())

    def take_now(self, caller: LineCaller, size: CallSize) -> KeyFlight | None:
        """Returns a call that may go at once, unless others wait."""
        if self._lines or self.limiter.wait_seconds(monotonic(), size):
            return None
        return self._send(caller, size)

    def enqueue(self, caller: LineCaller, size: CallSize) -> WaitingCall:
        """Lets a call wait. `leave` follows. Raises ModelCallFailed if too many calls wait."""
        if self.waiting >= MAX_WAITING:
            message = f"{MAX_WAITING} calls wait for the rate limit of this key and model already"
            raise ModelCallFailed(FailureClass.RATE_LIMITED, message, retry_after_seconds=_FULL_RETRY_SECONDS)
        call = WaitingCall(caller, size, asyncio.get_running_loop().create_future())
        self._lines.setdefault(caller.line, deque()).append(call)
        self._let_go()
        return call

    def leave(self, call: WaitingCall) -> None:
        """Takes a call out, unless it was taken. Repeatable."""
        if call.was_taken:
            return
        call.was_taken = True
        if call.went.done():
            call.went.result().end(None)
            return
        line = self._lines[call.caller.line]
        line.remove(call)
        if not line:
            del self._lines[call.caller.line]
        self._let_go()

    def _send(self, caller: LineCaller, size: CallSize) -> KeyFlight:
        self._position += 1
        self._running[caller.tenant] += 1
        return KeyFlight(self, caller, self.limiter.send(monotonic(), size))

    def _let_go(self) -> None:
        """Lets all calls go that may go, and wakes up again when the next one may."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._lines:
            # the order of the lines costs more than the limit, and most of the time no call may go
            wait = self.limiter.wait_seconds(monotonic(), _SMALLEST)
            line = None if wait else self._next_line()
            if line is not None:
                wait = self.limiter.wait_seconds(monotonic(), self._lines[line][0].size)
            if line is None or wait:
                self._wake_in(wait)
                return
            call = self._lines[line].popleft()
            if not self._lines[line]:
                del self._lines[line]
            call.went.set_result(self._send(call.caller, call.size))

    def _wake_in(self, seconds: float) -> None:
        """Tries again later. An infinite wait ends with an answer."""
        if math.isfinite(seconds):
            wait = min(seconds, _LONGEST_TIMER_SECONDS)
            self._timer = asyncio.get_running_loop().call_later(wait, self._let_go)

    def _next_line(self) -> Line:
        """Returns the line whose first call is next, see tenure.domain.fairness."""
        waiting = [Waiting(line, len(calls), calls[0].since_time) for line, calls in self._lines.items()]
        loads = {line.tenant: Load(self._running[line.tenant]) for line in self._lines}
        tiers = {line.tier for line in self._lines}
        portions = order_of_tiers(tiers, self._position, 1, FLOOR_SLOTS)
        return share(waiting, loads, Slots.open_to_all(1), portions)[0]

    def landed(self, caller: LineCaller) -> None:
        """Takes the end of a flight of this caller."""
        self._running[caller.tenant] -= 1
        if not self._running[caller.tenant]:
            del self._running[caller.tenant]
        self._let_go()

    def heard(self) -> None:
        """Lets calls go after the limiter learned something."""
        self._let_go()


class KeyFlight:
    """A call that may be sent now. `end` or `refuse` gives back what it did not take."""

    def __init__(self, queue: KeyQueue, caller: LineCaller, flight: Flight) -> None:
        self._queue, self._caller, self._flight = queue, caller, flight
        self._headers: Mapping[str, str] = {}
        self._is_over = False

    def hear(self, status: int, headers: Mapping[str, str]) -> None:
        """Takes the status and the headers of the response."""
        self._headers = headers
        if status != _RATE_LIMITED:
            self._queue.limiter.accept(monotonic(), self._flight, stated_limits(headers))
            self._queue.heard()

    def end(self, usage: TokenUsage | None) -> None:
        """Takes the end of the call. `usage` None: it took nothing. Repeatable."""
        if not self._is_over:
            self._is_over = True
            self._queue.limiter.end(monotonic(), self._flight, usage)
            self._queue.landed(self._caller)

    def refuse(self, retry_after_seconds: float | None) -> None:
        """Takes a refusal for the rate limit, which ends the call."""
        if not self._is_over:
            self._is_over = True
            stated = stated_limits(self._headers)
            self._queue.limiter.refuse(monotonic(), self._flight, stated, retry_after_seconds)
            self._queue.landed(self._caller)
