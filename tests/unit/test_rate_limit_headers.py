"""Headers of rate limits: both vendors' forms are read, and anything else states nothing."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.rate_limits import LimitKind, StatedLimit
from tenure.model_providers.rate_limit_headers import stated_limits

REQUESTS, INPUT, OUTPUT, TOKENS = LimitKind
NOW = datetime(2026, 11, 25, 22, 45, tzinfo=UTC)


def anthropic(name: str, limit: str, remaining: str, reset: str = "") -> dict[str, str]:
    prefix = f"anthropic-ratelimit-{name}"
    return {f"{prefix}-limit": limit, f"{prefix}-remaining": remaining, f"{prefix}-reset": reset}


def openai(name: str, limit: str, remaining: str, reset: str) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{name}": limit,
        f"x-ratelimit-remaining-{name}": remaining,
        f"x-ratelimit-reset-{name}": reset,
    }


def test_the_limits_of_anthropic() -> None:
    headers = {
        **anthropic("requests", "50", "49", "2026-11-25T22:45:02Z"),
        **anthropic("input-tokens", "50000", "41000", "2026-11-25T22:45:10+00:00"),
        **anthropic("output-tokens", "10000", "0", "2026-11-25T22:44:00Z"),
        **anthropic("tokens", "60000", "41000", "2026-11-25T22:45:10Z"),
    }
    assert stated_limits(headers, NOW) == {
        REQUESTS: StatedLimit(50, 49, 2),
        INPUT: StatedLimit(50_000, 41_000, 10),
        OUTPUT: StatedLimit(10_000, 0, 0),
    }


def test_the_total_counts_where_it_stands_alone() -> None:
    headers = anthropic("tokens", "60000", "41000", "2026-11-25T22:45:10Z")
    assert stated_limits(headers, NOW) == {TOKENS: StatedLimit(60_000, 41_000, 10)}


def test_the_date_of_the_provider_is_its_clock() -> None:
    headers = {"date": "Wed, 25 Nov 2026 21:00:00 GMT", **anthropic("requests", "9", "1", "2026-11-25T21:00:30Z")}
    assert stated_limits(headers, NOW) == {REQUESTS: StatedLimit(9, 1, 30)}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1s", 1), ("6m0s", 360), ("17ms", 0.017), ("1h2m3.5s", 3723.5), ("1d", 86_400), ("", None), ("soon", None)],
)
def test_the_limits_of_openai(text: str, seconds: float | None) -> None:
    headers = {**openai("requests", "60", "59", text), **openai("tokens", "150000", "149984", "6m0s")}
    assert stated_limits(headers, NOW) == {
        REQUESTS: StatedLimit(60, 59, seconds),
        TOKENS: StatedLimit(150_000, 149_984, 360),
    }


@pytest.mark.parametrize(
    ("limit", "remaining"),
    [
        ("-1", "0"), ("50", "-1"), ("0", "0"), ("50", "51"), ("1e9", "1"), ("9" * 400, "1"), ("nan", "1"),
        ("\u0665", "1"), ("50", ""), ("", "50"), (" 50", "1"), ("50.5", "1"), ("1000000000001", "1"),
    ],
)  # fmt: skip
def test_hostile_numbers_state_nothing(limit: str, remaining: str) -> None:
    assert stated_limits({**anthropic("requests", limit, remaining), **openai("tokens", limit, remaining, "1s")}) == {}


NAMES = [*anthropic("requests", "", ""), *anthropic("tokens", "", ""), *openai("tokens", "", "", ""), "date"]


@given(st.dictionaries(st.sampled_from(NAMES), st.text(max_size=60)))
def test_any_text_is_read_without_an_error(headers: dict[str, str]) -> None:
    assert all(limit.is_possible() for limit in stated_limits(headers, NOW).values())
