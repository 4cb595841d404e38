"""Decides how a task waits for budget: at a cap of its tenant, or beside other calls in flight.

A short wait keeps its worker. A long wait does not, because a claim without progress counts as stuck. A budget wait
never ends the task.
"""

from __future__ import annotations

from typing import Final

from tenure.domain.budget import Denied
from tenure.domain.entries import Transition
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import Reason, TaskState

PATIENCE_SECONDS: Final = 30.0
MAX_WAITS: Final = 3
"""The number of waits at a cap of the tenant, each of at most PATIENCE_SECONDS."""
MAX_BUSY_WAITS: Final = 12
"""The number of waits beside other calls in flight: 41 s together."""
_BUSY: Final = RetryPolicy(initial_seconds=0.2, factor=2.0, cap_seconds=5.0)
_DEFAULT_SECONDS: Final = 5.0


def wait_for_budget(denied: Denied, waits: int, random_fraction: float) -> float | None:
    """Returns the seconds to keep the task before the next try, after `waits` waits. None: release or end the task."""
    if denied.reason == Reason.BUDGET_BUSY:
        return _BUSY.wait_seconds(waits + 1, random_fraction) if waits < MAX_BUSY_WAITS else None
    after_seconds = _after_seconds(denied)
    is_short = denied.reason == Reason.TENANT_QUOTA and after_seconds <= PATIENCE_SECONDS
    return after_seconds if is_short and waits < MAX_WAITS else None


def queue_until_budget(denied: Denied) -> Transition:
    """Returns the transition that queues the task again when budget may be free. It does not count as a retry."""
    delay_seconds = _after_seconds(denied)
    return Transition(TaskState.RETRY_SCHEDULED, denied.reason, denied.message, retry_delay_seconds=delay_seconds)


def _after_seconds(denied: Denied) -> float:
    return _DEFAULT_SECONDS if denied.retry_after_seconds is None else max(1.0, denied.retry_after_seconds)
