"""Decides when the next call to a model may go, by the rate limits of one key, which the provider's answers state.

A provider limits requests and tokens per minute as token buckets: each has a limit, what remains of it, and a rate at
which it refills. The provider states them with each response. Between two responses this rule counts by itself: what
remained, plus the refill, minus what the calls took that the statement did not count yet.

A call takes one request, its input and its output. What the provider counts is known only at its end, so the rule takes
a forecast at first: of output the mean of the calls before, because a call seldom reaches its maximum, and of the input
of a prompt that was sent before the share that was not read from the provider's cache. The first call takes all.

Without a statement there is no limit, until the first refusal. After a refusal no call goes for the time that the
provider named; then one call alone, the probe, and the others when the provider accepts it. If the provider states no
limits, the calls in flight are limited to half of those at the refusal, and to one more for each round without another.

What was learned is forgotten after ten minutes without a statement or a refusal. A bucket that seems to need longer
than a minute does not hold up all calls: one goes each minute, to learn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from tenure.domain.budget import TokenUsage

FORGOTTEN_AFTER_SECONDS: Final = 600.0
"""The time after which a statement says nothing any more: limits are raised, and endpoints are replaced."""
LEARNING_PAUSE_SECONDS: Final = 60.0
"""The longest time without a call in flight because of what a bucket seems to hold."""
LONGEST_BLOCK_SECONDS: Final = 300.0
"""The longest wait after a refusal, whatever the provider asks for: one probe in five minutes does no harm."""
LARGEST_LIMIT: Final = 10**12
"""A larger number is not a limit."""

_PERIOD_SECONDS: Final = 60.0
_LONGEST_PERIOD_SECONDS: Final = 24 * 3600.0
_SHORTEST_RELIABLE_RESET_SECONDS: Final = 10.0
"""A shorter time is stated in whole seconds, which is too coarse for a rate."""
_LONGEST_BACKOFF_SECONDS: Final = 60.0
_NEWEST_SHARE: Final = 0.1
_OUTPUT_MARGIN: Final = 1.25
_LEAST_SHARE: Final = 0.02
_ROUNDING: Final = 1e-6


class LimitKind(StrEnum):
    """The quantity that a provider limits per minute. TOKENS: input and output together."""

    REQUESTS = "REQUESTS"
    INPUT_TOKENS = "INPUT_TOKENS"
    OUTPUT_TOKENS = "OUTPUT_TOKENS"
    TOKENS = "TOKENS"


class StatedLimit(NamedTuple):
    """One limit as a response states it. `reset_seconds`: until it is full again; None: not stated."""

    limit: int
    remaining: int
    reset_seconds: float | None = None

    def is_possible(self) -> bool:
        """Whether the numbers can be those of a limit. Others are ignored."""
        has_numbers = 0 < self.limit <= LARGEST_LIMIT and 0 <= self.remaining <= self.limit
        reset = 0.0 if self.reset_seconds is None else self.reset_seconds
        return has_numbers and 0.0 <= reset <= _LONGEST_PERIOD_SECONDS


class CallSize(NamedTuple):
    """The most that a call can take. `is_repeated`: the provider was sent the beginning of this prompt before."""

    input_tokens: int
    output_tokens: int
    is_repeated: bool = False


@dataclass(eq=False, slots=True)
class Flight:
    """A call that was sent, with what it is counted as. `is_stated`: a statement of the provider counts its input."""

    size: CallSize
    amounts: Mapping[LimitKind, float]
    sent_at: float
    is_stated: bool = False

    def pending(self, kind: LimitKind) -> float:
        """Returns what a statement of the provider may not count yet: output is counted when it is written."""
        if not self.is_stated or kind is LimitKind.OUTPUT_TOKENS:
            return self.amounts[kind]
        return self.amounts[LimitKind.OUTPUT_TOKENS] if kind is LimitKind.TOKENS else 0.0


@dataclass(slots=True)
class _Bucket:
    """The state of one limit. `level`: what was left at `known_at`; below 0 if more was taken than was there."""

    limit: float
    level: float
    per_second: float
    known_at: float
    stated_at: float

    def level_at(self, now: float) -> float:
        return min(self.limit, self.level + self.per_second * max(0.0, now - self.known_at))

    def take(self, now: float, amount: float) -> None:
        """Takes an amount, or gives it back if it is below 0."""
        self.level = max(self.level_at(now) - amount, -self.limit)
        self.known_at = max(self.known_at, now)

    def wait_seconds(self, now: float, amount: float) -> float:
        """Returns how long until the amount is there. A call larger than the limit needs a full bucket."""
        lacking = min(amount, self.limit) - self.level_at(now)
        return lacking / self.per_second if lacking > _ROUNDING * self.limit else 0.0


@dataclass(slots=True)
class _Forecast:
    """The averages of the calls so far. `output_tokens` None: no call has ended."""

    output_tokens: float | None = None
    uncached_share: float = 1.0

    def amounts(self, size: CallSize) -> dict[LimitKind, float]:
        output = float(size.output_tokens)
        if self.output_tokens is not None:
            output = min(output, self.output_tokens * _OUTPUT_MARGIN)
        uncached = size.input_tokens * (self.uncached_share if size.is_repeated else 1.0)
        return {
            LimitKind.REQUESTS: 1.0,
            LimitKind.INPUT_TOKENS: uncached,
            LimitKind.OUTPUT_TOKENS: output,
            LimitKind.TOKENS: size.input_tokens + output,
        }

    def learn(self, size: CallSize, usage: TokenUsage) -> None:
        before = usage.output_tokens if self.output_tokens is None else self.output_tokens
        self.output_tokens = before + _NEWEST_SHARE * (usage.output_tokens - before)
        if size.is_repeated and size.input_tokens > 0:
            share = min(1.0, max(_LEAST_SHARE, _uncached(usage) / size.input_tokens))
            self.uncached_share += _NEWEST_SHARE * (share - self.uncached_share)


def _uncached(usage: TokenUsage) -> int:
    """Returns the input that counts against a limit of input: what was read from the cache does not."""
    return usage.input_tokens + usage.cache_creation_input_tokens


def _taken(usage: TokenUsage) -> dict[LimitKind, float]:
    return {
        LimitKind.REQUESTS: 1.0,
        LimitKind.INPUT_TOKENS: float(_uncached(usage)),
        LimitKind.OUTPUT_TOKENS: float(usage.output_tokens),
        LimitKind.TOKENS: float(usage.total),
    }


@dataclass(slots=True)
class KeyLimiter:
    """Decides when calls with one key to one model may go. `now`: monotonic seconds, never less than before.

    `replicas`: how many processes share the key. Each takes its part of what a statement says is left.
    """

    replicas: int = 1
    _buckets: dict[LimitKind, _Bucket] = field(default_factory=dict)
    _flights: set[Flight] = field(default_factory=set)
    _forecast: _Forecast = field(default_factory=_Forecast)
    _refusals: int = 0
    _refused_at: float = -math.inf
    _blocked_until: float = -math.inf
    _is_probe_due: bool = False
    _probe: Flight | None = None
    _window: float | None = None
    _sent_at: float = -math.inf

    @property
    def in_flight(self) -> int:
        """The number of calls that were sent and have not ended."""
        return len(self._flights)

    def level(self, now: float, kind: LimitKind) -> float | None:
        """Returns what is left of a limit, or None if it is unknown."""
        bucket = self._buckets.get(kind)
        return None if bucket is None else bucket.level_at(now)

    def wait_seconds(self, now: float, size: CallSize) -> float:
        """Returns how long the next call has to wait; 0: it may go; infinite: until a call in flight is answered."""
        self._forget(now)
        blocked = min(max(0.0, self._blocked_until - now), LONGEST_BLOCK_SECONDS)  # the difference is rounded
        if blocked and self._flights:
            return blocked  # the end of a call in flight may free the buckets until then
        if self._is_probe_due and self._probe is not None:
            return math.inf
        if self._window is not None and not self._buckets and len(self._flights) >= self._window:
            return math.inf
        amounts = self._forecast.amounts(size)
        wait = max((bucket.wait_seconds(now, amounts[kind]) for kind, bucket in self._buckets.items()), default=0.0)
        if wait and not self._flights:
            wait = min(wait, max(0.0, self._sent_at + LEARNING_PAUSE_SECONDS - now))
        return max(blocked, wait)

    def send(self, now: float, size: CallSize) -> Flight:
        """Counts a call that is sent now."""
        flight = Flight(size, self._forecast.amounts(size), now)
        self._flights.add(flight)
        self._sent_at = now
        for kind, bucket in self._buckets.items():
            bucket.take(now, flight.amounts[kind])
        if self._is_probe_due and self._probe is None:
            self._probe = flight
        return flight

    def accept(self, now: float, flight: Flight, stated: Mapping[LimitKind, StatedLimit]) -> None:
        """Takes the beginning of a response that accepts the call, with the limits that it states."""
        flight.is_stated = flight.is_stated or bool(stated)
        if flight is self._probe:
            self._probe, self._is_probe_due, self._refusals = None, False, 0
        self._take_statement(now, stated)

    def refuse(
        self,
        now: float,
        flight: Flight,
        stated: Mapping[LimitKind, StatedLimit],
        retry_after_seconds: float | None = None,
    ) -> None:
        """Takes a refusal for the rate limit, which ends the call. It took nothing."""
        if flight not in self._flights:
            return
        in_flight = len(self._flights)
        is_first = flight is self._probe or flight.sent_at > self._refused_at  # not of a herd that was refused before
        self.end(now, flight, None)
        self._take_statement(now, stated)
        if is_first:
            self._refusals += 1
            self._refused_at = now
            self._window = max(1.0, in_flight // 2)
        backoff = min(_LONGEST_BACKOFF_SECONDS, 2.0 ** min(self._refusals - 1, 16))
        wait = backoff if retry_after_seconds is None else min(retry_after_seconds, LONGEST_BLOCK_SECONDS)
        self._blocked_until = max(self._blocked_until, now + wait)
        self._is_probe_due = True

    def end(self, now: float, flight: Flight, usage: TokenUsage | None) -> None:
        """Takes the end of a call. `usage` None: it took nothing. Repeatable."""
        if flight not in self._flights:
            return
        self._flights.discard(flight)
        if flight is self._probe:
            self._probe = None  # without an answer the next call is the probe
        taken = dict.fromkeys(LimitKind, 0.0) if usage is None else _taken(usage)
        for kind, bucket in self._buckets.items():
            bucket.take(now, self._correction(flight, kind, taken))
        if usage is not None:
            self._forecast.learn(flight.size, usage)
            if self._window is not None:
                self._window += 1.0 / self._window

    @staticmethod
    def _correction(flight: Flight, kind: LimitKind, taken: Mapping[LimitKind, float]) -> float:
        """Returns what a call took beyond its forecast, as far as no statement has counted it."""
        if not flight.is_stated:
            return taken[kind] - flight.amounts[kind]
        if kind in {LimitKind.OUTPUT_TOKENS, LimitKind.TOKENS}:
            return taken[LimitKind.OUTPUT_TOKENS] - flight.amounts[LimitKind.OUTPUT_TOKENS]
        return 0.0

    def _take_statement(self, now: float, stated: Mapping[LimitKind, StatedLimit]) -> None:
        for kind, said in stated.items():
            if said.is_possible():
                self._buckets[kind] = self._bucket(now, kind, said)

    def _bucket(self, now: float, kind: LimitKind, said: StatedLimit) -> _Bucket:
        part = 1.0 / max(1, self.replicas)
        pending = sum(flight.pending(kind) for flight in self._flights)
        limit = said.limit * part
        level = max(said.remaining * part - pending, -limit)
        return _Bucket(limit, level, self._rate(kind, said) * part, now, now)

    def _rate(self, kind: LimitKind, said: StatedLimit) -> float:
        """Returns the refill per second of the whole limit: as stated, as before, or that of a limit per minute."""
        used = said.limit - said.remaining
        if used and said.reset_seconds is not None and said.reset_seconds >= _SHORTEST_RELIABLE_RESET_SECONDS:
            return max(used / said.reset_seconds, said.limit / _LONGEST_PERIOD_SECONDS)
        before = self._buckets.get(kind)
        if before is not None and math.isclose(before.limit * max(1, self.replicas), said.limit):
            return before.per_second * max(1, self.replicas)
        return said.limit / _PERIOD_SECONDS

    def _forget(self, now: float) -> None:
        """Forgets what was not stated for long."""
        oldest = now - FORGOTTEN_AFTER_SECONDS
        self._buckets = {kind: bucket for kind, bucket in self._buckets.items() if bucket.stated_at > oldest}
        if self._window is not None and self._refused_at <= oldest and now >= self._blocked_until:
            self._window, self._refusals = None, 0
