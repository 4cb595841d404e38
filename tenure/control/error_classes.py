"""Classifies exceptions of model calls: by their HTTP status, or by the libraries' own classes.

It knows the libraries' classes by their names, and imports none: a user's function may call its model by any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tenure.domain.retry import FailureClass, class_of_status, says_unpaid

FIRST_ERROR_STATUS: Final = 400
LAST_STATUS: Final = 599

_HTTPX: Final = {
    "UnsupportedProtocol": None,  # mistakes of the program: no retry helps
    "LocalProtocolError": None,
    "TimeoutException": FailureClass.SILENT,
    "TransportError": FailureClass.CONNECTION,
}
_VENDOR: Final = {
    "APITimeoutError": FailureClass.SILENT,
    "APIConnectionError": FailureClass.CONNECTION,
    "APIResponseValidationError": FailureClass.UNUSABLE_ANSWER,
    "APIError": FailureClass.BROKEN_STREAM,  # without an error status: it came within a stream
}
_CLASSES: Final[Mapping[str, Mapping[str, FailureClass | None]]] = {
    "json": {"JSONDecodeError": FailureClass.UNUSABLE_ANSWER},
    "builtins": {"TimeoutError": FailureClass.SILENT, "ConnectionError": FailureClass.CONNECTION},
    "tenure": {"ModelCallLate": FailureClass.TIMEOUT, "ModelCallInterrupted": FailureClass.INTERRUPTED},
    "anthropic": _VENDOR,
    "openai": _VENDOR,
    "httpx": _HTTPX,
    "httpx2": _HTTPX,
    "aiohttp": {
        "ServerTimeoutError": FailureClass.SILENT,
        "ClientConnectionError": FailureClass.CONNECTION,
        "ClientPayloadError": FailureClass.BROKEN_STREAM,
    },
    "requests": {
        "Timeout": FailureClass.SILENT,
        "ConnectionError": FailureClass.CONNECTION,
        "ChunkedEncodingError": FailureClass.BROKEN_STREAM,
    },
    "socket": {"gaierror": FailureClass.CONNECTION},
    "urllib": {"URLError": FailureClass.CONNECTION},
    "botocore": {
        "ReadTimeoutError": FailureClass.SILENT,
        "ConnectionError": FailureClass.CONNECTION,
        "HTTPClientError": FailureClass.CONNECTION,
    },
    "pydantic_ai": {
        "ModelRateLimitError": FailureClass.RATE_LIMITED,
        "ModelQuotaExceededError": FailureClass.BILLING,
        "ModelOverloadedError": FailureClass.OVERLOADED,
        "ModelUnavailableError": FailureClass.SERVER_ERROR,
        "ModelServerError": FailureClass.SERVER_ERROR,
        "ModelTimeoutError": FailureClass.SILENT,
        "ModelRequestTimeout": FailureClass.SILENT,
        "ModelAuthenticationError": FailureClass.AUTHENTICATION,
        "ModelNotFoundError": FailureClass.NOT_FOUND,
        "ModelContextWindowExceededError": FailureClass.PROMPT_TOO_LONG,
        "ModelRequestRejectedError": FailureClass.INVALID_REQUEST,
        "ModelAPIError": FailureClass.CONNECTION,
    },
}
"""The classes of exceptions without an HTTP status, by the package that defines them. None: no failure of a call."""
_MAYBE_UNUSABLE: Final = frozenset({FailureClass.CONNECTION, FailureClass.BROKEN_STREAM})
"""The classes of libraries' exceptions that also stand for an answer that they cannot read."""


def class_of(error: BaseException) -> FailureClass | None:
    """Returns the class of an exception as a failure of a model call. None: it is none, as far as is known."""
    stated = next(_stated(type(error)), None)
    if stated in _MAYBE_UNUSABLE and isinstance(error.__cause__, ValueError):
        stated = FailureClass.UNUSABLE_ANSWER  # such as JSON that ends in the middle
    if stated is FailureClass.BILLING or not (status := status_of(error)):
        return stated
    code = vars(error).get("code")
    is_unpaid = says_unpaid(status, code if isinstance(code, str) else "", _text_of(error))
    return FailureClass.BILLING if is_unpaid else class_of_status(status)


def _stated(kind: type[BaseException]) -> Any:
    """Yields the class of the nearest base that is known."""
    for base in kind.__mro__:
        names = _CLASSES.get(base.__module__.partition(".")[0], {})
        if base.__name__ in names:
            yield names[base.__name__]


def status_of(error: BaseException) -> int:
    """Returns the HTTP status of a refusal, 400 to 599; 0 for an exception without one."""
    response = getattr(error, "response", None)
    statuses = (
        getattr(holder, name, None)
        for holder, name in (
            (error, "status_code"), (response, "status_code"), (error, "status"), (error, "code"),
        )
    )  # fmt: skip
    return next((each for each in statuses if isinstance(each, int) and FIRST_ERROR_STATUS <= each <= LAST_STATUS), 0)


def retry_after_of(error: BaseException) -> float | None:
    """Returns the seconds that an exception, or the headers of its response, asks to wait; None: it names none."""
    for name in ("retry_after_seconds", "retry_after"):
        if isinstance(after := getattr(error, name, None), int | float):
            return after
    for holder in (error, getattr(error, "response", None)):
        headers = getattr(holder, "headers", None)
        if isinstance(headers, Mapping) and (after := _of_headers(headers)) is not None:
            return after
    return None


def _of_headers(headers: Mapping[Any, Any]) -> float | None:
    """Returns the wait in a response's headers; None for none, and for a date."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name)
        if isinstance(text, str) and text.replace(".", "", 1).isdecimal():
            return float(text) * scale
    return None


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  the class of the exception is the user's, too
        return ""
