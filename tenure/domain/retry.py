"""When to try again: backoff with full jitter, for model calls inside a claim and for whole tasks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tenure.domain.states import Reason

MODEL_CALL_TRIES: Final = 5
"""How often one model call is sent before the task is scheduled to be retried."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Waits of `initial * factor^n`, at most `cap`, each drawn evenly from zero to there ("full jitter", AWS 2015)."""

    max_attempts: int = 3
    initial_seconds: float = 5.0
    factor: float = 2.0
    cap_seconds: float = 300.0

    def ceiling_seconds(self, failures: int) -> float:
        """The longest wait after `failures` failures in a row (1 or more)."""
        exponent = min(max(failures, 1) - 1, 64)  # 64 doublings are past any cap; more would overflow
        return min(self.cap_seconds, self.initial_seconds * self.factor**exponent)

    def wait_seconds(self, failures: int, luck: float, retry_after_seconds: float | None = None) -> float:
        """How long to wait; `luck` in [0, 1) is the caller's dice. What the provider asked for is the least."""
        jittered = self.ceiling_seconds(failures) * luck
        return max(jittered, retry_after_seconds or 0.0)

    def exhausted(self, retries: int) -> bool:
        """Whether `retries` so far leave no further one."""
        return retries >= self.max_attempts


MODEL_CALL_RETRY: Final = RetryPolicy(max_attempts=MODEL_CALL_TRIES, initial_seconds=0.5, factor=2.0, cap_seconds=20.0)
"""Between the tries of one model call, with the lease renewed meanwhile."""


# Classes of failed model calls: which of them another try may mend, and what the task's move is called then.


class FailureClass(StrEnum):
    """How a model call failed. On the wire a string: other loops may have classes of their own."""

    RATE_LIMITED = "RATE_LIMITED"
    OVERLOADED = "OVERLOADED"
    SERVER_ERROR = "SERVER_ERROR"
    TIMEOUT = "TIMEOUT"
    CONFLICT = "CONFLICT"
    CONNECTION = "CONNECTION"
    BROKEN_STREAM = "BROKEN_STREAM"
    ANSWER_TOO_LARGE = "ANSWER_TOO_LARGE"  # more calls or bytes than the ledger takes in one commit
    NO_SUMMARY = "NO_SUMMARY"  # asked to summarise, it said something else
    INTERRUPTED = "INTERRUPTED"  # we broke the call off: it settles its attempt, and says nothing against the provider
    INVALID_REQUEST = "INVALID_REQUEST"
    PROMPT_TOO_LONG = "PROMPT_TOO_LONG"  # the conversation is shortened first, then asked again
    REQUEST_TOO_LARGE = "REQUEST_TOO_LARGE"
    AUTHENTICATION = "AUTHENTICATION"
    PERMISSION = "PERMISSION"
    BILLING = "BILLING"
    NOT_FOUND = "NOT_FOUND"


RETRYABLE: Final = frozenset(
    {
        FailureClass.RATE_LIMITED,
        FailureClass.OVERLOADED,
        FailureClass.SERVER_ERROR,
        FailureClass.TIMEOUT,
        FailureClass.CONFLICT,
        FailureClass.CONNECTION,
        FailureClass.BROKEN_STREAM,
        FailureClass.ANSWER_TOO_LARGE,
        FailureClass.NO_SUMMARY,
        FailureClass.INTERRUPTED,
    }
)
"""The same request may succeed later. What is wrong with the request, the key, the account or the model stays so."""

_OF_STATUS: Final = {
    401: FailureClass.AUTHENTICATION,
    402: FailureClass.BILLING,
    403: FailureClass.PERMISSION,
    404: FailureClass.NOT_FOUND,
    408: FailureClass.TIMEOUT,
    409: FailureClass.CONFLICT,
    413: FailureClass.REQUEST_TOO_LARGE,
    429: FailureClass.RATE_LIMITED,
    504: FailureClass.TIMEOUT,
    529: FailureClass.OVERLOADED,
}


def class_of_status(status_code: int) -> FailureClass:
    """The class of an HTTP status from 400 on. Others than those of the table are the request's, or the server's."""
    others = FailureClass.SERVER_ERROR if status_code >= 500 else FailureClass.INVALID_REQUEST
    return _OF_STATUS.get(status_code, others)


def reason_of_retry(error_class: str) -> str:
    """What a task waits for, or has failed for, that was tried often enough."""
    return Reason.MODEL_RATE_LIMITED if error_class == FailureClass.RATE_LIMITED else Reason.MODEL_UNAVAILABLE
