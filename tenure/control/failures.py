"""Defines the failures of control functions, and whether another attempt may succeed."""

from __future__ import annotations

from typing import Final

from tenure.domain.entries import ControlFailure
from tenure.domain.tools import Outcome

MAX_CLASS_CHARACTERS: Final = 200
MAX_MESSAGE_CHARACTERS: Final = 4000


class TryAgain(Exception):  # noqa: N818  reads well in `raise TryAgain("…")`
    """Raise this error for a temporary failure: the task's retry policy schedules the next attempt."""

    retryable = True

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class StepFailed(Exception):  # noqa: N818  reads well in `except StepFailed`
    """A step raised an error.

    If the function does not catch this error, the function fails, and a retry of the task runs the step again. If the
    function catches it, the failure is recorded when the function continues, and stays the result of the step for ever.
    """

    def __init__(self, step: str, failure: ControlFailure) -> None:
        super().__init__(f"step {step}: {failure.error_class}: {failure.message}")
        self.step, self.failure = step, failure


class ToolFailed(Exception):  # noqa: N818  reads well in `except ToolFailed`
    """A tool call failed. The outcome is recorded for ever: another attempt of the task would read the same outcome."""

    retryable = False

    def __init__(self, tool: str, outcome: Outcome) -> None:
        super().__init__(f"{tool}: {outcome.status}: {outcome.content}")
        self.tool, self.outcome = tool, outcome


def failure_of(error: BaseException) -> ControlFailure:
    """Returns the record of an exception, with the decision whether the task may retry.

    A bool attribute `retryable` of the exception decides. Without it, ConnectionError and TimeoutError are retryable;
    any other exception counts as a bug, which a retry does not fix.
    """
    if isinstance(error, StepFailed):
        return error.failure
    declared = getattr(error, "retryable", None)
    retryable = declared if isinstance(declared, bool) else isinstance(error, ConnectionError | TimeoutError)
    after = getattr(error, "retry_after_seconds", None)
    return ControlFailure(
        error_class=_text(type(error).__name__, MAX_CLASS_CHARACTERS),
        message=_text(str(error), MAX_MESSAGE_CHARACTERS),
        retryable=retryable,
        retry_after_seconds=float(after) if isinstance(after, int | float) and 0 <= after < float("inf") else None,
    )


def _text(text: str, most: int) -> str:
    """Returns the first `most` characters as valid UTF-8 text: exception messages may contain lone surrogates."""
    return text[:most].encode("utf-8", "replace").decode()
