"""What follows a failed model call."""

from __future__ import annotations

from typing import Any

from services.worker.transitions import RetryModelCall, after_failure
from tenure.domain.entries import ModelFailure, Transition
from tenure.domain.retry import MODEL_CALL_TRIES, FailureClass, RetryPolicy
from tenure.domain.states import Reason, TaskState

POLICY = RetryPolicy(max_attempts=2, initial_seconds=5.0, factor=2.0, cap_seconds=60.0)


def failure(error_class: str = "OVERLOADED", *, retryable: bool = True, retry_after_seconds: Any = None) -> Any:
    return ModelFailure(1, error_class, "words", retryable, retry_after_seconds=retry_after_seconds)


def verdict(*failures: Any, retries: int = 0, random_fraction: float = 0.5) -> Any:
    return after_failure(failures, retries, POLICY, result="so far", random_fraction=random_fraction)


def test_refusal_fails_the_task_with_the_providers_message() -> None:
    assert verdict(failure("INVALID_REQUEST", retryable=False)) == Transition(
        TaskState.FAILED,
        Reason.MODEL_REJECTED,
        "INVALID_REQUEST: words",
        "so far",
        error_class="INVALID_REQUEST",
    )


def test_the_wait_grows_and_is_jittered() -> None:
    assert verdict(failure()) == RetryModelCall(0.25)
    assert verdict(failure(), failure()) == RetryModelCall(0.5)
    assert verdict(failure(), failure(), random_fraction=0.0) == RetryModelCall(0.0)


def test_the_providers_wait_is_the_least() -> None:
    assert verdict(failure(retry_after_seconds=9)) == RetryModelCall(9)


def test_after_its_tries_the_task_is_scheduled() -> None:
    scheduled = verdict(*[failure("RATE_LIMITED")] * MODEL_CALL_TRIES, retries=1)
    assert isinstance(scheduled, Transition)
    assert (scheduled.to_state, scheduled.reason) == (TaskState.RETRY_SCHEDULED, Reason.MODEL_RATE_LIMITED)
    assert scheduled.retry_delay_seconds == 5.0


def test_task_fails_after_its_retries_with_its_text() -> None:
    failed = verdict(*[failure()] * MODEL_CALL_TRIES, retries=2)
    assert isinstance(failed, Transition)
    assert (failed.to_state, failed.reason, failed.result) == (TaskState.FAILED, Reason.MODEL_UNAVAILABLE, "so far")


def test_calls_that_we_broke_off_ourselves_do_not_count() -> None:
    assert isinstance(verdict(*[failure(FailureClass.INTERRUPTED)] * MODEL_CALL_TRIES, failure()), RetryModelCall)
    assert verdict(failure(FailureClass.INTERRUPTED)) == RetryModelCall(0.0)
