"""Requeues: which tasks may go on, and from where."""

from __future__ import annotations

import pytest

from tenure.domain import entries as facts
from tenure.domain.budget import Budget, TokenUsage
from tenure.domain.errors import BudgetExhausted, WrongState
from tenure.domain.fold import fold
from tenure.domain.requeue import RequeueVerdict, decide_requeue
from tenure.domain.states import TERMINAL, TaskState
from tenure.domain.task import TaskSpec
from tenure.domain.turn import CallModel, CloseOut, Nudge, next_move

AMPLE = Budget(1000, 100, 0)


@pytest.mark.parametrize("state", sorted(TERMINAL - {TaskState.SUCCEEDED}))
def test_what_ended_without_success_begins_another_attempt(state):
    assert decide_requeue(state, AMPLE, 3, 10, facts.Requeue()) == RequeueVerdict(begins_attempt=True)


def test_what_waits_for_its_retry_goes_on_in_its_attempt():
    verdict = decide_requeue(TaskState.RETRY_SCHEDULED, AMPLE, 3, 10, facts.Requeue())
    assert verdict == RequeueVerdict(begins_attempt=False)


@pytest.mark.parametrize("state", ["SUCCEEDED", "QUEUED", "RUNNING", "WAITING_USER", "WAITING_EXTERNAL"])
def test_nothing_else_is_requeued(state):
    refused = decide_requeue(TaskState(state), AMPLE, 3, 10, facts.Requeue())
    assert isinstance(refused, WrongState)
    assert refused.metadata == {"state": state}


@pytest.mark.parametrize(
    ("budget", "step", "reason", "extra"),
    [
        (Budget(1000, 1000, 0), 3, "TOKEN_LIMIT", facts.Requeue(extra_tokens=1)),
        (Budget(1000, 1200, 0), 3, "TOKEN_LIMIT", facts.Requeue(extra_tokens=201)),
        (AMPLE, 10, "STEP_LIMIT", facts.Requeue(extra_steps=1)),
    ],
)
def test_what_could_not_go_on_needs_more(budget, step, reason, extra):
    refused = decide_requeue(TaskState.COST_EXCEEDED, budget, step, 10, facts.Requeue())
    assert isinstance(refused, BudgetExhausted)
    assert refused.reason == reason
    assert decide_requeue(TaskState.COST_EXCEEDED, budget, step, 10, extra) == RequeueVerdict(begins_attempt=True)


def history(*bodies, end=TaskState.FAILED):
    """A task that began, did this in step 1, ended, and was requeued."""
    start = [facts.Submitted(TaskSpec("do it")), facts.Transition(TaskState.QUEUED, "SUBMITTED")]
    running = facts.Transition(TaskState.RUNNING, "OPENED")
    asked = facts.OperatorRequest("again", facts.Requeue())
    queued = facts.Transition(TaskState.QUEUED, "OPERATOR_REQUEUE")
    told = [*start, running, *bodies, facts.Transition(end, "WHY"), asked, queued]
    return fold(facts.Entry(number, 1, body) for number, body in enumerate(told, 1))


def attempt(number=1):
    return facts.ModelAttempt(number, "m", 10, 10, 20)


def said(stop_reason, text="…"):
    return facts.AssistantMessage(1, ({"type": "text", "text": text},), stop_reason, TokenUsage())


def test_failures_of_the_attempt_before_do_not_count_and_its_model_attempts_do():
    failure = facts.ModelFailure(1, "INVALID_REQUEST", "no", retryable=False)
    point = history(attempt(), failure)
    assert (point.failures, point.retries) == ([], 0)
    assert next_move(point) == CallModel(1, 2)


@pytest.mark.parametrize("stop_reason", ["refusal", "model_context_window_exceeded"])
def test_an_answer_that_led_nowhere_is_asked_for_again(stop_reason):
    point = history(attempt(), said(stop_reason))
    assert [message["role"] for message in point.messages] == ["user"]
    assert next_move(point) == CallModel(2, 1)


def test_an_answer_that_was_cut_off_too_often_is_gone_on_with():
    bodies = [fact for _ in range(3) for fact in (attempt(), said("max_tokens"), facts.UserMessage("go on"))][:-1]
    assert isinstance(next_move(history(*bodies)), Nudge)


def test_an_answer_that_was_the_last_word_before_a_cancel_stands():
    point = history(attempt(), said("end_turn", "42"), facts.CancelRequest("enough"), end=TaskState.CANCELLED)
    assert point.cancel_reason is None
    assert next_move(point) == CloseOut(TaskState.SUCCEEDED, "FINAL_ANSWER", "", "42")
