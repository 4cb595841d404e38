"""What follows a failed model call: a rule without clock or dice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tenure.domain.entries import ModelFailure, Transition
from tenure.domain.failures import FailureClass, reason_of_retry
from tenure.domain.retry import MODEL_CALL_RETRY, RetryPolicy
from tenure.domain.states import Reason, TaskState

LONGEST_WAIT_SECONDS: Final = 60.0
"""A provider that wants a longer pause gets it, but without a worker that holds the task all the while."""


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Another attempt of the same step, after a wait."""

    wait_seconds: float


def after_failure(
    failures: Sequence[ModelFailure], retries: int, policy: RetryPolicy, *, result: str, luck: float
) -> TryAgain | Transition:
    """`failures` in a row, the newest last; `retries`: how often the task was scheduled again; `result` so far.

    A failure that another attempt cannot mend ends the task in the provider's words. After the tries of one call the
    task's own policy takes over, and then it fails.
    """
    newest = failures[-1]
    told = f"{newest.error_class}: {newest.message}"
    if not newest.retryable:
        return Transition(TaskState.FAILED, Reason.MODEL_REJECTED, told, result, error_class=newest.error_class)
    count = sum(1 for failure in failures if failure.error_class != FailureClass.INTERRUPTED)
    wait = MODEL_CALL_RETRY.wait_seconds(count, luck, newest.retry_after_seconds) if count else 0.0
    if not MODEL_CALL_RETRY.exhausted(count) and wait <= LONGEST_WAIT_SECONDS:
        return TryAgain(wait)
    leave = partial(Transition, reason=reason_of_retry(newest.error_class), error_class=newest.error_class)
    if policy.exhausted(retries):
        return leave(TaskState.FAILED, message=f"{told} (after {retries} retries of the task)", result=result)
    delay_seconds = policy.wait_seconds(retries + 1, luck, newest.retry_after_seconds)
    return leave(TaskState.RETRY_SCHEDULED, message=told, retry_delay_seconds=delay_seconds)


def is_late(failure: ModelFailure) -> bool:
    """Whether the call itself took too long, by our clock: a provider that says so of its own doing has a status."""
    return failure.error_class == FailureClass.TIMEOUT and not failure.status_code
