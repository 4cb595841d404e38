"""Retry policy: backoff with jitter, for model calls within a claim and for whole tasks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tenure.domain.states import Reason

MODEL_CALL_TRIES: Final = 5
"""How often a worker sends one model call before it schedules a retry of the task."""


class Jitter(StrEnum):
    """The random part of a wait (AWS, "Exponential Backoff And Jitter", 2015)."""

    FULL = "FULL"  # between 0 and the backoff
    EQUAL = "EQUAL"  # between half of the backoff and the backoff
    NONE = "NONE"  # exactly the backoff


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff: `initial_seconds * factor^n`, at most `cap_seconds`, of which `jitter` makes the wait."""

    max_attempts: int = 4
    initial_seconds: float = 5.0
    factor: float = 2.0
    cap_seconds: float = 300.0
    jitter: Jitter = Jitter.FULL

    def ceiling_seconds(self, failures: int) -> float:
        """Returns the longest wait after `failures` failures in a row (1 or more)."""
        exponent = min(max(failures, 1) - 1, 64)  # 64 doublings exceed any cap; a higher exponent could overflow
        return min(self.cap_seconds, self.initial_seconds * self.factor**exponent)

    def wait_seconds(self, failures: int, random_fraction: float, retry_after_seconds: float | None = None) -> float:
        """Returns how long to wait, at least `retry_after_seconds`. `random_fraction`: in [0, 1)."""
        fixed_share = _FIXED_SHARES[self.jitter]
        jittered = self.ceiling_seconds(failures) * (fixed_share + (1.0 - fixed_share) * random_fraction)
        return max(jittered, retry_after_seconds or 0.0)

    def exhausted(self, failures: int) -> bool:
        """Whether no attempt is left after `failures` failed attempts. The first attempt counts."""
        return failures >= self.max_attempts


_FIXED_SHARES: Final = {Jitter.FULL: 0.0, Jitter.EQUAL: 0.5, Jitter.NONE: 1.0}

MODEL_CALL_RETRY: Final = RetryPolicy(max_attempts=MODEL_CALL_TRIES, initial_seconds=0.5, factor=2.0, cap_seconds=20.0)
"""The policy for the attempts of one model call. The worker renews its lease during the waits."""


# The classes of failed model calls, and the reason of the transition that follows.


class FailureClass(StrEnum):
    """The kind of failure of a model call. A string on the wire, because other loops may have classes of their own."""

    RATE_LIMITED = "RATE_LIMITED"
    OVERLOADED = "OVERLOADED"
    SERVER_ERROR = "SERVER_ERROR"
    TIMEOUT = "TIMEOUT"  # the call exceeded its own timeout, or the provider reports one
    SILENT = "SILENT"  # no bytes came for too long, or for longer than a client's timeout
    CONFLICT = "CONFLICT"
    CONNECTION = "CONNECTION"
    BROKEN_STREAM = "BROKEN_STREAM"
    UNUSABLE_ANSWER = "UNUSABLE_ANSWER"  # a complete answer that is not one of the protocol
    ANSWER_TOO_LARGE = "ANSWER_TOO_LARGE"  # more tool calls or bytes than fit into one commit
    NO_SUMMARY = "NO_SUMMARY"  # the answer to the request for a summary is not a summary
    LOST = "LOST"  # the model runner ended in the middle of the call
    INTERRUPTED = "INTERRUPTED"  # the worker stopped the call: this settles the attempt and is not the provider's fault
    INVALID_REQUEST = "INVALID_REQUEST"
    PROMPT_TOO_LONG = "PROMPT_TOO_LONG"  # the worker compacts the conversation before it sends the next call
    TOOL_REFUSED = "TOOL_REFUSED"  # the definition of a tool; the worker sends the call again without that tool
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
        FailureClass.SILENT,
        FailureClass.CONFLICT,
        FailureClass.CONNECTION,
        FailureClass.BROKEN_STREAM,
        FailureClass.UNUSABLE_ANSWER,
        FailureClass.ANSWER_TOO_LARGE,
        FailureClass.NO_SUMMARY,
        FailureClass.LOST,
        FailureClass.INTERRUPTED,
    }
)
"""The classes after which the same request may succeed later. A fault of the request or the model persists."""

