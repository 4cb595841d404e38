"""Defines the failures of model requests, and whether another attempt may succeed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tenure.domain.entries import ControlFailure
from tenure.domain.images import is_about_images

_BUSY_STATUS: Final = frozenset({408, 409, 425, 429})


class ModelRequestFailed(Exception):  # noqa: N818  reads well in a ledger entry
    """The model provider failed or refused the request. `retryable`: another attempt may succeed."""

    def __init__(self, message: str, *, retryable: bool, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retryable, self.retry_after_seconds = retryable, retry_after_seconds


class UnfinishedRun(RuntimeError):  # noqa: N818  the name says what happened
    """The run of an agent ended with calls that only its caller could answer, and a task has no such caller."""

    retryable = False


_TOO_LARGE: Final = 413
_REFUSED: Final = re.compile(r"\w+ (?P<status>4\d\d): .*", re.DOTALL)
_MAY_BE_IMAGES: Final = frozenset({400, 404, 415, 422})


def refuses_images(failure: ControlFailure) -> bool:
    """Whether a request that failed so may be made again without its images: a bad image must not end a task."""
    is_refusal = failure.error_class == ModelRequestFailed.__name__ and not failure.retryable
    recorded = _REFUSED.fullmatch(failure.message) if is_refusal else None
    if recorded is None:
        return False
    status = int(recorded["status"])
    return status == _TOO_LARGE or (status in _MAY_BE_IMAGES and is_about_images(failure.message))


def is_temporary(status_code: int) -> bool:
    """Whether another request may succeed after this HTTP status."""
    return status_code in _BUSY_STATUS or status_code >= 500


def retry_after_of(headers: Mapping[str, str]) -> float | None:
    """Returns the seconds that the provider asks to wait; None if it names none, or a date."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return float(headers[name]) * scale
        except (KeyError, ValueError):
            continue
    return None
