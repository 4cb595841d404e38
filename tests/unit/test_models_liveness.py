"""When a model runner counts as dead for another one: by the other's own clock, and only while it looks regularly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from services.models.liveness import SeenRunners

TTL = 15.0
RUNNER, OTHER = uuid4(), uuid4()
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = FIRST - timedelta(days=3)
"""A renewal by a clock that was set back."""


def seen_until(last: float, renewed_at: datetime = FIRST, *, first: float = 0.0) -> SeenRunners:
    """A runner that looked every 5 s, and always saw the same renewal."""
    seen, now = SeenRunners(TTL / 2), first
    while now <= last:
        seen.look(now, [(RUNNER, renewed_at, TTL)])
        now += 5.0
    return seen


def test_a_runner_is_dead_once_its_renewal_is_old() -> None:
    assert seen_until(10.0).is_alive(14.9, RUNNER, FIRST)
    assert not seen_until(15.0).is_alive(15.0, RUNNER, FIRST)
    assert seen_until(15.0).count_alive(15.0) == 0


def test_any_changed_renewal_proves_life() -> None:
    seen = seen_until(20.0)
    assert seen.is_alive(20.0, RUNNER, SECOND), "read with the row, after the last look"
    seen.look(25.0, [(RUNNER, SECOND, TTL)])
    assert seen.is_alive(30.0, RUNNER, SECOND)
    assert seen.count_alive(30.0) == 1


def test_an_unknown_runner_lives_until_it_was_watched() -> None:
    assert SeenRunners(TTL / 2).is_alive(100.0, RUNNER, FIRST)
    assert seen_until(20.0).is_alive(20.0, OTHER, FIRST)


def test_stopped_watcher_starts_again() -> None:
    """While it, or Postgres, stood still, the others may not have been able to renew."""
    seen = seen_until(10.0)
    assert seen.is_alive(40.0, RUNNER, FIRST), "it has not looked for too long"
    seen.look(40.0, [(RUNNER, FIRST, TTL)])
    assert seen.is_alive(45.0, RUNNER, FIRST)
    for now in (45.0, 50.0, 55.0):
        seen.look(now, [(RUNNER, FIRST, TTL)])
    assert not seen.is_alive(55.0, RUNNER, FIRST)


HALVES = st.integers(0, 60).map(lambda halves: halves / 2)


@given(st.lists(HALVES, min_size=1, max_size=20), HALVES)
def test_no_runner_dies_before_its_time(pauses: list[float], later: float) -> None:
    """However irregularly another one looks, it must have seen the renewal for the whole TTL, without a long pause."""
    seen, now, since = SeenRunners(TTL / 2), 0.0, 0.0
    seen.look(now, [(RUNNER, FIRST, TTL)])
    for pause in pauses:
        now += pause
        since = now if pause > TTL / 2 else since
        seen.look(now, [(RUNNER, FIRST, TTL)])
    is_dead = not seen.is_alive(now + later, RUNNER, FIRST)
    assert is_dead == (later <= TTL / 2 and now + later - since >= TTL)
