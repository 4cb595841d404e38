"""A budget is never overshot, by any sequence of reservations and settlements."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.budget import Budget, Denied, Granted, ReserveRequest, TokenUsage, decide_reserve, settle_lost

REQUEST = ReserveRequest(
    step=1, attempt_number=1, model="m", input_tokens=100, max_output_tokens=50, min_output_tokens=10
)


def test_a_call_that_fits_is_granted_whole() -> None:
    assert decide_reserve(Budget(1000, 0, 0), REQUEST, 10) == Granted(50, 150)


def test_the_output_is_clamped_to_what_is_left() -> None:
    assert decide_reserve(Budget(130, 0, 0), REQUEST, 10) == Granted(30, 130)


def test_a_call_that_can_never_fit_ends_the_task() -> None:
    denied = decide_reserve(Budget(1000, 891, 0), REQUEST, 10)
    assert isinstance(denied, Denied)
    assert denied.reason == "TOKEN_LIMIT"


def test_a_call_waits_for_what_others_have_set_aside() -> None:
    denied = decide_reserve(Budget(1000, 0, 950), REQUEST, 10)
    assert isinstance(denied, Denied)
    assert denied.reason == "BUDGET_BUSY"


def test_the_step_after_the_last_is_denied() -> None:
    denied = decide_reserve(Budget(1000, 0, 0), replace(REQUEST, step=11), 10)
    assert isinstance(denied, Denied)
    assert denied.reason == "STEP_LIMIT"


@given(st.integers(1, 3000), st.lists(st.tuples(st.integers(0, 400), st.integers(1, 300), st.booleans()), max_size=40))
def test_used_and_reserved_never_pass_the_cap(cap: int, calls: list[tuple[int, int, bool]]) -> None:
    budget = Budget(cap, 0, 0)
    open_calls: list[int] = []
    for input_tokens, output_tokens, settles in calls:
        granted = decide_reserve(
            budget, replace(REQUEST, input_tokens=input_tokens, max_output_tokens=output_tokens + 10), 10
        )
        if isinstance(granted, Granted):
            assert granted.max_output_tokens >= REQUEST.min_output_tokens
            open_calls.append(granted.reserved_tokens)
            budget = replace(budget, reserved_tokens=budget.reserved_tokens + granted.reserved_tokens)
        if settles and open_calls:
            tokens = open_calls.pop()
            budget = replace(
                budget, used_tokens=budget.used_tokens + tokens, reserved_tokens=budget.reserved_tokens - tokens
            )
        assert 0 <= budget.used_tokens + budget.reserved_tokens <= cap


def test_a_lost_call_is_billed_its_input_and_what_was_heard_of_its_output() -> None:
    assert settle_lost(100, 50, 20) == TokenUsage(100, 20)
    assert settle_lost(100, 50, 99) == TokenUsage(100, 50)
    assert settle_lost(100, 50, -7) == TokenUsage(100, 0)
