"""What a task does at a cap of its tenant: a short wait keeps its worker, a long one does not. It never ends by it."""

from __future__ import annotations

from typing import Final

from tenure.domain.budget import Denied
from tenure.domain.entries import Transition
from tenure.domain.states import Reason, TaskState

PATIENCE_SECONDS: Final = 30.0
MOST_WAITS: Final = 3
_UNTOLD_SECONDS: Final = 5.0


def wait_at_quota(denied: Denied, waits: int) -> float | None:
    """How long to keep the task and ask again, in seconds, after so many waits. None: let it go."""
    after_seconds = _after_seconds(denied)
    return after_seconds if after_seconds <= PATIENCE_SECONDS and waits < MOST_WAITS else None


def leave_at_quota(denied: Denied) -> Transition:
    """Queued again by the time that there may be room. It counts as no retry."""
    delay_seconds = _after_seconds(denied)
    return Transition(TaskState.RETRY_SCHEDULED, Reason.TENANT_QUOTA, denied.message, retry_delay_seconds=delay_seconds)


def _after_seconds(denied: Denied) -> float:
    return _UNTOLD_SECONDS if denied.retry_after_seconds is None else max(1.0, denied.retry_after_seconds)
