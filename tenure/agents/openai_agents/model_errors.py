"""Failures of model requests as the ledger has them, and as the exceptions of the package `openai` again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx2
import openai

from tenure.agents.failures import ModelRequestFailed, recorded_request, with_record
from tenure.control.failures import StepFailed
from tenure.domain.entries import ControlFailure
from tenure.domain.retry import FailureClass

REQUEST: Final = httpx2.Request("POST", "https://openai.invalid/")
"""Of an exception that is made again from the ledger, which has no addresses of providers."""


@contextmanager
def recorded_failures() -> Iterator[None]:
    """Raises each failure of the provider as ModelRequestFailed, which has the record."""
    try:
        yield
    except (openai.APIError, json.JSONDecodeError) as error:
        raise ModelRequestFailed(error) from error
    except httpx2.TransportError as error:
        raise ModelRequestFailed(as_openai(error)) from error


def as_openai(error: httpx2.TransportError) -> openai.APIConnectionError:
    """Returns the exception of `openai` for one of a stream's connection, which the package lets through."""
    if isinstance(error, httpx2.TimeoutException):
        return openai.APITimeoutError(request=REQUEST)
    return openai.APIConnectionError(message=f"{type(error).__name__}: {error}", request=REQUEST)


def exception_of(failed: StepFailed) -> Exception:
    """Returns the exception of `openai` that a failed model call stands for; `failed` itself for any other."""
    return with_record(failed, _exception(failed.failure))


def _exception(failure: ControlFailure) -> Exception | None:
    recorded = recorded_request(failure)
    kind: Any = None if recorded is None else getattr(openai, recorded["name"], None)
    if recorded is None or not isinstance(kind, type) or not issubclass(kind, openai.APIError):
        if failure.error_class in {FailureClass.TIMEOUT, FailureClass.SILENT}:
            return openai.APITimeoutError(request=REQUEST)
        is_connection = failure.error_class == FailureClass.CONNECTION
        return openai.APIConnectionError(message=failure.message, request=REQUEST) if is_connection else None
    if issubclass(kind, openai.APIStatusError):
        response = httpx2.Response(int(recorded["status"] or 500), request=REQUEST)
        return kind(recorded["text"], response=response, body=None)
    if issubclass(kind, openai.APITimeoutError):
        return kind(request=REQUEST)
    if issubclass(kind, openai.APIConnectionError):
        return kind(message=recorded["text"], request=REQUEST)
    return openai.APIError(recorded["text"], request=REQUEST, body=None)
