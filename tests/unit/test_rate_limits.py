"""The rate limits of one key: never a herd, never a standstill, and close to what the provider allows."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tenure.domain.budget import TokenUsage
from tenure.domain.rate_limits import (
    FORGOTTEN_AFTER_SECONDS,
    LONGEST_BLOCK_SECONDS,
    CallSize,
    Flight,
    KeyLimiter,
    LimitKind,
    StatedLimit,
)
from tests.support.examples import examples

REQUESTS, INPUT, OUTPUT, _ = LimitKind
SMALL = CallSize(100, 1000)
ANSWER = TokenUsage(input_tokens=100, output_tokens=50)


def stated(limit: int, remaining: int, reset: float | None = None) -> dict[LimitKind, StatedLimit]:
    return {REQUESTS: StatedLimit(limit, remaining, reset)}


def burst(limiter: KeyLimiter, now: float, most: int = 100) -> list[Flight]:
    """The calls that may go at once."""
    flights: list[Flight] = []
    while len(flights) < most and limiter.wait_seconds(now, SMALL) == 0:
        flights.append(limiter.send(now, SMALL))
    return flights


def test_nothing_is_limited_before_a_statement() -> None:
    assert len(burst(KeyLimiter(), 0)) == 100


def test_calls_go_as_far_as_the_statement_reaches() -> None:
    """Those that were sent before the statement may not be in it, so they count once more."""
    limiter = KeyLimiter()
    first, _ = burst(limiter, 0, 2)
    limiter.accept(1, first, stated(60, 10))
    assert len(burst(limiter, 1)) == 9
    assert limiter.wait_seconds(1, SMALL) == 1
    assert len(burst(limiter, 3)) == 2, "60 a minute"


def test_the_stated_reset_gives_the_rate() -> None:
    limiter = KeyLimiter()
    limiter.accept(0, limiter.send(0, SMALL), stated(100, 0, 200))
    assert math.isclose(limiter.wait_seconds(0, SMALL), 2)


def test_a_call_larger_than_the_limit_takes_a_full_bucket() -> None:
    limiter = KeyLimiter()
    limiter.accept(0, limiter.send(0, SMALL), {INPUT: StatedLimit(600, 300)})
    assert limiter.wait_seconds(0, CallSize(50_000, 10)) == 30
    assert limiter.wait_seconds(30, CallSize(50_000, 10)) == 0


def test_output_is_estimated_from_earlier_calls() -> None:
    """An agent reserves 8,192 tokens and writes 50: 20 calls may go and not one."""
    limiter = KeyLimiter()
    flight = limiter.send(0, CallSize(10, 8192))
    limiter.accept(0, flight, {OUTPUT: StatedLimit(10_000, 10_000)})
    limiter.end(1, flight, TokenUsage(10, 50))
    for _ in range(20):
        assert limiter.wait_seconds(1, CallSize(10, 8192)) == 0
        limiter.send(1, CallSize(10, 8192))


def test_input_from_the_cache_is_learned() -> None:
    limiter = KeyLimiter()
    usage = TokenUsage(input_tokens=100, cache_read_input_tokens=99_900, output_tokens=1)
    for _ in range(60):
        limiter.end(0, limiter.send(0, CallSize(100_000, 10, is_repeated=True)), usage)
    limiter.accept(0, limiter.send(0, CallSize(1, 1)), {INPUT: StatedLimit(50_000, 50_000)})
    assert limiter.wait_seconds(0, CallSize(100_000, 10, is_repeated=True)) == 0
    limiter.send(0, CallSize(100_000, 10, is_repeated=True))
    assert limiter.wait_seconds(0, CallSize(100_000, 10)) > 0, "a prompt that the provider has not seen counts in full"


def test_one_probe_follows_a_refusal_and_not_a_herd() -> None:
    limiter = KeyLimiter()
    herd = burst(limiter, 0, 10)
    for flight in herd:
        limiter.refuse(0.1, flight, {}, 5)
    assert math.isclose(limiter.wait_seconds(0.1, SMALL), 5)
    probes = burst(limiter, 5.1)
    assert len(probes) == 1
    assert limiter.wait_seconds(99, SMALL) == math.inf
    limiter.accept(99, probes[0], {})
    assert len(burst(limiter, 99)) == 4, "no limit is known: half of the calls that met the refusal, one flies already"


def test_a_probe_without_an_answer_is_repeated() -> None:
    limiter = KeyLimiter()
    limiter.refuse(0, limiter.send(0, SMALL), {}, 1)
    limiter.end(9, limiter.send(1, SMALL), None)
    assert len(burst(limiter, 9)) == 1


def test_waits_double_while_probes_are_refused() -> None:
    limiter, now, waits = KeyLimiter(), 0.0, []
    for _ in range(8):
        limiter.refuse(now, limiter.send(now, SMALL), {})
        waits.append(limiter.wait_seconds(now, SMALL))
        now += waits[-1]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_the_window_opens_with_answers_and_is_forgotten() -> None:
    limiter = KeyLimiter()
    for flight in burst(limiter, 0, 8):
        limiter.refuse(0, flight, {}, 0)
    limiter.accept(0, limiter.send(0, SMALL), {})
    flights = burst(limiter, 0)
    assert len(flights) == 3
    for flight in flights:
        limiter.end(1, flight, ANSWER)
    assert len(burst(limiter, 1)) == 4, "a window of four and three quarters, in which one flies"
    assert len(burst(limiter, FORGOTTEN_AFTER_SECONDS + 1)) == 100


def test_limits_are_forgotten_after_silence() -> None:
    limiter = KeyLimiter()
    limiter.end(0, first := limiter.send(0, SMALL), ANSWER)
    limiter.accept(0, first, stated(1, 0))
    assert limiter.wait_seconds(0, SMALL) > 0
    assert len(burst(limiter, FORGOTTEN_AFTER_SECONDS)) == 100


def test_replicas_take_their_parts() -> None:
    limiter = KeyLimiter(replicas=4)
    first = limiter.send(0, SMALL)
    limiter.accept(0, first, stated(120, 100))
    assert len(burst(limiter, 0)) == 25


impossible = st.one_of(
    st.builds(StatedLimit, st.integers(max_value=0), st.integers()),
    st.builds(StatedLimit, st.integers(min_value=10**12 + 1), st.integers()),
    st.builds(StatedLimit, st.just(10), st.integers(min_value=11)),
    st.builds(StatedLimit, st.just(10), st.integers(max_value=-1)),
    st.builds(StatedLimit, st.just(10), st.just(5), st.floats(max_value=-0.1)),
    st.builds(StatedLimit, st.just(10), st.just(5), st.just(math.nan)),
    st.builds(StatedLimit, st.just(10), st.just(5), st.floats(min_value=10**6)),
)


@given(impossible, st.sampled_from(LimitKind))
def test_impossible_numbers_change_nothing(said: StatedLimit, kind: LimitKind) -> None:
    limiter = KeyLimiter()
    limiter.accept(0, limiter.send(0, SMALL), {kind: said})
    assert limiter.level(0, kind) is None
    assert len(burst(limiter, 0)) == 100


possible = st.integers(1, 10**12).flatmap(
    lambda limit: st.builds(
        StatedLimit, st.just(limit), st.integers(0, limit), st.one_of(st.none(), st.floats(0, 86_400))
    )
)
events = st.lists(
    st.tuples(
        st.sampled_from(["send", "accept", "refuse", "end", "lose"]),
        st.floats(0, 100),
        st.dictionaries(st.sampled_from(LimitKind), possible, max_size=4),
        st.one_of(st.none(), st.floats(0, 10**5)),
        st.integers(0, 10**6),
    ),
    max_size=60,
)


# A refusal that states a limit of a token a minute: the bucket is empty for longer than the key is blocked.
EMPTY_AFTER_THE_BLOCK = [
    *[("send", 0.0, {}, None, 0)] * 7,
    ("refuse", 0.0, {LimitKind.INPUT_TOKENS: StatedLimit(1, 0, None)}, None, 0),
]

ROUNDED_UP: list[Any] = [
    *[("send", pause, {}, None, 0) for pause in (88.0, 47.981983132428596, 76.83967309096037)],
    ("refuse", 0.0, {}, 300.0, 0),
]


@settings(max_examples=examples(15), deadline=None)
@given(events)
@example(EMPTY_AFTER_THE_BLOCK)
@example(ROUNDED_UP)
def test_no_history_blocks_calls_for_ever(story: list[tuple[str, float, object, float | None, int]]) -> None:
    """A key stands still for the longest block at most, once the calls in flight have ended."""
    limiter, now, flights = KeyLimiter(), 0.0, []
    for what, pause, said, retry_after, tokens in story:
        now += pause
        if what == "send":
            flights.append(limiter.send(now, CallSize(tokens, tokens, tokens % 2 == 0)))
        elif flights and what == "accept":
            limiter.accept(now, flights[0], said)  # type: ignore[arg-type]
        elif flights and what == "refuse":
            limiter.refuse(now, flights.pop(0), said, retry_after)  # type: ignore[arg-type]
        elif flights:
            limiter.end(now, flights.pop(0), TokenUsage(tokens, tokens) if what == "end" else None)
    for flight in flights:
        limiter.end(now, flight, None)
    wait = limiter.wait_seconds(now, SMALL)
    assert 0 <= wait <= LONGEST_BLOCK_SECONDS
    assert limiter.wait_seconds(now + wait + 0.001, SMALL) == 0


@dataclass
class TokenBuckets:
    """A provider as the documents of Anthropic describe it: output counts when it is written."""

    limits: dict[LimitKind, int]
    levels: dict[LimitKind, float] = field(default_factory=dict)
    now: float = 0.0

    def move(self, now: float) -> None:
        for kind, limit in self.limits.items():
            level = self.levels.get(kind, float(limit))
            self.levels[kind] = min(limit, level + limit / 60 * (now - self.now))
        self.now = now

    def is_taken(self, input_tokens: int) -> bool:
        needs = {REQUESTS: 1, INPUT: input_tokens, OUTPUT: 1}
        if any(self.levels[kind] < needs[kind] for kind in self.limits):
            return False
        for kind in self.limits:
            self.levels[kind] -= 0 if kind is OUTPUT else needs[kind]
        return True

    def statement(self) -> dict[LimitKind, StatedLimit]:
        return {
            kind: StatedLimit(limit, max(0, int(self.levels[kind])), round((limit - self.levels[kind]) / limit * 60))
            for kind, limit in self.limits.items()
        }


@settings(max_examples=examples(5), deadline=None)
@given(
    requests=st.integers(30, 3000),
    input_limit=st.integers(20_000, 2_000_000),
    output_limit=st.integers(5_000, 500_000),
    agents=st.integers(1, 60),
    seed=st.randoms(use_true_random=False),
)
def test_a_provider_is_used_to_its_limit(
    requests: int, input_limit: int, output_limit: int, agents: int, seed: object
) -> None:
    """Agents that call all the time for ten minutes: few refusals, and what the scarcest limit allows, mostly."""
    provider = TokenBuckets({REQUESTS: requests, INPUT: input_limit, OUTPUT: output_limit})
    limiter, now, waiting = KeyLimiter(), 0.0, agents
    ends: list[tuple[float, int, str, Flight, int]] = []
    refused = answered = count = 0
    used = dict.fromkeys(provider.limits, 0)
    while now < 600:
        provider.move(now)
        wait = limiter.wait_seconds(now, CallSize(500, 4096))
        if waiting and wait == 0:
            waiting, count = waiting - 1, count + 1
            flight = limiter.send(now, CallSize(500, 4096))
            if provider.is_taken(400):
                limiter.accept(now, flight, provider.statement())
                heapq.heappush(ends, (now + 1 + seed.random() * 4, count, "end", flight, seed.randint(20, 400)))  # type: ignore[attr-defined]
            else:
                refused += 1
                limiter.refuse(now, flight, provider.statement(), 1 + seed.random())  # type: ignore[attr-defined]
                waiting += 1
            continue
        due = ends[0][0] if ends else math.inf
        now = min(due, now + wait if waiting else math.inf)
        provider.move(now)
        if ends and due <= now:
            _, _, _, flight, output = heapq.heappop(ends)
            provider.levels[OUTPUT] -= output
            limiter.end(now, flight, TokenUsage(400, output))
            answered, waiting = answered + 1, waiting + 1
            for kind, amount in {REQUESTS: 1, INPUT: 400, OUTPUT: output}.items():
                used[kind] += amount
    most_used = max(used[kind] / (provider.limits[kind] * 10) for kind in used)
    agents_need = agents / 3 * 600 * 0.8
    assert refused <= 2 + 0.02 * answered
    assert most_used > 0.85 or answered > agents_need
