"""Failures of model requests as the ledger has them, and as Pydantic AI's own exceptions again.

Fallbacks, hooks and users' code decide by the exception, in the first execution and in each later one. So all get it
from the record, whose message names the exception and the HTTP status.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pydantic_ai import exceptions
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    ModelRequestTimeout,
    ModelTimeoutError,
    UnexpectedModelBehavior,
    UserError,
)

from tenure.agents.failures import ModelRequestFailed, recorded_request, with_record
from tenure.control.failures import StepFailed
from tenure.domain.entries import ControlFailure
from tenure.domain.retry import FailureClass

_OWN: Final[dict[str, type[ModelConnectionError]]] = {
    FailureClass.TIMEOUT: ModelTimeoutError,
    FailureClass.SILENT: ModelTimeoutError,
    FailureClass.CONNECTION: ModelConnectionError,
}
"""The exceptions for failures that are none of Pydantic AI."""
_PLAIN: Final = {each.__name__: each for each in (ContentFilterError, UnexpectedModelBehavior, UserError)}


@contextmanager
def recorded_failures() -> Iterator[None]:
    """Raises each failure of the provider as ModelRequestFailed, which has the record."""
    try:
        yield
    except ModelHTTPError as error:
        raise ModelRequestFailed(error, error.body if isinstance(error.body, str) else "") from error
    except ModelAPIError as error:
        raise ModelRequestFailed(error) from error


def exception_of(failed: StepFailed, model: str) -> Exception:
    """Returns the exception of Pydantic AI that a failed model call stands for; `failed` itself for any other."""
    return with_record(failed, _exception(failed.failure, model))


def _exception(failure: ControlFailure, model: str) -> Exception | None:
    if failure.error_class in _PLAIN:
        return _PLAIN[failure.error_class](failure.message)
    recorded = recorded_request(failure)
    kind: Any = None if recorded is None else getattr(exceptions, recorded["name"], None)
    if recorded is None or not isinstance(kind, type) or not issubclass(kind, ModelAPIError):
        own = _OWN.get(failure.error_class)
        return None if own is None else own(model_name=model, message=failure.message)
    if recorded["status"]:
        return ModelHTTPError.for_category(
            None if kind is ModelHTTPError else kind,  # type: ignore[arg-type]  # a category: an error had this name
            status_code=int(recorded["status"]),
            model_name=model,
            body=recorded["text"],
            retry_after=failure.retry_after_seconds,
        )
    if kind is ModelRequestTimeout:
        seconds = re.search(r"after ([0-9.e+-]+) seconds", recorded["text"])
        return ModelRequestTimeout(model, float(seconds[1]) if seconds else 0.0)
    return kind(model_name=model, message=recorded["text"])
