"""Defines the failures of model requests, as the ledger has them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from tenure.control.failures import MAX_MESSAGE_CHARACTERS, StepFailed, failure_of_call, storable
from tenure.domain.entries import ControlFailure
from tenure.domain.images import is_about_images
from tenure.domain.retry import FailureClass

_RECORDED: Final = re.compile(r"(?P<name>\w+)(?: (?P<status>[1-5]\d\d))?: (?P<text>.*)", re.DOTALL)


class ModelRequestFailed(Exception):  # noqa: N818  reads well in a ledger entry
    """The model provider failed or refused the request.

    `failure`: the record, whose message names the exception and the HTTP status. `status_code`: the status, or 0.
    """

    def __init__(self, error: Exception, text: str = "") -> None:
        """`text`: what the exception says, if that is not its own text."""
        failed = failure_of_call(error)
        status = f" {failed.status_code}" if failed.status_code else ""
        message = storable(f"{type(error).__name__}{status}: {text or failed.failure.message}", MAX_MESSAGE_CHARACTERS)
        super().__init__(message)
        self.failure, self.status_code = replace(failed.failure, message=message), failed.status_code


def recorded_request(failure: ControlFailure) -> re.Match[str] | None:
    """Returns the name, the status and the text of the exception of a request that failed; None for other failures."""
    return _RECORDED.fullmatch(failure.message) if failure.error_class in FailureClass.__members__ else None


def with_record(failed: StepFailed, error: Exception | None) -> Exception:
    """Returns the exception that a failed model call stands for, with its record; `failed` itself for None."""
    if error is None:
        return failed
    vars(error)["failure"] = failed.failure  # the record decides whether the task is tried again
    error.__cause__ = failed
    return error


class UnfinishedRun(RuntimeError):  # noqa: N818  the name says what happened
    """The run of an agent ended with calls that only its caller could answer, and a task has no such caller."""

    retryable = False


_TOO_LARGE: Final = 413
_MAY_BE_IMAGES: Final = frozenset({400, 404, 415, 422})


def refuses_images(failure: ControlFailure) -> bool:
    """Whether a request that failed so may be made again without its images: a bad image must not end a task."""
    recorded = None if failure.retryable else recorded_request(failure)
    if recorded is None or not recorded["status"]:
        return False
    status = int(recorded["status"])
    return status == _TOO_LARGE or (status in _MAY_BE_IMAGES and is_about_images(failure.message))
