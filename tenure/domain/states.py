"""The states of a task and the one table of moves between them.

Nothing else in the project knows which move is allowed: the ledger, the loops and the tests ask here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from tenure.domain.errors import WrongState


class TaskState(StrEnum):
    """Where a task stands. The values are those of the database."""

    QUEUED = "QUEUED"  # by submit, requeue, a lost or returned claim, a due retry; left by Open or an ending
    RUNNING = "RUNNING"  # by Open; left by the owner's commit, a lost claim or an ending
    WAITING_USER = "WAITING_USER"  # by the owner's commit; left when a person answers
    WAITING_EXTERNAL = "WAITING_EXTERNAL"  # by the owner's commit; left when the event or the last child arrives
    RETRY_SCHEDULED = "RETRY_SCHEDULED"  # by the owner's commit or a timeout; left by the sweep when it is due
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"
    COST_EXCEEDED = "COST_EXCEEDED"


class Reason:
    """Reasons of transitions: what a machine may ask for. A plain namespace, because reasons are an open set."""

    SUBMITTED = "SUBMITTED"
    FORKED = "FORKED"
    OPENED = "OPENED"
    FINAL_ANSWER = "FINAL_ANSWER"
    FUNCTION_RETURNED = "FUNCTION_RETURNED"
    FUNCTION_FAILED = "FUNCTION_FAILED"
    FUNCTION_DIVERGED = "FUNCTION_DIVERGED"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    WORKER_LOST = "WORKER_LOST"
    WORKER_STUCK = "WORKER_STUCK"
    WORKER_DRAINED = "WORKER_DRAINED"
    WORKER_HALTED = "WORKER_HALTED"
    WORKER_CRASHED = "WORKER_CRASHED"
    CLAIM_LOST = "CLAIM_LOST"
    ENDING_OVER = "ENDING_OVER"
    CRASH_LOOP = "CRASH_LOOP"
    RETRY_DUE = "RETRY_DUE"
    CANCEL_REQUESTED = "CANCEL_REQUESTED"
    OPERATOR_REQUEUE = "OPERATOR_REQUEUE"
    OPERATOR_CLOSE_OUT = "OPERATOR_CLOSE_OUT"
    OPERATOR_TRANSFER = "OPERATOR_TRANSFER"
    DEADLINE_PASSED = "DEADLINE_PASSED"
    QUEUED_TOO_LONG = "QUEUED_TOO_LONG"
    START_TIMEOUT = "START_TIMEOUT"
    STEP_TIMEOUT = "STEP_TIMEOUT"
    TOOL_TIMEOUT = "TOOL_TIMEOUT"
    TOKEN_LIMIT = "TOKEN_LIMIT"
    MONEY_LIMIT = "MONEY_LIMIT"
    MODEL_UNPRICED = "MODEL_UNPRICED"
    STEP_LIMIT = "STEP_LIMIT"
    BUDGET_BUSY = "BUDGET_BUSY"
    TENANT_QUOTA = "TENANT_QUOTA"
    BUDGET_WARNING = "BUDGET_WARNING"
    QUOTA_WARNING = "QUOTA_WARNING"
    BUDGET_GRANTED = "BUDGET_GRANTED"
    TOOL_IN_DOUBT = "TOOL_IN_DOUBT"
    CALL_RESOLVED = "CALL_RESOLVED"
    APPROVAL_REQUESTED = "APPROVAL_REQUESTED"
    ANSWER_REQUESTED = "ANSWER_REQUESTED"
    TOOL_NEEDS_APPROVAL = "TOOL_NEEDS_APPROVAL"
    EVENT_AWAITED = "EVENT_AWAITED"
    SUB_AGENTS_AWAITED = "SUB_AGENTS_AWAITED"
    SPAWNED = "SPAWNED"
    PARENT_ENDED = "PARENT_ENDED"
    NOT_AWAITED = "NOT_AWAITED"
    WAIT_RESOLVED = "WAIT_RESOLVED"
    WAIT_EXPIRED = "WAIT_EXPIRED"
    MODEL_RATE_LIMITED = "MODEL_RATE_LIMITED"
    MODEL_UNAVAILABLE = "MODEL_UNAVAILABLE"
    MODEL_TIMEOUT = "MODEL_TIMEOUT"
    MODEL_REJECTED = "MODEL_REJECTED"
    MODEL_REFUSED = "MODEL_REFUSED"
    MODEL_TRUNCATED = "MODEL_TRUNCATED"
    CONTEXT_WINDOW_EXCEEDED = "CONTEXT_WINDOW_EXCEEDED"
    RESULT_INVALID = "RESULT_INVALID"


BUDGET_WAIT_REASONS: Final = frozenset({Reason.TENANT_QUOTA, Reason.BUDGET_BUSY})
"""Why a model call may have to wait through nobody's fault: a task put off for one of these uses up no retry."""


