"""Defines the failures of control functions, and whether another attempt may succeed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tenure.control.error_classes import class_of, retry_after_of, status_of
from tenure.domain.control import MAX_RETRY_SECONDS
from tenure.domain.entries import ControlFailure
from tenure.domain.retry import ACCOUNT_FAULTS, PROVIDER_AWAY, RETRYABLE, UNUSABLE, FailureClass
from tenure.domain.tools import Outcome

MAX_CLASS_CHARACTERS: Final = 200
MAX_CALL_CLASS_CHARACTERS: Final = 64
"""The class of a failed model call also becomes part of a transition."""

MAX_MESSAGE_CHARACTERS: Final = 4000
MAX_CAUSES: Final = 8


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


class ModelCallLate(TimeoutError):  # noqa: N818  an outcome, like the others here
    """An attempt of a model call exceeded the task's timeout for it (`model_call`)."""


class ModelCallInterrupted(Exception):  # noqa: N818  an outcome, like the others here
    """A message of a user interrupted an attempt of a model call."""


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

    A bool attribute `retryable` of the exception decides. Without it, connection errors, timeouts and HTTP statuses
    such as 503 are retryable, those of HTTP libraries, too, and a group with such an exception; any other exception
    counts as a bug, which a retry does not fix. An exception that stands for a recorded failure, such as StepFailed,
    has it as `failure`; a group of those whose providers are away has their class.
    """
    recorded = getattr(error, "failure", None)
    if isinstance(recorded, ControlFailure):
        return recorded
    members = [failure_of(each) for each in error.exceptions] if isinstance(error, BaseExceptionGroup) else []
    if members:
        return _of_group(error, members)
    error_class = class_of(error)
    return _recorded(error, None if error_class in UNUSABLE else error_class)  # of a step: a mistake of the program


def _recorded(error: BaseException, error_class: FailureClass | None) -> ControlFailure:
    declared = getattr(error, "retryable", None)
    return ControlFailure(
        error_class=storable(type(error).__name__, MAX_CLASS_CHARACTERS),
        message=storable(text_of(error), MAX_MESSAGE_CHARACTERS),
        retryable=declared if isinstance(declared, bool) else error_class in RETRYABLE,
        retry_after_seconds=_retry_after_seconds(retry_after_of(error)),
    )


def _of_group(error: BaseException, members: Sequence[ControlFailure]) -> ControlFailure:
    """Returns the failure of a group. An outage among its members passes by itself, a refused account does not."""
    failure, texts = _recorded(error, None), "; ".join(f"{each.error_class}: {each.message}" for each in members)
    failure = replace(failure, message=storable(f"{failure.message}: {texts}", MAX_MESSAGE_CHARACTERS))
    if isinstance(getattr(error, "retryable", None), bool):
        return failure
    failure = replace(failure, retryable=any(each.retryable for each in members))
    if any(each.error_class not in PROVIDER_AWAY for each in members):
        return failure
    first = min(members, key=lambda each: (each.error_class in ACCOUNT_FAULTS, each.retry_after_seconds or 0.0))
    return replace(failure, error_class=first.error_class, retry_after_seconds=first.retry_after_seconds)


def text_of(error: BaseException) -> str:
    """Returns the text of an exception. One without a text that can be read is recorded all the same."""
    try:
        return str(error)
    except Exception as problem:  # noqa: BLE001  the class of the exception is the user's, too
        return f"(its text cannot be read: {type(problem).__name__})"


def _retry_after_seconds(after: float | None) -> float | None:
    """Returns the wait that an exception asks for, at most the longest one: no message carries any number."""
    if after is None or not 0 <= after < float("inf"):
        return None
    return float(min(after, MAX_RETRY_SECONDS))


@dataclass(frozen=True, slots=True)
class CallFailure:
    """A failure of a model call. `status_code`: the provider's HTTP status, or 0."""

    failure: ControlFailure
    status_code: int = 0


def failure_of_call(error: BaseException) -> CallFailure:
    """Returns the record of an exception of a model call: its class is that of the failure, if it has one.

    Every decision about the call and its task reads this class, whichever library raised the exception.
    """
    if isinstance(error, BaseExceptionGroup):
        failure = _of_group(error, [failure_of_call(each).failure for each in error.exceptions])
    elif isinstance(recorded := getattr(error, "failure", None), ControlFailure):
        failure = recorded
    else:
        error_class = class_of(error)
        failure = _recorded(error, error_class)
        if error_class is not None:
            failure = replace(failure, error_class=error_class.value, message=_with_cause(error, failure.message))
    return CallFailure(replace(failure, error_class=failure.error_class[:MAX_CALL_CLASS_CHARACTERS]), status_of(error))


def _with_cause(error: BaseException, message: str) -> str:
    """Returns the message with that of the first cause: "Connection error." says too little."""
    first = error
    for _ in range(0 if status_of(error) else MAX_CAUSES):
        first = first.__cause__ or first
    cause = text_of(first)
    return storable(message if cause in message else f"{message}: {cause}", MAX_MESSAGE_CHARACTERS)


def storable(text: str, most: int) -> str:
    """Returns the first `most` characters as valid UTF-8 text: exception messages may contain lone surrogates."""
    return text[:most].encode("utf-8", "replace").decode()
