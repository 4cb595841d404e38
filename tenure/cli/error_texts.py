"""The message that `tenure` prints for each error, and the exit code."""

from __future__ import annotations

from typing import Final

from tenure.cli.exit_codes import Exit
from tenure.cli.formatting import seconds_text
from tenure.domain import errors
from tenure.domain.states import TaskState
from tenure.runtime.rpc.status import PeerFailed
from tenure.server_packages import MissingExtra
from tenure.v1 import task_pb2
from tenure.wire.common import STATES

_ADVICE: Final = {
    errors.NotFound: "`tenure list` shows the tasks",
    errors.LimitReached: "try again in a moment",
    errors.Unavailable: "try again in a moment",
    errors.OutOfRange: "omit --after to begin with the first entry",
}

_KEY_ADVICE: Final = {
    "NO_API_KEY": "this gateway needs an API key or a token: name its file with --api-key-file or TENURE_API_KEY_FILE;"
    " an operator creates keys: tenure keys api create",
    "API_KEY_INVALID": "the gateway does not accept the key of --api-key-file or TENURE_API_KEY: it is malformed,"
    " unknown, revoked or expired; an operator creates another one: tenure keys api create",
    "TOKEN_EXPIRED": "your token has expired: get a new one from your identity provider, and write it into the file of"
    " --api-key-file",
}
"""Messages by reason, where that of the gateway speaks to programs."""

_SOON_SECONDS: Final = 10.0

_WITHOUT_ADVICE: Final = frozenset(
    {
        "API_KEY_NOT_FOUND",
        "LEASE_NOT_HELD",
        "LEASE_LOST",
        "NOT_IN_DOUBT",
        "NO_HELD_TOOL",
        "NO_SUCH_SOURCE",
        "NO_SUCH_TOOL",
        "SCHEDULE_NOT_FOUND",
        "STORAGE_FULL",
        "TASK_PRUNED",
        "TENANT_NOT_FOUND",
        "TOO_MANY_SCHEDULES",
        "WORKER_NOT_FOUND",
        "WEBHOOK_NOT_FOUND",
        "TOO_MANY_API_KEYS",
        "TOO_MANY_WEBHOOKS",
        "DELIVERY_NOT_FOUND",
        "FILE_NOT_FOUND",
    }
)
"""Reasons of errors that `_ADVICE` does not fit: they are not about a live task, or do not pass by themselves."""


def exit_of_task(task: task_pb2.Task) -> Exit:
    """Returns OK if the task SUCCEEDED, else TASK_FAILED."""
    return Exit.OK if STATES.to_domain(task.state) is TaskState.SUCCEEDED else Exit.TASK_FAILED


def exit_of_error(error: Exception) -> Exit | None:
    """Returns the exit code of an error, by what the caller can do about the error; None: the error is a bug."""
    if isinstance(error, errors.LeaseHeld):
        return Exit.NOT_YET
    if isinstance(error, errors.TryLater):
        return Exit.UNAVAILABLE
    if isinstance(error, errors.TenureError | MissingExtra):
        return Exit.REFUSED
    if isinstance(error, PeerFailed):
        return Exit.INTERNAL
    return Exit.NOT_YET if isinstance(error, TimeoutError) else None


def lost_text(address: str) -> str:
    """Returns what a command that reads a stream says when the gateway does not answer."""
    return f"no gateway answers at {address}; trying again for a minute"


def explain(error: Exception, address: str) -> str:
    """Returns the message of an error: what happened, and what the user can do."""
    if isinstance(error, errors.InvalidRequest) and error.violations:
        return "; ".join(f"{field}: {description}" for field, description in error.violations)
    if isinstance(error, errors.Unavailable) and error.metadata.get("outcome") == "unknown":
        return f"no gateway answers at {address}: start it, for example with `tenure dev`, or use another --address"
    if isinstance(error, errors.LeaseHeld) and error.retry_after_seconds is not None:
        return f"{error.message}; without a renewal the lease ends in {error.retry_after_seconds:.0f} s"
    if isinstance(error, errors.LimitReached) and (error.retry_after_seconds or 0.0) > _SOON_SECONDS:
        return f"{error.message}: try again in {seconds_text(error.retry_after_seconds or 0.0)}"
    if isinstance(error, errors.Unauthenticated) and error.reason in _KEY_ADVICE:
        return _KEY_ADVICE[error.reason]
    if isinstance(error, errors.TenureError):
        advice = (
            ""
            if error.reason in _WITHOUT_ADVICE
            else next((advice for kind, advice in _ADVICE.items() if isinstance(error, kind)), "")
        )
        return f"{error.message or error.reason}{f': {advice}' if advice else ''}"
    if isinstance(error, PeerFailed):
        return f"the service at {address} failed ({error}); its log has the details"
    return str(error)
