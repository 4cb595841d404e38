"""Failed model calls by class: which may be tried again, and what the task's move says of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from services.worker.transitions import RetryModelCall, after_failure, is_late
from tenure.domain.entries import ModelFailure, Transition
from tenure.domain.retry import MODEL_CALL_TRIES, RETRYABLE, FailureClass, RetryPolicy
from tenure.domain.states import Reason, TaskState
from tenure.model_providers.client import LONGEST_RETRY_AFTER_SECONDS, _retry_after_seconds

POLICY = RetryPolicy(max_attempts=2, initial_seconds=4.0)
LASTING = {
    "INVALID_REQUEST",
    "PROMPT_TOO_LONG",
    "REQUEST_TOO_LARGE",
    "AUTHENTICATION",
    "PERMISSION",
    "BILLING",
    "NOT_FOUND",
}


def failure(error_class: FailureClass, **fields: Any) -> ModelFailure:
    return ModelFailure(1, error_class.value, "words", error_class in RETRYABLE, **fields)


def test_errors_of_request_key_or_account_are_final() -> None:
    assert set(FailureClass) - RETRYABLE == LASTING


@pytest.mark.parametrize("error_class", sorted(LASTING))
def test_a_lasting_failure_ends_the_task_at_once_with_its_class(error_class: Any) -> None:
    verdict = after_failure([failure(FailureClass(error_class))], 0, POLICY, result="so far", random_fraction=0.5)
    assert isinstance(verdict, Transition)
    assert (verdict.to_state, verdict.reason) == (TaskState.FAILED, Reason.MODEL_REJECTED)
    assert (verdict.error_class, verdict.message, verdict.result) == (error_class, f"{error_class}: words", "so far")


@pytest.mark.parametrize("error_class", sorted(RETRYABLE - {FailureClass.INTERRUPTED}))
def test_a_passing_failure_is_retried_rescheduled_then_fatal(error_class: Any) -> None:
    failures = [failure(error_class)] * MODEL_CALL_TRIES
    assert isinstance(after_failure(failures[:1], 0, POLICY, result="", random_fraction=0.5), RetryModelCall)
    limited = error_class is FailureClass.RATE_LIMITED
    reason = Reason.MODEL_RATE_LIMITED if limited else Reason.MODEL_UNAVAILABLE
    for retries, to_state in ((0, TaskState.RETRY_SCHEDULED), (1, TaskState.FAILED)):
        verdict = after_failure(failures, retries, POLICY, result="", random_fraction=0.5)
        assert isinstance(verdict, Transition)
        assert (verdict.to_state, verdict.reason, verdict.error_class) == (to_state, reason, error_class.value)
        assert verdict.retry_delay_seconds == (2.0 if to_state is TaskState.RETRY_SCHEDULED else None)


def verdict(*failures: ModelFailure, random_fraction: float = 0.5) -> RetryModelCall | Transition:
    return after_failure(failures, 0, POLICY, result="", random_fraction=random_fraction)


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
    verdict = after_failure(
        [failure(FailureClass.RATE_LIMITED, retry_after_seconds=900.0)], 0, POLICY, result="", random_fraction=0.5
    )
    assert isinstance(verdict, Transition)
    assert (verdict.to_state, verdict.retry_delay_seconds) == (TaskState.RETRY_SCHEDULED, 900.0)


def test_only_our_own_timeout_is_a_late_model_call() -> None:
    assert is_late(failure(FailureClass.TIMEOUT))
    assert not is_late(failure(FailureClass.TIMEOUT, status_code=504))
    assert not is_late(failure(FailureClass.CONNECTION))


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
