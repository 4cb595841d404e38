"""Requeues: which tasks may go on, and from where."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.domain import entries as facts
from tenure.domain.budget import Budget, TokenUsage
from tenure.domain.close_out import PendingEnding
from tenure.domain.errors import BudgetExhausted, InvalidRequest, WrongState
from tenure.domain.fold import fold
from tenure.domain.next_action import AskAgain, CallModel, CloseOut, next_action
from tenure.domain.requeue import RequeueDecision, decide_grant, decide_requeue, refuse_limit_with_unread_grant
from tenure.domain.states import TERMINAL, TaskState
from tenure.domain.task import TaskSpec

AMPLE = (Budget(1000, 100, 0),)


@pytest.mark.parametrize("state", sorted(TERMINAL - {TaskState.SUCCEEDED}))
def test_unsuccessful_task_begins_its_next_attempt(state: Any) -> None:
    assert decide_requeue(state, AMPLE, 3, 10, facts.Requeue()) == RequeueDecision(begins_attempt=True)


def test_scheduled_retry_continues_its_attempt() -> None:
    verdict = decide_requeue(TaskState.RETRY_SCHEDULED, AMPLE, 3, 10, facts.Requeue())
    assert verdict == RequeueDecision(begins_attempt=False)


@pytest.mark.parametrize("state", ["SUCCEEDED", "QUEUED", "RUNNING", "WAITING_USER", "WAITING_EXTERNAL"])
def test_nothing_else_is_requeued(state: str) -> None:
    refused = decide_requeue(TaskState(state), AMPLE, 3, 10, facts.Requeue())
    assert isinstance(refused, WrongState)
    assert refused.metadata == {"state": state}


@pytest.mark.parametrize(
    ("budgets", "step", "reason", "extra"),
    [
        ((Budget(1000, 1000, 0),), 3, "TOKEN_LIMIT", facts.Requeue(extra_tokens=1)),
        ((Budget(1000, 1200, 0),), 3, "TOKEN_LIMIT", facts.Requeue(extra_tokens=201)),
        (AMPLE, 10, "STEP_LIMIT", facts.Requeue(extra_steps=1)),
    ],
)
def test_task_at_its_cap_needs_a_grant(budgets: Any, step: int, reason: str, extra: Any) -> None:
    refused = decide_requeue(TaskState.COST_EXCEEDED, budgets, step, 10, facts.Requeue())
    assert isinstance(refused, BudgetExhausted)
    assert refused.reason == reason
    assert decide_requeue(TaskState.COST_EXCEEDED, budgets, step, 10, extra) == RequeueDecision(begins_attempt=True)


def test_siblings_reservations_are_not_used_up() -> None:
    busy = (Budget(1000, 600, 400, 500, 300, 200),)
    assert decide_requeue(TaskState.FAILED, busy, 3, 10, facts.Requeue()) == RequeueDecision(begins_attempt=True)


def test_money_that_is_used_up_needs_more_money() -> None:
    broke = (Budget(1000, 100, 0, 500, 500, 0), Budget(0, 100, 0, 300, 300, 0))
    refused = decide_requeue(TaskState.COST_EXCEEDED, broke, 3, 10, facts.Requeue(extra_tokens=100))
    assert isinstance(refused, BudgetExhausted)
    assert refused.reason == "MONEY_LIMIT"
    paid = decide_requeue(TaskState.COST_EXCEEDED, broke, 3, 10, facts.Requeue(extra_nano_usd=1))
    assert paid == RequeueDecision(begins_attempt=True)


def test_where_money_has_no_cap_none_is_raised() -> None:
    for refused in (
        decide_requeue(TaskState.FAILED, AMPLE, 3, 10, facts.Requeue(extra_nano_usd=1)),
        decide_grant(TaskState.RUNNING, AMPLE[0], 3, 10, facts.GrantBudget(extra_nano_usd=1)),
    ):
        assert isinstance(refused, InvalidRequest)


@pytest.mark.parametrize("state", ["QUEUED", "RUNNING", "WAITING_USER", "WAITING_EXTERNAL", "RETRY_SCHEDULED"])
def test_live_root_continues_with_its_grant(state: str) -> None:
    verdict = decide_grant(TaskState(state), AMPLE[0], 3, 10, facts.GrantBudget(extra_tokens=1))
    assert verdict == RequeueDecision(begins_attempt=False)


def test_a_root_without_budget_is_requeued_by_the_rule() -> None:
    empty, enough = Budget(1000, 1200, 0), facts.GrantBudget(extra_tokens=201)
    refused = decide_grant(TaskState.COST_EXCEEDED, empty, 3, 10, facts.GrantBudget(extra_tokens=200))
    assert isinstance(refused, BudgetExhausted)
    assert decide_grant(TaskState.COST_EXCEEDED, empty, 3, 10, enough) == RequeueDecision(begins_attempt=True)


@pytest.mark.parametrize("state", ["SUCCEEDED", "FAILED", "TIMED_OUT", "CANCELLED"])
def test_a_root_that_ended_otherwise_takes_no_grant(state: str) -> None:
    refused = decide_grant(TaskState(state), AMPLE[0], 3, 10, facts.GrantBudget(extra_tokens=1))
    assert isinstance(refused, WrongState)
    assert refused.metadata == {"state": state}


@pytest.mark.parametrize(
    ("to_state", "reason", "ending", "granted_at", "refused"),
    [
        ("COST_EXCEEDED", "TOKEN_LIMIT", None, 7, True),
        ("COST_EXCEEDED", "MONEY_LIMIT", None, 7, True),
        ("COST_EXCEEDED", "STEP_LIMIT", None, 7, False),
        ("COST_EXCEEDED", "TOKEN_LIMIT", None, 0, False),
        ("COST_EXCEEDED", "TOKEN_LIMIT", PendingEnding(TaskState.CANCELLED, "CANCEL_REQUESTED", "", "olga"), 7, False),
        ("FAILED", "MODEL_REJECTED", None, 7, False),
    ],
)
def test_granted_task_does_not_end_at_its_old_cap(
    to_state: str, reason: str, ending: Any, granted_at: int, refused: bool
) -> None:
    refusal = refuse_limit_with_unread_grant(TaskState(to_state), reason, ending, granted_at)
    assert (refusal is not None) is refused
    assert refusal is None or refusal.reason == "UNREAD_GRANT"


def history(*bodies: Any, end: Any = TaskState.FAILED) -> Any:
    """A task that began, did this in step 1, ended, and was requeued."""
    start = [facts.Submitted(TaskSpec("do it")), facts.Transition(TaskState.QUEUED, "SUBMITTED")]
    running = facts.Transition(TaskState.RUNNING, "OPENED")
    request = facts.OperatorRequest("again", facts.Requeue())
    queued = facts.Transition(TaskState.QUEUED, "OPERATOR_REQUEUE")
    seen = [*start, running, *bodies, facts.Transition(end, "WHY"), request, queued]
    return fold(facts.Entry(number, 1, body) for number, body in enumerate(seen, 1))


def attempt(number: int = 1) -> Any:
    return facts.ModelAttempt(number, "m", 10, 10, 20)


def answered(stop_reason: Any, text: str = "…") -> Any:
    return facts.AssistantMessage(1, ({"type": "text", "text": text},), stop_reason, TokenUsage())


def test_failures_of_the_former_attempt_do_not_count() -> None:
    failure = facts.ModelFailure(1, "INVALID_REQUEST", "no", retryable=False)
    point = history(attempt(), failure)
    assert (point.failures, point.retries) == ([], 0)
    assert next_action(point) == CallModel(1, 2)


@pytest.mark.parametrize("stop_reason", ["refusal", "model_context_window_exceeded"])
def test_refused_answer_is_requested_again(stop_reason: str) -> None:
    point = history(attempt(), answered(stop_reason))
    assert [message["role"] for message in point.messages] == ["user"]
    assert next_action(point) == CallModel(2, 1)


def test_truncated_answer_is_continued_after_a_requeue() -> None:
    bodies = [fact for _ in range(3) for fact in (attempt(), answered("max_tokens"), facts.UserMessage("go on"))][:-1]
    assert isinstance(next_action(history(*bodies)), AskAgain)


def test_final_answer_before_a_cancel_stays() -> None:
    point = history(attempt(), answered("end_turn", "42"), facts.CancelRequest("enough"), end=TaskState.CANCELLED)
    assert point.cancel_reason is None
    assert next_action(point) == CloseOut(TaskState.SUCCEEDED, "FINAL_ANSWER", "", "42")
