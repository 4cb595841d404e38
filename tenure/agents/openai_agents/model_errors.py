"""Failures of model requests as the ledger has them, and as the exceptions of the package `openai` again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx2
import openai

from tenure.agents.failures import ModelRequestFailed, is_temporary, retry_after_of
from tenure.control.failures import StepFailed
from tenure.domain.entries import ControlFailure
from tenure.domain.retry import FailureClass

_RECORDED: Final = re.compile(r"(?P<name>\w+)(?: (?P<status>[1-5]\d\d))?: (?P<text>.*)", re.DOTALL)
_REQUEST: Final = httpx2.Request("POST", "https://openai.invalid/")
"""Of an exception that is made again from the ledger, which has no addresses of providers."""


@contextmanager
def recorded_failures() -> Iterator[None]:
    """Raises each failure of the provider as ModelRequestFailed, which states whether another attempt may succeed."""
    try:
        yield
    except openai.APIStatusError as error:
        raise ModelRequestFailed(
            f"{type(error).__name__} {error.status_code}: {error}",
            retryable=is_temporary(error.status_code),
            retry_after_seconds=retry_after_of(error.response.headers),
        ) from error
    except openai.APIError as error:  # the connection, or an error within a stream
        raise ModelRequestFailed(f"{type(error).__name__}: {error}", retryable=True) from error
    except httpx2.TransportError as error:
        raise ModelRequestFailed(f"APIConnectionError: {type(error).__name__}: {error}", retryable=True) from error


def exception_of(failed: StepFailed) -> Exception:
    """Returns the exception of `openai` that a failed model call stands for; `failed` itself for any other."""
    error = _exception(failed.failure)
    if error is None:
        return failed
    vars(error)["failure"] = failed.failure  # the record decides whether the task is tried again
    error.__cause__ = failed
    return error


def _exception(failure: ControlFailure) -> Exception | None:
    if failure.error_class == FailureClass.TIMEOUT.value:
        return openai.APITimeoutError(request=_REQUEST)
    if failure.error_class == FailureClass.CONNECTION.value:
        return openai.APIConnectionError(message=failure.message, request=_REQUEST)
    recorded = _RECORDED.fullmatch(failure.message if failure.error_class == ModelRequestFailed.__name__ else "")
    kind: Any = None if recorded is None else getattr(openai, recorded["name"], None)
    if recorded is None or not isinstance(kind, type) or not issubclass(kind, openai.APIError):
        return None
    if issubclass(kind, openai.APIStatusError):
        response = httpx2.Response(int(recorded["status"] or 500), request=_REQUEST)
        return kind(recorded["text"], response=response, body=None)
    if issubclass(kind, openai.APITimeoutError):
        return kind(request=_REQUEST)
    if issubclass(kind, openai.APIConnectionError):
        return kind(message=recorded["text"], request=_REQUEST)
    return openai.APIError(recorded["text"], request=_REQUEST, body=None)
