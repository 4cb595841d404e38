"""A budget is never overshot, in tokens or money, by any sequence of reservations and settlements."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.budget import (
    Budget,
    Denied,
    Granted,
    Prices,
    Rates,
    ReserveRequest,
    Tier,
    TokenUsage,
    cost,
    decide_reserve,
    due_warnings,
)
from tenure.domain.states import TaskState

REQUEST = ReserveRequest(
    step=1, attempt_number=1, model="m", input_tokens=100, max_output_tokens=50, min_output_tokens=10
)
A_MILLION = 10**6
PRICES = Prices.flat(Rates(2 * A_MILLION, 10 * A_MILLION, 3 * A_MILLION, A_MILLION))
"""Nano dollars a token: 2, 10, and 3 for what is written to the cache. REQUEST: 300 for its input, 800 at the most."""


def decide(*budgets: Budget, request: ReserveRequest = REQUEST, prices: Prices | None = None) -> Granted | Denied:
    return decide_reserve(budgets, request, prices, max_steps=10)


def denial(*budgets: Budget, request: ReserveRequest = REQUEST, prices: Prices | None = None) -> str:
    denied = decide(*budgets, request=request, prices=prices)
    assert isinstance(denied, Denied)
    return denied.reason


def capped(nano_usd: int, used: int = 0, reserved: int = 0) -> Budget:
    """In money."""
    return Budget(10_000, 0, 0, nano_usd, used, reserved)


def test_a_call_that_fits_is_granted_whole() -> None:
    assert decide(Budget(1000, 0, 0)) == Granted(50, 150)
    assert decide(capped(800), prices=PRICES) == Granted(50, 150, 800, PRICES)


def test_output_is_limited_to_the_rest() -> None:
    assert decide(Budget(130, 0, 0)) == Granted(30, 130)
    assert decide(capped(649), prices=PRICES) == Granted(34, 134, 640, PRICES)


def test_the_tightest_of_all_caps_decides() -> None:
    root, own = Budget(1000, 0, 0, 10_000), Budget(140, 0, 0)
    assert decide(root, own, prices=PRICES) == Granted(40, 140, 700, PRICES)
    assert decide(root, replace(own, max_nano_usd=500), prices=PRICES) == Granted(20, 120, 500, PRICES)
    assert denial(root, replace(own, used_tokens=31), prices=PRICES) == "TOKEN_LIMIT"
    assert denial(root, replace(own, max_nano_usd=399), prices=PRICES) == "MONEY_LIMIT"


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        (Budget(1000, 891, 0), "TOKEN_LIMIT"),
        (Budget(1000, 891, 109), "TOKEN_LIMIT"),
        (Budget(1000, 0, 950), "BUDGET_BUSY"),
        (capped(1000, 601), "MONEY_LIMIT"),
        (capped(1000, 0, 601), "BUDGET_BUSY"),
    ],
)
def test_a_call_that_never_fits_ends_and_a_blocked_one_waits(budget: Budget, reason: str) -> None:
    assert denial(budget, prices=PRICES) == reason


def test_a_task_at_a_final_cap_does_not_wait_for_others() -> None:
    assert denial(Budget(1000, 0, 950), Budget(1000, 950, 0)) == "TOKEN_LIMIT"
    assert denial(Budget(1000, 950, 0), Budget(1000, 0, 950)) == "TOKEN_LIMIT"


def test_the_step_after_the_last_is_denied() -> None:
    assert denial(Budget(1000, 0, 0), request=replace(REQUEST, step=11)) == "STEP_LIMIT"


def test_a_call_of_unknown_price_needs_no_money_cap() -> None:
    assert decide(Budget(1000, 0, 0)) == Granted(50, 150)
    denied = decide(Budget(1000, 0, 0), Budget(0, 0, 0, 500))
    assert isinstance(denied, Denied)
    assert (denied.reason, denied.ends_as) == ("MODEL_UNPRICED", TaskState.FAILED)
    assert "--no-max-cost" in denied.message
    assert "TENURE_CHECKPOINT_PRICES_FILE" in denied.message


def test_default_cap_does_not_hold_for_unpriced_calls() -> None:
    root, own = Budget(1000, 0, 0, 500, 500), Budget(0, 0, 0, 100, 100)
    assert decide_reserve((root, own), REQUEST, None, 10, is_default_cap=True) == Granted(50, 150)
    assert isinstance(decide_reserve((root, own), REQUEST, PRICES, 10, is_default_cap=True), Denied)


rates = st.builds(Rates, *[st.integers(0, 50 * A_MILLION)] * 4)
prices = st.builds(
    lambda base, tiers: Prices((Tier(0, base), *(Tier(above, some) for above, some in sorted(tiers.items())))),
    rates,
    st.dictionaries(st.integers(1, 500), rates, max_size=2),
)
percents = st.tuples(*[st.integers(0, 100)] * 4)
calls = st.tuples(st.integers(0, 2), st.integers(0, 400), st.integers(1, 300), percents, st.booleans())
caps = st.tuples(st.integers(0, 3000), st.integers(0, 20_000))


@given(
    st.tuples(st.integers(1, 3000), st.integers(1, 20_000)),
    st.tuples(caps, caps, caps),
    prices,
    st.lists(calls, max_size=25),
)
def test_tokens_and_money_never_pass_a_cap(
    of_root: tuple[int, int],
    of_tasks: tuple[tuple[int, int], ...],
    prices: Prices,
    calls: list[tuple[int, int, int, tuple[int, ...], bool]],
) -> None:
    """Of three tasks under one root, each with caps of its own: every call used anything up to what it was granted."""
    root = Budget(of_root[0], 0, 0, of_root[1])
    own = [Budget(tokens, 0, 0, nano_usd) for tokens, nano_usd in of_tasks]
    open_calls: dict[int, tuple[int, Granted]] = {}
    for task, input_tokens, output_tokens, percents, settles in calls:
        if task not in open_calls:
            wanted = replace(REQUEST, input_tokens=input_tokens, max_output_tokens=output_tokens + 10)
            granted = decide_reserve((root, own[task]), wanted, prices, 10)
            if isinstance(granted, Granted):
                assert REQUEST.min_output_tokens <= granted.max_output_tokens <= wanted.max_output_tokens
                open_calls[task] = (input_tokens, granted)
                root = reserve(root, granted.reserved_tokens, granted.reserved_nano_usd)
        if settles and task in open_calls:
            input_bound, granted = open_calls.pop(task)
            usage = within(input_bound, granted.max_output_tokens, percents)
            root = reserve(root, -granted.reserved_tokens, -granted.reserved_nano_usd)
            root, own[task] = use(root, usage, prices), use(own[task], usage, prices)
        for budget in (root, *own):
            assert budget.free_tokens is None or budget.free_tokens >= 0
            assert budget.free_nano_usd is None or budget.free_nano_usd >= 0
    aside = (
        sum(g.reserved_tokens for _, g in open_calls.values()),
        sum(g.reserved_nano_usd for _, g in open_calls.values()),
    )
    assert (root.reserved_tokens, root.reserved_nano_usd) == aside


def within(input_tokens: int, output_tokens: int, percents: tuple[int, ...]) -> TokenUsage:
    """A call of at most so many tokens, its input cached somehow."""
    total = input_tokens * percents[0] // 100
    written = total * percents[1] // 100
    read = (total - written) * percents[2] // 100
    return TokenUsage(total - written - read, output_tokens * percents[3] // 100, written, read)


def reserve(budget: Budget, tokens: int, nano_usd: int) -> Budget:
    return replace(
        budget,
        reserved_tokens=budget.reserved_tokens + tokens,
        reserved_nano_usd=budget.reserved_nano_usd + nano_usd,
    )


def use(budget: Budget, usage: TokenUsage, prices: Prices) -> Budget:
    return replace(
        budget,
        used_tokens=budget.used_tokens + usage.total,
        used_nano_usd=budget.used_nano_usd + cost(prices, usage),
    )


@pytest.mark.parametrize(
    ("budget", "warned", "due"),
    [
        (Budget(100, 79, 21, 1000, 799, 201), (0, 0), []),
        (Budget(100, 80, 0, 1000, 800, 0), (0, 0), ["TOKEN_LIMIT", "MONEY_LIMIT"]),
        (Budget(100, 99, 0, 1000, 800, 0), (100, 0), ["MONEY_LIMIT"]),
        (Budget(100, 99, 0, 1000, 999, 0), (100, 1000), []),
        (Budget(100, 99, 0, 0, 999, 0), (0, 0), ["TOKEN_LIMIT"]),
        (Budget(120, 99, 0), (100, 0), ["TOKEN_LIMIT"]),
        (Budget(200, 99, 0), (100, 0), []),
    ],
)
def test_a_cap_is_warned_of_once_and_again_when_it_was_raised(
    budget: Budget, warned: tuple[int, int], due: list[str]
) -> None:
    assert due_warnings(budget, *warned) == due
