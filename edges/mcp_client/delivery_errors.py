"""Defines the errors of a call that got no answer, by what is certain about its effect.

A transport cannot raise these errors through the protocol's package. It makes up an error answer instead, with `mark`
as its data, and the session turns that answer back into the exception with `marked_error`.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

from pydantic import ValidationError

_MARK: Final = secrets.token_hex(16)
"""Separates the error answers of our transports from those of a server: no server knows this random mark."""


class CallNotSent(Exception):  # noqa: N818  a fact about the call, not a fault of this service
    """The call did not reach the server. It may be sent again, whatever its effect class."""


class AnswerLost(Exception):  # noqa: N818  a fact about the call, not a fault of this service
    """The call was sent, and the connection or the server ended before the answer: its effect may have happened."""


class AnswerUnreadable(AnswerLost):
    """The server's answer to the call cannot be read. A repeat of the call would get no better answer."""


DeliveryError = type[CallNotSent] | type[AnswerLost]
_DELIVERY_ERRORS: Final[dict[str, DeliveryError]] = {
    error.__name__: error for error in (CallNotSent, AnswerLost, AnswerUnreadable)
}


def mark(delivery_error: DeliveryError) -> dict[str, str]:
    """Returns the data of an error answer that a transport makes up in place of a server's answer."""
    return {"mark": _MARK, "fate": delivery_error.__name__}


def marked_error(data: Any) -> DeliveryError | None:
    """Returns the error that a transport marked with `mark`, or None for the error of a server."""
    if not isinstance(data, dict) or data.get("mark") != _MARK:
        return None
    return _DELIVERY_ERRORS[data["fate"]]


def problem_of(error: BaseException) -> str:
    """Returns the message and the notes of an error, for the log only: notes may contain a program's stderr."""
    return "; ".join([message_of(error), *getattr(error, "__notes__", [])])


def message_of(error: BaseException) -> str:
    """Returns the message of an error in one line, at most 300 characters."""
    return full_message_of(error)[:300]


def full_message_of(error: BaseException) -> str:
    """Returns the whole message of an error in one line; of a group, the message of its first error.

    The first error of a group caused the others. The message is whole so that the secrets in it can be found and
    removed: a cut could leave half a secret.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ValidationError):
        return f"its answer is not as the protocol says: {fault_of(error)}"
    name = type(error).__name__
    return " ".join(str(error).split()) or ("it did not answer in time" if "Timeout" in name else name)


def fault_of(error: ValidationError) -> str:
    """Returns the first fault of a message, with its place and without the message itself."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]
