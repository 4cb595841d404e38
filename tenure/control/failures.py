"""What goes wrong in control work, and whether another attempt may mend it."""

from __future__ import annotations

from typing import Final

from tenure.domain.entries import ControlFailure
from tenure.domain.tools import Outcome

MOST_CLASS_CHARACTERS: Final = 200
MOST_MESSAGE_CHARACTERS: Final = 4000


class TryAgain(Exception):  # noqa: N818  said to Tenure: read as `raise TryAgain("…")`
    """Raise it for what may go better later: the task is scheduled again by its retry policy."""

    retryable = True

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class StepFailed(Exception):  # noqa: N818  read as `except StepFailed`
    """A step raised. Not caught: the function fails with it, and a retry of the task makes the step again.

    Caught: the failure is recorded when the function goes on, and is what this step came to for ever.
    """

    def __init__(self, step: str, failure: ControlFailure) -> None:
        super().__init__(f"step {step}: {failure.error_class}: {failure.message}")
        self.step, self.failure = step, failure


class ToolFailed(Exception):  # noqa: N818  read as `except ToolFailed`
    """A call of a tool did not succeed. That is its outcome for ever: trying the task again would read the same."""

    retryable = False

    def __init__(self, tool: str, outcome: Outcome) -> None:
        super().__init__(f"{tool}: {outcome.status}: {outcome.content}")
        self.tool, self.outcome = tool, outcome


def failure_of(error: BaseException) -> ControlFailure:
    """How an exception is recorded.

    What says `retryable` itself is believed; connections and timeouts may go better another time; anything else is
    taken for a mistake, which does not go away by itself.
    """
    if isinstance(error, StepFailed):
        return error.failure
    message = getattr(error, "retryable", None)
    retryable = message if isinstance(message, bool) else isinstance(error, ConnectionError | TimeoutError)
    after = getattr(error, "retry_after_seconds", None)
    return ControlFailure(
        error_class=_text(type(error).__name__, MOST_CLASS_CHARACTERS),
        message=_text(str(error), MOST_MESSAGE_CHARACTERS),
        retryable=retryable,
        retry_after_seconds=float(after) if isinstance(after, int | float) and 0 <= after < float("inf") else None,
    )


def _text(text: str, most: int) -> str:
    """As it can be sent: exceptions may speak of broken surrogates."""
    return text[:most].encode("utf-8", "replace").decode()
