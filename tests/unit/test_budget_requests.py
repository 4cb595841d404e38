"""A task at a cap asks for what it needs: the request, the grant, and the way it leaves its worker."""

from __future__ import annotations

from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.budget import (
    MAX_NANO_USD,
    MAX_TOKENS,
    Budget,
    BudgetRequest,
    Denied,
    Prices,
    Rates,
    ReserveRequest,
    complete_request,
    crossed_warnings,
    decide_reserve,
    missing_of,
)
from tenure.domain.close_out import PendingEnding
from tenure.domain.errors import BudgetExhausted, InvalidRequest
from tenure.domain.requeue import continues_after_raise, refuse_limit_that_was_raised
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import BudgetPolicy
from tenure.domain.timeouts import PhaseTimeout, TimeoutAction, Timeouts
from tenure.domain.waiting_calls import leave_at_cap
from tenure.domain.waits import (
    NO_ANSWER,
    Wait,
    WaitAnswer,
    WaitAnswerKind,
    WaitDeadlinePolicy,
    WaitKind,
    ends_at_cap,
    grant_of,
    refuse_answer,
    refuse_grant,
)

NO_CAP = Budget(0, 0, 0)
ASKED = BudgetRequest(Reason.TOKEN_LIMIT, 200, 0)
PRICES = Prices.flat(Rates(2 * 10**6, 10**7, 3 * 10**6, 10**6))
caps = st.integers(1, 10_000)
used = st.integers(0, 10_000)


def wait(request: BudgetRequest = ASKED) -> Wait:
    return Wait(WaitKind.BUDGET, "", options=("approve", "deny"), wait_id="w9", budget_request=request)


def answer(text: str = "approve", tokens: int = 0, nano_usd: int = 0) -> WaitAnswer:
    return WaitAnswer(WaitAnswerKind.DECISION, text, extra_budget_tokens=tokens, extra_budget_nano_usd=nano_usd)


@given(st.builds(Budget, caps, used, used, caps, used, used), st.builds(Budget, caps, used, used), caps, caps)
def test_a_request_is_made_exactly_at_a_final_denial(root: Budget, own: Budget, needed: int, output: int) -> None:
    request = ReserveRequest(1, 1, "m", needed, output, output)
    decided = decide_reserve((root, own), request, PRICES, max_steps=10)
    final = isinstance(decided, Denied) and decided.reason != Reason.BUDGET_BUSY
    wanted = decided.request if isinstance(decided, Denied) and final else None
    assert final == (wanted is not None)
    if wanted is not None:
        assert complete_request(root, own, wanted) is not None


@given(
    st.builds(Budget, caps, used, used, st.one_of(st.just(0), caps), used, used),
    st.one_of(st.just(NO_CAP), st.builds(Budget, caps, used, st.just(0), caps, used)),
    st.builds(BudgetRequest, st.just(Reason.TOKEN_LIMIT), caps, used),
)
def test_the_suggested_grant_is_always_enough(root: Budget, own: Budget, request: BudgetRequest) -> None:
    completed = complete_request(root, own, request)
    if completed is None:
        assert missing_of(root, request) == missing_of(own, request) == (0, 0)
        return
    given_by = grant_of(wait(completed), answer())
    assert refuse_grant(wait(completed), given_by, root, own) is None
    amounts = (completed.suggested_tokens, completed.suggested_nano_usd)
    assert complete_request(root.raised(*amounts), own.raised(*amounts), request) is None


def test_a_suggestion_leaves_room_for_more_calls() -> None:
    completed = complete_request(Budget(1000, 900, 0), NO_CAP, ASKED)
    assert completed is not None
    assert (completed.suggested_tokens, completed.suggested_nano_usd, completed.own_cap) == (100 + 250, 0, False)
    most = complete_request(Budget(MAX_TOKENS, MAX_TOKENS, 0), NO_CAP, BudgetRequest("", MAX_TOKENS, MAX_NANO_USD))
    assert most is not None
    assert most.suggested_tokens == MAX_TOKENS


def test_the_roots_cap_is_named_before_the_own_one() -> None:
    root, own = Budget(1000, 100, 0), Budget(500, 400, 0)
    completed = complete_request(root, own, ASKED)
    assert completed is not None
    assert (completed.own_cap, completed.budget) == (True, own)
    both = complete_request(Budget(1000, 900, 0), own, ASKED)
    assert both is not None
    assert (both.own_cap, both.suggested_tokens) == (False, 100 + 250)


@pytest.mark.parametrize(
    ("given_by", "error"),
    [
        (answer(tokens=99), BudgetExhausted),
        (answer(nano_usd=5), InvalidRequest),
        (answer(tokens=100), None),
        (answer("deny"), None),
    ],
)
def test_a_grant_is_enough_for_the_next_call_or_refused(given_by: WaitAnswer, error: type[Exception] | None) -> None:
    refusal = refuse_grant(wait(), given_by, Budget(1000, 900, 0), NO_CAP)
    assert refusal is None if error is None else isinstance(refusal, error)