ACCOUNT_FAULTS: Final = frozenset({FailureClass.AUTHENTICATION, FailureClass.PERMISSION, FailureClass.BILLING})
"""The classes of a key or an account that the provider refuses, until an operator corrects it."""

UNUSABLE: Final = frozenset({FailureClass.UNUSABLE_ANSWER, FailureClass.ANSWER_TOO_LARGE, FailureClass.NO_SUMMARY})
"""The classes of answers that were complete and are paid for: another attempt is another purchase."""
MAX_UNUSABLE_ANSWERS: Final = 3
"""So many answers in a row that are empty, cut off or cannot be used end the task: the next one would be equal."""

PROVIDER_AWAY: Final = (RETRYABLE - UNUSABLE - {FailureClass.INTERRUPTED}) | ACCOUNT_FAULTS
"""The classes that are not faults of a task. Such a provider is tried until the task's deadline."""

_CLASS_OF_STATUS: Final = {
    401: FailureClass.AUTHENTICATION,
    402: FailureClass.BILLING,
    403: FailureClass.PERMISSION,
    404: FailureClass.NOT_FOUND,
    408: FailureClass.TIMEOUT,
    409: FailureClass.CONFLICT,
    413: FailureClass.REQUEST_TOO_LARGE,
    425: FailureClass.CONFLICT,
    429: FailureClass.RATE_LIMITED,
    504: FailureClass.TIMEOUT,
    529: FailureClass.OVERLOADED,
}


def class_of_status(status_code: int) -> FailureClass:
    """Returns the class of an HTTP status of 400 or more. Other statuses: INVALID_REQUEST, or SERVER_ERROR from 500."""
    default = FailureClass.SERVER_ERROR if status_code >= 500 else FailureClass.INVALID_REQUEST
    return _CLASS_OF_STATUS.get(status_code, default)


UNPAID_CODES: Final = frozenset({"insufficient_quota", "billing_not_active", "billing_hard_limit_reached"})
"""The codes of a 429 that no wait helps against."""
_NO_CREDIT: Final = re.compile(r"credit balance is too low|spend(ing)? limit|usage limits? ", re.IGNORECASE)


def says_unpaid(status_code: int, code: str, message: str) -> bool:
    """Whether a refusal of OpenAI (429 with a code) or Anthropic (400) says that the account has no credit."""
    return (status_code == 429 and code in UNPAID_CODES) or (
        status_code == 400 and _NO_CREDIT.search(message) is not None
    )


OWN_PACE_RETRIES: Final = 3
_LEAST_PACE: Final = RetryPolicy(jitter=Jitter.EQUAL)


def wait_for_provider(
    policy: RetryPolicy, failures: int, random_fraction: float, retry_after_seconds: float | None
) -> float:
    """Returns the seconds until a task tries a provider again that is away, after so many failures (1 or more).

    No count ends these tries, so from the fourth on they have at least the backoff of the default policy: a short one
    would read the task's whole history every second for a day.
    """
    least = _LEAST_PACE.wait_seconds(failures - OWN_PACE_RETRIES, random_fraction) if failures > OWN_PACE_RETRIES else 0
    return max(least, policy.wait_seconds(failures, random_fraction, retry_after_seconds))


def unusable_text(answers: int, last: str) -> str:
    """Returns why a task ends after so many answers that could not be used."""
    return f"{answers} answers of the model in a row could not be used. The last one: {last}"


def reason_of_retry(error_class: str) -> str:
    """Returns the reason of the transition after the last attempt of a model call has failed."""
    if error_class in ACCOUNT_FAULTS:
        return Reason.MODEL_ACCOUNT_REFUSED
    return Reason.MODEL_RATE_LIMITED if error_class == FailureClass.RATE_LIMITED else Reason.MODEL_UNAVAILABLE