class ReleaseReason(StrEnum):
    """Why a worker gives a claim back. A closed set: each decides what becomes of the task."""

    CLOSED = "CLOSED"  # the task was moved out of RUNNING
    FENCED = "FENCED"  # the task is another owner's
    WORKER_DRAINED = Reason.WORKER_DRAINED
    WORKER_HALTED = Reason.WORKER_HALTED  # a part it needs is out of reach
    WORKER_CRASHED = Reason.WORKER_CRASHED  # a bug


TERMINAL: Final = frozenset(
    {TaskState.SUCCEEDED, TaskState.FAILED, TaskState.TIMED_OUT, TaskState.CANCELLED, TaskState.COST_EXCEEDED}
)
WAITING: Final = frozenset({TaskState.WAITING_USER, TaskState.WAITING_EXTERNAL})

MOVES: Final[dict[TaskState, frozenset[TaskState]]] = {
    TaskState.QUEUED: frozenset(
        {TaskState.RUNNING, TaskState.RETRY_SCHEDULED, TaskState.CANCELLED, TaskState.TIMED_OUT, TaskState.FAILED}
    ),
    TaskState.RUNNING: frozenset(
        {TaskState.QUEUED, TaskState.WAITING_USER, TaskState.WAITING_EXTERNAL, TaskState.RETRY_SCHEDULED} | TERMINAL
    ),
    TaskState.WAITING_USER: frozenset(
        {TaskState.QUEUED, TaskState.RETRY_SCHEDULED, TaskState.TIMED_OUT, TaskState.CANCELLED, TaskState.FAILED}
    ),
    TaskState.WAITING_EXTERNAL: frozenset(
        {TaskState.QUEUED, TaskState.RETRY_SCHEDULED, TaskState.TIMED_OUT, TaskState.CANCELLED, TaskState.FAILED}
    ),
    TaskState.RETRY_SCHEDULED: frozenset(
        {TaskState.QUEUED, TaskState.CANCELLED, TaskState.TIMED_OUT, TaskState.FAILED}
    ),
    # Out of an end leads an operator's requeue alone, and it begins the next attempt: see `check_move`.
    TaskState.SUCCEEDED: frozenset(),
    TaskState.FAILED: frozenset({TaskState.QUEUED}),
    TaskState.TIMED_OUT: frozenset({TaskState.QUEUED}),
    TaskState.CANCELLED: frozenset({TaskState.QUEUED}),
    TaskState.COST_EXCEEDED: frozenset({TaskState.QUEUED}),
}


def is_terminal(state: TaskState) -> bool:
    """Whether the task has ended."""
    return state in TERMINAL


def check_move(current: TaskState, target: TaskState, *, begins_attempt: bool = False) -> None:
    """Raises WrongState{state} when the table does not allow the move.

    An end is left only by what begins the task's next attempt, and nothing else begins one.
    """
    if target not in MOVES[current] or begins_attempt != (current in TERMINAL):
        raise WrongState(f"a {current} task cannot become {target}", metadata={"state": current.value})