def test_a_refusal_of_budget_raises_nothing() -> None:
    assert refuse_answer(wait(), answer("deny")) is None
    assert refuse_answer(wait(), answer("deny", tokens=1)) is not None
    assert refuse_answer(wait(), WaitAnswer(WaitAnswerKind.REPLY, "approve")) is not None
    assert (ends_at_cap(wait(), answer("deny")), ends_at_cap(wait(), NO_ANSWER)) == (True, True)
    assert not ends_at_cap(wait(), answer())
    assert not ends_at_cap(Wait(WaitKind.QUESTION, "1.0"), NO_ANSWER)


def test_only_a_task_that_may_ask_waits_at_its_cap() -> None:
    denied = Denied(Reason.TOKEN_LIMIT, "too little", request=ASKED)
    ended = leave_at_cap(denied, BudgetPolicy.END, "so far")
    assert (ended.to_state, ended.reason, ended.result) == (TaskState.COST_EXCEEDED, "TOKEN_LIMIT", "so far")
    asks = leave_at_cap(denied, BudgetPolicy.ASK, "so far" * 10_000)
    assert (asks.to_state, asks.reason, asks.result) == (TaskState.WAITING_USER, "BUDGET_REQUESTED", "")
    assert asks.wait is not None
    assert (asks.wait.call_id, asks.wait.budget_request, len(asks.wait.context)) == ("", ASKED, 16_000)
    steps = leave_at_cap(Denied(Reason.STEP_LIMIT, "no step is left"), BudgetPolicy.ASK, "")
    assert steps.to_state is TaskState.COST_EXCEEDED


def test_a_policy_for_waits_does_not_change_the_end_at_a_cap() -> None:
    timeouts = Timeouts(wait=PhaseTimeout(60.0, TimeoutAction.RETRY))
    assert timeouts.action_of_wait(WaitKind.BUDGET, WaitDeadlinePolicy.TIME_OUT) is TimeoutAction.GO_ON
    assert timeouts.wait_seconds(WaitKind.BUDGET, 24 * 3600.0) == 60.0


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        (TaskState.COST_EXCEEDED, Reason.MONEY_LIMIT, True),
        (TaskState.COST_EXCEEDED, Reason.STEP_LIMIT, False),
        (TaskState.FAILED, Reason.TOKEN_LIMIT, False),
        (TaskState.WAITING_USER, Reason.BUDGET_REQUESTED, False),
    ],
)
def test_raise_continues_tasks_that_ended_at_a_cap(state: TaskState, reason: str, expected: bool) -> None:
    assert continues_after_raise(state, reason, (Budget(2000, 1000, 0),), 1, 10) is expected
    assert not continues_after_raise(state, reason, (Budget(1000, 1000, 0),), 1, 10)


@given(st.builds(Budget, caps, used, used), st.one_of(st.just(NO_CAP), st.builds(Budget, caps, used, used)), caps)
def test_a_task_ends_at_a_cap_only_if_its_call_still_misses(root: Budget, own: Budget, needed: int) -> None:
    request = BudgetRequest(Reason.TOKEN_LIMIT, needed, 0)
    refusal = refuse_limit_that_was_raised(TaskState.COST_EXCEEDED, Reason.TOKEN_LIMIT, None, request, (root, own))
    assert (refusal is None) == (missing_of(root, request) != (0, 0) or missing_of(own, request) != (0, 0))


@pytest.mark.parametrize(
    ("state", "reason", "ending", "wanted"),
    [
        (TaskState.COST_EXCEEDED, Reason.TOKEN_LIMIT, None, None),
        (TaskState.COST_EXCEEDED, Reason.STEP_LIMIT, None, ASKED),
        (TaskState.FAILED, Reason.TOKEN_LIMIT, None, ASKED),
        (TaskState.COST_EXCEEDED, Reason.TOKEN_LIMIT, PendingEnding(TaskState.CANCELLED, "", "", "bob"), ASKED),
    ],
)
def test_a_raise_keeps_no_task_from_another_end(
    state: TaskState, reason: str, ending: PendingEnding | None, wanted: BudgetRequest | None
) -> None:
    assert refuse_limit_that_was_raised(state, reason, ending, wanted, (Budget(1000, 0, 0), NO_CAP)) is None


@given(caps, st.lists(st.integers(0, 3000), max_size=10))
def test_an_own_cap_is_warned_of_when_use_crosses_80_percent(cap: int, calls: list[int]) -> None:
    totals = [sum(calls[:count]) for count in range(len(calls) + 1)]
    warned = [crossed_warnings(Budget(cap, before, 0), Budget(cap, after, 0)) for before, after in pairwise(totals)]
    assert list(chain(*warned)) == [Reason.TOKEN_LIMIT] * (100 * sum(calls) >= 80 * cap)
