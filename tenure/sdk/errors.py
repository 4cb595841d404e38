"""The errors of the client: those of the API (tenure/domain/errors.py), the endings of a task, and what to do.

    TenureError
    ├── Refused                 the request is wrong: sending it again changes nothing
    │   ├── InvalidRequest      an argument breaks its constraint: `field`, `violations`
    │   ├── NotFound            no such task, or it belongs to another tenant
    │   ├── AlreadyExists       the request_id or the source is in use
    │   ├── WrongState          not possible in this state: the task has ended, the wait is over
    │   ├── BudgetExhausted     the granted amounts are too small
    │   ├── OutOfRange          a position that does not exist (any more)
    │   ├── Unauthenticated     no valid key
    │   └── PermissionDenied    the key does not allow this
    ├── TryLater                the same request may succeed later: `retry_after_seconds`
    │   ├── Unavailable         no gateway answers, or a service is down
    │   └── LimitReached        a rate limit or a quota is reached
    ├── TaskEnded               `result()` of a task that did not succeed: `task`, `state`, `reason`
    │   ├── TaskFailed          FAILED
    │   ├── TaskCancelled       CANCELLED
    │   ├── TaskTimedOut        TIMED_OUT
    │   └── BudgetExceeded      COST_EXCEEDED: a cap in tokens, money or steps
    ├── ResultMismatch          the result does not fit the Python type that was asked for
    └── ServerFailed            a bug or another version of the gateway; its log has the details

Each error has `message` (what happened and why), `hint` (what to do), `reason` (UPPER_SNAKE, for programs) and
`metadata`. A wait that takes too long raises Python's TimeoutError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tenure.domain.errors import (
    AlreadyExists,
    BudgetExhausted,
    FieldViolation,
    InvalidRequest,
    LimitReached,
    NotFound,
    OutOfRange,
    PermissionDenied,
    TenureError,
    Unauthenticated,
    Unavailable,
    WrongState,
)
from tenure.domain.states import Reason, TaskState
from tenure.runtime.rpc.status import PeerFailed

if TYPE_CHECKING:
    from tenure.sdk.task_info import TaskInfo


class TaskEnded(TenureError):  # noqa: N818  named after the end, so that `except TaskEnded` reads well
    """The task ended without success. `task`: how it ended, with its partial `result`."""

    default_reason = "TASK_ENDED"
    task: TaskInfo

    @property
    def state(self) -> TaskState:
        """The terminal state."""
        return self.task.state

    @property
    def details(self) -> str:
        """The message of the task for people; may be empty."""
        return self.task.message


class TaskFailed(TaskEnded):
    """The task ended as FAILED: it cannot continue."""


class TaskCancelled(TaskEnded):
    """The task ended as CANCELLED: its cancel was requested."""


class TaskTimedOut(TaskEnded):
    """The task ended as TIMED_OUT: a time limit passed."""


class BudgetExceeded(TaskEnded):
    """The task ended as COST_EXCEEDED: a cap in tokens (TOKEN_LIMIT), money (MONEY_LIMIT) or steps (STEP_LIMIT)."""


class ResultMismatch(TenureError):  # noqa: N818  as the others
    """The result does not fit the Python type. `__cause__` is the error of the type, for example pydantic's."""

    default_reason = "RESULT_MISMATCH"


class ServerFailed(TenureError):  # noqa: N818  as the others
    """The gateway has a bug, or another version than this client."""

    default_reason = "INTERNAL"


_ENDINGS: Final[dict[TaskState, type[TaskEnded]]] = {
    TaskState.FAILED: TaskFailed,
    TaskState.CANCELLED: TaskCancelled,
    TaskState.TIMED_OUT: TaskTimedOut,
    TaskState.COST_EXCEEDED: BudgetExceeded,
}
_ENDING_HINTS: Final = {
    Reason.MODEL_REJECTED: "check the name of the model",
    Reason.MODEL_UNPRICED: "submit it with no_max_cost or allow_unpriced, or give the ledger a price of the model",
    Reason.RESULT_INVALID: "make the schema of the result simpler, or allow more corrections (TaskPolicy)",
    Reason.UNDO_INCOMPLETE: "its result says what failed; undo the same task again: client.undo",
    Reason.NO_PROGRESS: "remove what makes its call fail, then continue it: tenure admin requeue",
    Reason.TOKEN_LIMIT: "submit it with a higher max_tokens, or continue it: tenure admin grant-budget",
    Reason.MONEY_LIMIT: "submit it with a higher max_cost, or continue it: tenure admin grant-budget",
    Reason.STEP_LIMIT: "submit it with a higher max_steps, or continue it: tenure admin requeue --extra-steps",
    Reason.CANCEL_REQUESTED: "submit it again, or requeue it: tenure admin requeue",
}


def ending_error(task: TaskInfo) -> TaskEnded:
    """Returns the error for a task that ended without success."""
    kind = _ENDINGS[task.state]
    why = f" ({task.reason})" if task.reason else ""
    error = kind(
        f"task {task.task_id} ended as {task.state}{why}{f': {task.message}' if task.message else ''}",
        reason=task.reason or None,
        metadata={"task_id": task.task_id, "state": task.state.value},
    )
    error.task = task
    error.hint = _ENDING_HINTS.get(task.reason, f"`tenure explain {task.task_id}` says what would change that")
    return error


