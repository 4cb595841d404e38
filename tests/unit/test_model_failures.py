"""Failed model calls by class: which may be tried again, and what the task's move says of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from services.models.ends import failure_end
from services.worker.model_runner import _failure
from services.worker.transitions import RetryModelCall, after_failure, is_late, late_call, wait_before_attempt
from tenure.domain.control import after_function_failure
from tenure.domain.entries import Body, ControlFailure, ControlStep, Entry, ModelFailure, Submitted, Transition
from tenure.domain.fold import ResumePoint, fold
from tenure.domain.retry import (
    ACCOUNT_FAULTS,
    MAX_UNUSABLE_ANSWERS,
    MODEL_CALL_TRIES,
    RETRYABLE,
    UNUSABLE,
    FailureClass,
    RetryPolicy,
    class_of_status,
    wait_for_provider,
)
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import ControlWork, TaskPolicy, TaskSpec
from tenure.domain.timeouts import PhaseTimeout, TimeoutAction, Timeouts
from tenure.model_providers.client import LONGEST_RETRY_AFTER_SECONDS, ModelCallFailed, _retry_after_seconds
from tenure.v1 import model_service_pb2

POLICY = RetryPolicy(max_attempts=2, initial_seconds=4.0)
LASTING = {"INVALID_REQUEST", "PROMPT_TOO_LONG", "REQUEST_TOO_LARGE", "NOT_FOUND", "TOOL_REFUSED"}
AWAY = sorted((RETRYABLE | ACCOUNT_FAULTS) - UNUSABLE - {FailureClass.INTERRUPTED})


def failure(error_class: FailureClass, **fields: Any) -> ModelFailure:
    return ModelFailure(1, error_class.value, "words", error_class in RETRYABLE, **fields)


def test_refused_tools_reach_the_worker_of_a_model_runner() -> None:
    refusal = ModelCallFailed(FailureClass.INVALID_REQUEST, "tools.0.custom.input_schema: no", status_code=400)
    refusal.blame(["a"])
    sent = model_service_pb2.GenerateResponse.FromString(failure_end(1, refusal)).failure
    received = _failure(sent)
    assert (received.error_class, received.refused_tools) == (FailureClass.TOOL_REFUSED, ("a",))
    assert received.message == "the provider refuses the definition of a: tools.0.custom.input_schema: no"
    assert not received.retryable


def test_every_class_is_of_one_kind() -> None:
    assert set(FailureClass) - RETRYABLE - ACCOUNT_FAULTS == LASTING
    assert RETRYABLE.isdisjoint(ACCOUNT_FAULTS)


@pytest.mark.parametrize("error_class", sorted(LASTING))
def test_a_lasting_failure_ends_the_task_at_once_with_its_class(error_class: Any) -> None:
    verdict = after_failure(ResumePoint(last_text="so far"), failure(FailureClass(error_class)), POLICY, 0.5)
    assert isinstance(verdict, Transition)
    assert (verdict.to_state, verdict.reason) == (TaskState.FAILED, Reason.MODEL_REJECTED)
    assert (verdict.error_class, verdict.message, verdict.result) == (error_class, f"{error_class}: words", "so far")


@pytest.mark.parametrize("error_class", AWAY)
def test_provider_that_is_away_never_ends_a_task(error_class: FailureClass) -> None:
    newest = failure(error_class)
    before = [newest] * (MODEL_CALL_TRIES - 1)
    reason = {
        FailureClass.RATE_LIMITED: Reason.MODEL_RATE_LIMITED,
        **dict.fromkeys(ACCOUNT_FAULTS, Reason.MODEL_ACCOUNT_REFUSED),
    }.get(error_class, Reason.MODEL_UNAVAILABLE)
    for retries, delay_seconds in ((0, 2.0), (1, 4.0), (1000, 225.0)):
        verdict = after_failure(ResumePoint(failures=before, retries=retries), newest, POLICY, 0.5)
        assert isinstance(verdict, Transition)
        assert (verdict.to_state, verdict.reason) == (TaskState.RETRY_SCHEDULED, reason)
        assert (verdict.error_class, verdict.retry_delay_seconds) == (error_class.value, delay_seconds)


def test_short_backoff_grows_when_the_provider_stays_away() -> None:
    """No count ends these tries, and each reads the task's history."""
    hasty = RetryPolicy(initial_seconds=0.001, cap_seconds=0.001)
    waits = [wait_for_provider(hasty, failures, 0.0, None) for failures in (1, 3, 4, 5, 10, 1000)]
    assert waits == [0.0, 0.0, 2.5, 5.0, 150.0, 150.0]
    assert wait_for_provider(hasty, 4, 0.0, 900.0) == 900.0


def test_refused_account_is_not_asked_again_at_once() -> None:
    for error_class in ACCOUNT_FAULTS:
        verdict = after_failure(ResumePoint(), failure(error_class), POLICY, 0.5)
        assert isinstance(verdict, Transition)
        assert verdict.to_state is TaskState.RETRY_SCHEDULED


@pytest.mark.parametrize("error_class", sorted(UNUSABLE))
def test_unusable_answer_is_bought_again_twice_at_most(error_class: FailureClass) -> None:
    """A retry of the task in between does not begin the count anew."""
    unusable, passing = failure(error_class), failure(FailureClass.CONNECTION)
    later = Transition(TaskState.RETRY_SCHEDULED, Reason.MODEL_UNAVAILABLE, from_state=TaskState.RUNNING)
    story: list[Body] = [Submitted(TaskSpec("g"))]
    for _ in range(MAX_UNUSABLE_ANSWERS - 1):
        assert isinstance(after_failure(folded(story), unusable, POLICY, 0.5), RetryModelCall)
        story += [unusable, passing, later]
    verdict = after_failure(folded(story), unusable, POLICY, 0.5)
    assert isinstance(verdict, Transition)
    assert (verdict.to_state, verdict.reason) == (TaskState.FAILED, Reason.MODEL_ANSWER_UNUSABLE)
    assert (verdict.error_class, verdict.result) == (error_class.value, "")
    assert "3 answers of the model in a row could not be used" in verdict.message
    assert "words" in verdict.message


