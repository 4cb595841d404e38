"""Defines the states of a task, the reasons of transitions and the one table of allowed transitions, `MOVES`.

No other module decides whether a transition is allowed: the ledger, the loops and the tests use `check_transition`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from tenure.domain.errors import WrongState


class TaskState(StrEnum):
    """The state of a task. The database stores the same values."""

    QUEUED = "QUEUED"  # entered by submit, requeue, a lost or released claim, a due retry; left by Open, or an operator
    RUNNING = "RUNNING"  # entered by Open; left by the owner's commit, a lost claim or an ending
    WAITING_USER = "WAITING_USER"  # entered by the owner's commit or an operator's wait; left when a person answers
    WAITING_EXTERNAL = "WAITING_EXTERNAL"  # entered by the owner's commit; left at the event or the last sub-agent
    RETRY_SCHEDULED = "RETRY_SCHEDULED"  # entered by the owner's commit or a timeout; left by the sweep when it is due
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"
    COST_EXCEEDED = "COST_EXCEEDED"


class Reason:
    """The reason codes of transitions, for programs. A plain namespace and no enum: reasons are an open set."""

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
    POOL_CHANGED = "POOL_CHANGED"
    ENDING_OVER = "ENDING_OVER"
    CRASH_LOOP = "CRASH_LOOP"
    COMMIT_REFUSED = "COMMIT_REFUSED"
    LEDGER_LIMIT = "LEDGER_LIMIT"
    RETRY_DUE = "RETRY_DUE"
    CANCEL_REQUESTED = "CANCEL_REQUESTED"
    OPERATOR_REQUEUE = "OPERATOR_REQUEUE"
    OPERATOR_CLOSE_OUT = "OPERATOR_CLOSE_OUT"
    OPERATOR_TRANSFER = "OPERATOR_TRANSFER"
    OPERATOR_WAIT = "OPERATOR_WAIT"
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
    SUPERSEDED = "SUPERSEDED"
    STOPPED = "STOPPED"
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
    BUDGET_REQUESTED = "BUDGET_REQUESTED"
    SPAWNED = "SPAWNED"
    PARENT_ENDED = "PARENT_ENDED"
    NOT_AWAITED = "NOT_AWAITED"
    WAIT_RESOLVED = "WAIT_RESOLVED"
    WAIT_EXPIRED = "WAIT_EXPIRED"
    WAIT_ESCALATED = "WAIT_ESCALATED"
    CLOSED_BY_ESCALATION = "CLOSED_BY_ESCALATION"
    MODEL_RATE_LIMITED = "MODEL_RATE_LIMITED"
    MODEL_UNAVAILABLE = "MODEL_UNAVAILABLE"
    MODEL_TIMEOUT = "MODEL_TIMEOUT"
    MODEL_ACCOUNT_REFUSED = "MODEL_ACCOUNT_REFUSED"
    MODEL_REJECTED = "MODEL_REJECTED"
    MODEL_REFUSED = "MODEL_REFUSED"
    MODEL_TRUNCATED = "MODEL_TRUNCATED"
    MODEL_ANSWER_UNUSABLE = "MODEL_ANSWER_UNUSABLE"
    MODEL_EMPTY_ANSWER = "MODEL_EMPTY_ANSWER"
    CONTEXT_WINDOW_EXCEEDED = "CONTEXT_WINDOW_EXCEEDED"
    RESULT_INVALID = "RESULT_INVALID"
    NO_PROGRESS = "NO_PROGRESS"
    UNDONE = "UNDONE"
    UNDO_INCOMPLETE = "UNDO_INCOMPLETE"


BUDGET_WAIT_REASONS: Final = frozenset({Reason.TENANT_QUOTA, Reason.BUDGET_BUSY, Reason.STOPPED})
"""Reasons of a wait for budget, or for the end of a stop. Nothing failed, so the wait uses up no retry."""


class ReleaseReason(StrEnum):
    """Why a worker releases a claim. A closed set: each reason decides the task's next state."""

    CLOSED = "CLOSED"  # the task left RUNNING
    FENCED = "FENCED"  # another worker owns the task
    WORKER_DRAINED = Reason.WORKER_DRAINED
    WORKER_HALTED = Reason.WORKER_HALTED  # the worker cannot reach a service that it needs, or the service failed
    WORKER_CRASHED = Reason.WORKER_CRASHED  # a bug in the worker


TERMINAL: Final = frozenset(
    {TaskState.SUCCEEDED, TaskState.FAILED, TaskState.TIMED_OUT, TaskState.CANCELLED, TaskState.COST_EXCEEDED}
)
WITHOUT_SUCCESS: Final = TERMINAL - {TaskState.SUCCEEDED}
WAITING: Final = frozenset({TaskState.WAITING_USER, TaskState.WAITING_EXTERNAL})

MOVES: Final[dict[TaskState, frozenset[TaskState]]] = {
    TaskState.QUEUED: frozenset(
        {TaskState.RUNNING, TaskState.WAITING_USER, TaskState.RETRY_SCHEDULED}
        | {TaskState.SUCCEEDED, TaskState.CANCELLED, TaskState.TIMED_OUT, TaskState.FAILED}
    ),
    TaskState.RUNNING: frozenset(
        {TaskState.QUEUED, TaskState.WAITING_USER, TaskState.WAITING_EXTERNAL, TaskState.RETRY_SCHEDULED} | TERMINAL
    ),
    TaskState.WAITING_USER: frozenset({TaskState.QUEUED, TaskState.RETRY_SCHEDULED} | TERMINAL),
    TaskState.WAITING_EXTERNAL: frozenset(
        {TaskState.QUEUED, TaskState.WAITING_USER, TaskState.RETRY_SCHEDULED}
        | {TaskState.SUCCEEDED, TaskState.TIMED_OUT, TaskState.CANCELLED, TaskState.FAILED}
    ),
    TaskState.RETRY_SCHEDULED: frozenset(
        {TaskState.QUEUED, TaskState.WAITING_USER}
        | {TaskState.SUCCEEDED, TaskState.CANCELLED, TaskState.TIMED_OUT, TaskState.FAILED}
    ),
    # Only an operator's requeue leaves a terminal state, and it begins the next attempt: see `check_transition`.
    TaskState.SUCCEEDED: frozenset(),
    TaskState.FAILED: frozenset({TaskState.QUEUED}),
    TaskState.TIMED_OUT: frozenset({TaskState.QUEUED}),
    TaskState.CANCELLED: frozenset({TaskState.QUEUED}),
    TaskState.COST_EXCEEDED: frozenset({TaskState.QUEUED}),
}


def is_terminal(state: TaskState) -> bool:
    """Returns whether the state is terminal."""
    return state in TERMINAL


def check_transition(current: TaskState, target: TaskState, *, begins_attempt: bool = False) -> None:
    """Raises WrongState (metadata `state`) when `MOVES` does not allow the transition.

    A transition begins the task's next attempt (`begins_attempt`) exactly when it leaves a terminal state.
    """
    if target not in MOVES[current] or begins_attempt != (current in TERMINAL):
        raise WrongState(f"a {current} task cannot become {target}", metadata={"state": current.value})
