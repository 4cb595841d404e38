"""When to try again: backoff with full jitter, for model calls inside a claim and for whole tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
