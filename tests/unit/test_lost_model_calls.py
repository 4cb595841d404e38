"""What a lost model call is billed."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.budget import TokenUsage
from tenure.domain.in_doubt import ReportedCall, bill_of_report, settle_lost

tokens = st.integers(-(2**40), 2**40)


def reported(*usage: Any) -> Any:
    return ReportedCall(1, 1, TokenUsage(*usage))


def test_bill_is_the_reported_usage() -> None:
    assert settle_lost(100, 50, reported(10, 20, 30, 40)) == TokenUsage(10, 20, 30, 40)


def test_bill_without_a_report_is_the_whole_input() -> None:
    assert settle_lost(100, 50, None) == TokenUsage(100)
    assert settle_lost(100, 50, reported()) == TokenUsage(100)


def test_output_without_input_leaves_the_input_estimated() -> None:
    assert settle_lost(100, 50, reported(0, 20)) == TokenUsage(100, 20)


def test_a_report_without_input_is_billed_the_reserved_input() -> None:
    assert bill_of_report(TokenUsage(90, 20), 100, 50, None) == TokenUsage(90, 20)
    assert bill_of_report(TokenUsage(0, 20, 0, 30), 100, 50, None) == TokenUsage(0, 20, 0, 30)
    assert bill_of_report(TokenUsage(0, 20), 100, 50, None) == TokenUsage(100, 20)
    assert bill_of_report(TokenUsage(0, 120), 100, 50, None) == TokenUsage(30, 120)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.tuples(tokens, tokens, tokens, tokens))
def test_bill_stays_within_the_reservation(input_tokens: int, output_tokens: int, said: Any) -> None:
    usage = settle_lost(input_tokens, output_tokens, reported(*said))
    counts = (
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_creation_input_tokens,
        usage.cache_read_input_tokens,
    )
    assert min(counts) >= 0
    assert usage.output_tokens <= output_tokens
    assert usage.total - usage.output_tokens <= input_tokens
