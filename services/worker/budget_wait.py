"""What a task does while there is no room for its next call: at a cap of its tenant, or beside others' calls in flight.

A short wait keeps its worker, a long one does not: a task that says nothing for long is taken for stuck. It never
ends by it.
"""

from __future__ import annotations

from typing import Final

from tenure.domain.budget import Denied
from tenure.domain.entries import Transition
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import Reason, TaskState

PATIENCE_SECONDS: Final = 30.0
MOST_WAITS: Final = 3
"""At a cap of the tenant, each no longer than PATIENCE_SECONDS."""
MOST_BUSY_WAITS: Final = 12
"""Beside others' calls: 41 s together."""
_BUSY: Final = RetryPolicy(initial_seconds=0.2, factor=2.0, cap_seconds=5.0)
_UNTOLD_SECONDS: Final = 5.0


def wait_for_budget(denied: Denied, waits: int, luck: float) -> float | None:
    """How long to keep the task and ask again, in seconds, after so many waits. None: let it go, or end it."""
    if denied.reason == Reason.BUDGET_BUSY:
        return _BUSY.wait_seconds(waits + 1, luck) if waits < MOST_BUSY_WAITS else None
    after_seconds = _after_seconds(denied)
    is_short = denied.reason == Reason.TENANT_QUOTA and after_seconds <= PATIENCE_SECONDS
    return after_seconds if is_short and waits < MOST_WAITS else None


def leave_until_budget(denied: Denied) -> Transition:
    """Queued again by the time that there may be room. It counts as no retry."""
    delay_seconds = _after_seconds(denied)
    return Transition(TaskState.RETRY_SCHEDULED, denied.reason, denied.message, retry_delay_seconds=delay_seconds)


def _after_seconds(denied: Denied) -> float:
    return _UNTOLD_SECONDS if denied.retry_after_seconds is None else max(1.0, denied.retry_after_seconds)