def folded(story: Sequence[Body]) -> ResumePoint:
    return fold(Entry(number, 1, body) for number, body in enumerate(story, 1))


def verdict(*failures: ModelFailure, random_fraction: float = 0.5) -> RetryModelCall | Transition:
    return after_failure(ResumePoint(failures=list(failures[:-1])), failures[-1], POLICY, random_fraction)


def test_the_delay_grows_with_jitter() -> None:
    overloaded = failure(FailureClass.OVERLOADED)
    assert verdict(overloaded) == RetryModelCall(0.25)
    assert verdict(overloaded, overloaded) == RetryModelCall(0.5)
    assert verdict(overloaded, overloaded, random_fraction=0.0) == RetryModelCall(0.0)
    assert verdict(failure(FailureClass.OVERLOADED, retry_after_seconds=9)) == RetryModelCall(9)


def test_interrupted_calls_do_not_count() -> None:
    interrupted = failure(FailureClass.INTERRUPTED)
    assert verdict(interrupted) == RetryModelCall(0.0)
    assert isinstance(verdict(*[interrupted] * MODEL_CALL_TRIES, failure(FailureClass.OVERLOADED)), RetryModelCall)


def test_a_long_retry_time_is_waited_for_without_a_worker() -> None:
    late = verdict(failure(FailureClass.RATE_LIMITED, retry_after_seconds=900.0))
    assert isinstance(late, Transition)
    assert (late.to_state, late.retry_delay_seconds) == (TaskState.RETRY_SCHEDULED, 900.0)


@pytest.mark.parametrize(
    ("status", "error_class"),
    [
        (400, "INVALID_REQUEST"),
        (402, "BILLING"),
        (408, "TIMEOUT"),
        (409, "CONFLICT"),
        (418, "INVALID_REQUEST"),
        (422, "INVALID_REQUEST"),
        (502, "SERVER_ERROR"),
        (504, "TIMEOUT"),
    ],
)
def test_every_status_has_a_class(status: int, error_class: str) -> None:
    assert class_of_status(status) == error_class


def test_only_our_own_timeout_is_a_late_model_call() -> None:
    assert is_late(failure(FailureClass.TIMEOUT))
    assert not is_late(failure(FailureClass.TIMEOUT, status_code=504))
    assert not is_late(failure(FailureClass.CONNECTION))


def test_silence_of_the_provider_is_not_the_timeout_of_its_phase() -> None:
    """A provider that hung for one minute ended a task whose calls may take ten."""
    policy = TaskPolicy(timeouts=Timeouts(model_call=PhaseTimeout(600.0, TimeoutAction.FAIL)))
    late = late_call(ResumePoint(), policy, failure(FailureClass.TIMEOUT))
    assert late is not None
    assert late.reason == Reason.MODEL_TIMEOUT
    assert late_call(ResumePoint(), policy, failure(FailureClass.SILENT)) is None


def test_function_buys_two_more_unusable_answers_at_most() -> None:
    """The third ends its step, and the function, unless that catches it."""
    unusable = failure(FailureClass.UNUSABLE_ANSWER)
    bought: list[Body] = [Submitted(TaskSpec("g", control=ControlWork("f")))]
    waits = []
    for _ in range(MAX_UNUSABLE_ANSWERS):
        point = folded(bought)
        waits.append(wait_before_attempt(point, unusable, 0.5))
        bought += [unusable]
    assert [wait is not None for wait in waits] == [True, True, False]
    uncaught, count = ControlFailure("UNUSABLE_ANSWER", "no JSON", retryable=True), folded(bought).progress.unusable
    move = after_function_failure(uncaught, 0, POLICY, random_fraction=0.5, unusable=count)
    assert (move.to_state, move.reason, move.error_class) == (
        TaskState.FAILED,
        "MODEL_ANSWER_UNUSABLE",
        "UNUSABLE_ANSWER",
    )
    assert "3 answers of the model in a row could not be used" in move.message
    assert folded([*bought, ControlStep("ask", failure=uncaught)]).progress.unusable == 0, "the next step has its own"
    move = after_function_failure(uncaught, POLICY.max_attempts, POLICY, random_fraction=0.5, unusable=count - 1)
    assert (move.to_state, move.reason) == (TaskState.FAILED, "FUNCTION_FAILED")


def test_a_retry_time_is_a_number_or_a_date() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    values = {"retry-after": format_datetime(now + timedelta(seconds=90), usegmt=True), "date": _http(now)}
    assert _retry_after_seconds(values) == 90.0
    assert _retry_after_seconds({"retry-after": "7.5"}) == 7.5
    assert _retry_after_seconds({"retry-after-ms": "250", "retry-after": "9"}) == 0.25


def test_retry_time_is_bounded_and_invalid_ones_ignored() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert _retry_after_seconds({"retry-after": "99999999"}) == LONGEST_RETRY_AFTER_SECONDS
    assert _retry_after_seconds({"retry-after": _http(now - timedelta(days=1)), "date": _http(now)}) == 0.0
    assert _retry_after_seconds({"retry-after": _http(now + timedelta(days=9)), "date": _http(now)}) == 86_400.0
    for words in ("soon", "", "-3", "Fri, 99 Foo 2026"):
        assert _retry_after_seconds({"retry-after": words}) is None


def _http(moment: datetime) -> str:
    return format_datetime(moment, usegmt=True)