# What to do about an error of the API: by its reason, else by its class.

STACK_OF_ANOTHER_FOLDER: Final = "STACK_OF_ANOTHER_FOLDER"
_HINTS_BY_REASON: Final = {
    "REQUEST_ID_REUSED": "use a new request_id for another request",
    "SOURCE_BUSY": "send a message to the live task, whose id is in metadata['task_id'], or submit with at_most",
    "SOURCE_RUN_REUSED": "use another run_id of the source, or read the task in metadata['task_id']",
    "WAIT_OVER": "read the present wait with task.refresh(), and answer task.current_wait",
    "OTHER_CALL": "read the present wait with task.refresh(), and answer task.current_wait",
    "NOT_AN_APPROVER": "wait.approvers says who may answer; an administrator changes groups with `tenure approvers`",
    "CURSOR_EXPIRED": "begin again: events without `after`; for changes, list the tasks and watch from now",
    "OTHER_TENANT": "omit `tenant`: the key decides it",
    "FILE_NOT_FOUND": "task.files() lists the files",
    "TASK_PRUNED": "the retention time of the task is over; its bills remain",
    "API_KEY_UNREADABLE": "correct the file of TENURE_API_KEY_FILE, or the function api_key=…",
    "MESSAGE_TOO_LARGE": "send less in one request",
    STACK_OF_ANOTHER_FOLDER: "run it in the folder of its `tenure dev`, or name the stack by its address",
}
_HINTS: Final[dict[type[TenureError], str]] = {
    NotFound: "check the id and the tenant; client.tasks() lists the tenant's tasks",
    AlreadyExists: "read the task in metadata['task_id']",
    WrongState: "read the task's state with task.refresh()",
    BudgetExhausted: "grant more: wait.budget_need says how much the next model call needs",
    OutOfRange: "begin again without a position",
    Unauthenticated: "give api_key=…, or set TENURE_API_KEY; an operator creates a key: tenure keys api create",
    PermissionDenied: "use a key that has this permission: tenure keys api create --permission",
    Unavailable: "try again in a moment",
    LimitReached: "try again later",
}


@contextmanager
def api_errors(address: str, argument_of: Callable[[str], str] = str) -> Iterator[None]:
    """Gives the errors of the block their hints, and makes ServerFailed of a failure of the gateway.

    `argument_of`: returns what the caller typed for a field of the contract, so that a violation names it.
    """
    try:
        with named_arguments(argument_of), whole_texts({}):
            yield
    except TenureError as error:
        error.hint = error.hint or _hint_of(error, address)
        raise
    except PeerFailed as failure:
        failed = ServerFailed(f"the gateway at {address} failed: {failure}")
        failed.hint = "its log has the details; compare the versions of client and gateway"
        raise failed from failure


@contextmanager
def whole_texts(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Raises InvalidRequest for half of a surrogate pair, or another type, in a text of the message that it makes.

    `arguments`: those of the public method in which it may be, so that the error names one.
    """
    try:
        yield
    except TypeError:
        for name, value in arguments.items():
            others = [] if value is None else [each for each in _texts(value) if not isinstance(each, str)]
            if others:
                raise invalid_argument(name, f"must be text, not {others[0]!r}") from None
        raise
    except UnicodeEncodeError as error:
        text, half = error.object, f"U+{ord(error.object[error.start]):04X} at position {error.start}"
        argument = next((name for name, value in arguments.items() if text in _texts(value)), "")
        description = f"must be whole characters, and has half of a surrogate pair ({half})"
        if argument:
            raise invalid_argument(argument, description) from None
        raise InvalidRequest(f"a text of the request {description}") from None


def _texts(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [*value, *value.values()]
    return list(value) if isinstance(value, list | tuple) else [value]


def _hint_of(error: TenureError, address: str) -> str:
    if isinstance(error, InvalidRequest):
        return f"change {error.field}" if error.field else "change the request"
    if address and isinstance(error, Unavailable) and error.metadata.get("outcome") == "unknown":
        return f"no gateway answers at {address}: start it (`tenure dev`), or give another address"
    if isinstance(error, LimitReached) and error.retry_after_seconds:
        return f"try again in {error.retry_after_seconds:.0f} s"
    by_class = next((hint for kind, hint in _HINTS.items() if isinstance(error, kind)), "")
    return _HINTS_BY_REASON.get(error.reason, by_class)


@contextmanager
def named_arguments(argument_of: Callable[[str], str]) -> Iterator[None]:
    """Replaces the contract's fields in the violations of the block by what the caller typed."""
    try:
        yield
    except InvalidRequest as error:
        sentence = "; ".join(f"{field}: {description}" for field, description in error.violations)
        error.violations = tuple(FieldViolation(argument_of(field), text) for field, text in error.violations)
        if error.violations and error.message == sentence:
            error.message = "; ".join(f"{field}: {description}" for field, description in error.violations)
        raise


def invalid_argument(argument: str, description: str, hint: str = "") -> InvalidRequest:
    """Returns the error for an argument that the client itself refuses."""
    error = InvalidRequest(violations=[(argument, description)])
    error.hint = hint or f"change {argument}"
    return error
