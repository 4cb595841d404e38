"""What an exit code means, in one place."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from tenure.cli.formatting import seconds_text
from tenure.domain import errors
from tenure.domain.states import TaskState
from tenure.runtime.rpc_status import PeerFailed
from tenure.v1 import task_pb2
from tenure.wire.common import STATES


class Exit(IntEnum):
    """0 is yes. 1 to 7 are answers a script may want to tell apart."""

    OK = 0
    TASK_FAILED = 1
    USAGE = 2
    REFUSED = 3
    UNAVAILABLE = 4
    NOT_YET = 5
    INTERNAL = 6
    BROKEN_RULE = 7
    INTERRUPTED = 130


HELP: Final = """\b
Exit codes:
  0  yes
  1  the task ended otherwise than SUCCEEDED (wait, watch, submit --watch)
  2  the command line is wrong
  3  refused: not found, wrong state, invalid; the same again changes nothing
  4  nothing answers: try later
  5  not yet: the task has not ended within --timeout, the lease is held by another
  6  a bug over there; its log has the details
  7  a rule was broken (admin verify)
  130  stopped by Ctrl-C"""

_ADVICE: Final = {
    errors.NotFound: "`tenure list` shows the tasks there are",
    errors.LimitReached: "try again in a moment",
    errors.Unavailable: "try again in a moment",
    errors.OutOfRange: "leave --after out to begin with the first entry",
}

_SOON_SECONDS: Final = 10.0

_WITHOUT_ADVICE: Final = frozenset(
    {
        "LEASE_NOT_HELD",
        "LEASE_LOST",
        "NOT_IN_DOUBT",
        "SCHEDULE_NOT_FOUND",
        "TASK_PRUNED",
        "TENANT_NOT_FOUND",
        "TOO_MANY_SCHEDULES",
        "WORKER_NOT_FOUND",
        "WEBHOOK_NOT_FOUND",
        "TOO_MANY_WEBHOOKS",
        "DELIVERY_NOT_FOUND",
        "FILE_NOT_FOUND",
    }
)
"""What is said of leases, schedules, webhooks and workers needs no advice about tasks."""


def exit_of_task(task: task_pb2.Task) -> Exit:
    """0 when the task succeeded."""
    return Exit.OK if STATES.to_domain(task.state) is TaskState.SUCCEEDED else Exit.TASK_FAILED


def exit_of_error(error: Exception) -> Exit:
    """By what the caller can do about it."""
    if isinstance(error, errors.LeaseHeld):
        return Exit.NOT_YET
    if isinstance(error, errors.TryLater):
        return Exit.UNAVAILABLE
    if isinstance(error, errors.TenureError):
        return Exit.REFUSED
    return Exit.INTERNAL if isinstance(error, PeerFailed) else Exit.NOT_YET


def explain(error: Exception, address: str) -> str:
    """One sentence, and what to do."""
    if isinstance(error, errors.InvalidRequest) and error.violations:
        return "; ".join(f"{field} {description}" for field, description in error.violations)
    if isinstance(error, errors.Unavailable) and error.metadata.get("outcome") == "unknown":
        return f"nothing answers at {address}: is the stack running? `tenure dev` starts one, --address names another"
    if isinstance(error, errors.LeaseHeld) and error.retry_after_seconds is not None:
        return f"{error.message}; without a renewal it is free in {error.retry_after_seconds:.0f} s"
    if isinstance(error, errors.LimitReached) and (error.retry_after_seconds or 0.0) > _SOON_SECONDS:
        return f"{error.message}: there may be room in {seconds_text(error.retry_after_seconds or 0.0)}"
    if isinstance(error, errors.TenureError):
        advice = (
            ""
            if error.reason in _WITHOUT_ADVICE
            else next((advice for kind, advice in _ADVICE.items() if isinstance(error, kind)), "")
        )
        return f"{error.message or error.reason}{f': {advice}' if advice else ''}"
    if isinstance(error, PeerFailed):
        return f"the service at {address} failed ({error}); its log says why"
    return str(error)
