"""Defines the failures of control functions, and whether another attempt may succeed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tenure.domain.control import MAX_RETRY_SECONDS
from tenure.domain.entries import ControlFailure
from tenure.domain.retry import RETRYABLE, FailureClass, class_of_status
from tenure.domain.tools import Outcome

MAX_CLASS_CHARACTERS: Final = 200
MAX_CALL_CLASS_CHARACTERS: Final = 64
"""The class of a failed model call also becomes part of a transition."""

MAX_MESSAGE_CHARACTERS: Final = 4000
FIRST_ERROR_STATUS: Final = 400
LAST_STATUS: Final = 599


class TryAgain(Exception):  # noqa: N818  reads well in `raise TryAgain("…")`
    """Raise this error for a temporary failure: the task's retry policy schedules the next attempt."""

    retryable = True

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class StepFailed(Exception):  # noqa: N818  reads well in `except StepFailed`
    """A step or a model call raised an error.

    If the function does not catch this error, the function fails, and a retry of the task runs the step again. If the
    function catches it, the failure is recorded when the function continues, and stays the result of the step for ever.
    """

    def __init__(self, step: str, failure: ControlFailure) -> None:
        super().__init__(f"step {step}: {failure.error_class}: {failure.message}")
        self.step, self.failure = step, failure


class ResultLost(Exception):  # noqa: N818  reads well in `except ResultLost`
    """A recorded result that is too large for the ledger is not in the workspace any more, or is another one now.

    The agent's programs can change the files of the workspace, and a fork without files has none. The step does not run
    again: its effects have happened.
    """

    retryable = False

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"the result in the workspace's file {path} is lost: {why}")
        self.path = path


class ToolFailed(Exception):  # noqa: N818  reads well in `except ToolFailed`
    """A tool call failed. The outcome is recorded for ever: another attempt of the task would read the same outcome."""

    retryable = False

    def __init__(self, tool: str, outcome: Outcome) -> None:
        super().__init__(f"{tool}: {outcome.status}: {outcome.text}")
        self.tool, self.outcome = tool, outcome


class NotReplayable(RuntimeError):  # noqa: N818  the name says what is wrong
    """The function does something that a later execution could not repeat, or that would not be recorded or billed.

    It fails the task, also if code between catches it: no answer of a model and no retry can help.
    """

    retryable = False


NOT_REPLAYABLE: Final = "NOT_REPLAYABLE"
"""The detail of the outcome of a call whose own tool raised NotReplayable."""


def failure_of(error: BaseException) -> ControlFailure:
    """Returns the record of an exception, with the decision whether the task may retry.

    A bool attribute `retryable` of the exception decides. Without it, ConnectionError and TimeoutError are retryable,
    and a group with such an exception; any other exception counts as a bug, which a retry does not fix. An exception
    that stands for a recorded failure, such as StepFailed, has it as `failure`.
    """
    recorded = getattr(error, "failure", None)
    if isinstance(recorded, ControlFailure):
        return recorded
    declared = getattr(error, "retryable", None)
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    retryable = isinstance(error, ConnectionError | TimeoutError) or any(failure_of(each).retryable for each in members)
    if isinstance(declared, bool):
        retryable = declared
    after = getattr(error, "retry_after_seconds", None)
    return ControlFailure(
        error_class=_text(type(error).__name__, MAX_CLASS_CHARACTERS),
        message=_text(text_of(error), MAX_MESSAGE_CHARACTERS),
        retryable=retryable,
        retry_after_seconds=_retry_after_seconds(after),
    )


def text_of(error: BaseException) -> str:
    """Returns the text of an exception. One without a text that can be read is recorded all the same."""
    try:
        return str(error)
    except Exception as problem:  # noqa: BLE001  the class of the exception is the user's, too
        return f"(its text cannot be read: {type(problem).__name__})"


def _retry_after_seconds(after: object) -> float | None:
    """Returns the wait that an exception asks for, at most the longest one: no message carries any number."""
    if not isinstance(after, int | float) or not 0 <= after < float("inf"):
        return None
    return float(min(after, MAX_RETRY_SECONDS))


@dataclass(frozen=True, slots=True)
class CallFailure:
    """A failure of a model call. `status_code`: the provider's HTTP status, or 0."""

    failure: ControlFailure
    status_code: int = 0


def failure_of_call(error: BaseException) -> CallFailure:
    """Returns the record of an exception of a model call.

    Errors of providers' libraries have an HTTP status in `status_code`, which gives the class. It also decides whether
    a retry may help, unless the exception says so itself in `retryable`.
    """
    failure = failure_of(error)
    status = getattr(error, "status_code", None)
    if not isinstance(status, int) or not FIRST_ERROR_STATUS <= status <= LAST_STATUS:
        return CallFailure(
            replace(failure, error_class=_class_of(error) or failure.error_class[:MAX_CALL_CLASS_CHARACTERS])
        )
    error_class = class_of_status(status)
    is_declared = isinstance(getattr(error, "retryable", None), bool)
    retryable = failure.retryable if is_declared else error_class in RETRYABLE
    return CallFailure(replace(failure, error_class=error_class.value, retryable=retryable), status)


def _class_of(error: BaseException) -> str:
    match error:
        case TimeoutError():
            return FailureClass.TIMEOUT.value
        case ConnectionError():
            return FailureClass.CONNECTION.value
        case _:
            return ""


def _text(text: str, most: int) -> str:
    """Returns the first `most` characters as valid UTF-8 text: exception messages may contain lone surrogates."""
    return text[:most].encode("utf-8", "replace").decode()
