"""Backoff and the trust window."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.fencing import TrustWindow
from tenure.domain.retry import Jitter, RetryPolicy

POLICY = RetryPolicy(max_attempts=3, initial_seconds=1, factor=2, cap_seconds=60)


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_a_wait_is_never_longer_than_the_cap(failures: int, random_fraction: float) -> None:
    assert 0 <= POLICY.wait_seconds(failures, random_fraction) <= POLICY.cap_seconds


def test_waits_grow_by_the_factor() -> None:
    assert [POLICY.ceiling_seconds(n) for n in (1, 2, 3, 7)] == [1, 2, 4, 60]


def test_retry_time_of_the_provider_is_the_least() -> None:
    assert POLICY.wait_seconds(1, 0.0, retry_after_seconds=90) == 90


@pytest.mark.parametrize(("jitter", "least", "most"), [(Jitter.FULL, 0, 4), (Jitter.EQUAL, 2, 4), (Jitter.NONE, 4, 4)])
def test_the_jitter_is_full_equal_or_none(jitter: Jitter, least: float, most: float) -> None:
    policy = replace(POLICY, jitter=jitter)
    assert (policy.wait_seconds(3, 0.0), policy.wait_seconds(3, 1.0)) == (least, most)


def test_retries_end() -> None:
    assert not POLICY.exhausted(2)
    assert POLICY.exhausted(3)
    assert RetryPolicy(max_attempts=0).exhausted(0)


def test_trust_is_counted_from_the_sending() -> None:
    window = TrustWindow(sent_at=100, ttl_seconds=5, margin_seconds=1)
    assert window.is_open(103.9)
    assert not window.is_open(104)
    assert window.renewed(102).ends_at == 106


def test_a_late_answer_to_an_early_renewal_shortens_nothing() -> None:
    assert TrustWindow(102, 5).renewed(100).sent_at == 102
