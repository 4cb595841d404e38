"""What became of a call that got no answer."""

from __future__ import annotations

import secrets
from typing import Any, Final

_MARK: Final = secrets.token_hex(16)
"""Tells what we say about a call from what a server says: it does not know the mark."""


class CallNotSent(Exception):  # noqa: N818  what is certain about the call, no error of ours
    """It did not reach the server: it may be sent again, whatever its class."""


class AnswerLost(Exception):  # noqa: N818  what is certain about the call, no error of ours
    """It was sent, and the connection or the server ended before the answer: it may or may not have happened."""


class AnswerUnreadable(AnswerLost):
    """It was answered, with what cannot be read: asking again would be no better."""


DeliveryError = type[CallNotSent] | type[AnswerLost]
_DELIVERY_ERRORS: Final[dict[str, DeliveryError]] = {
    fate.__name__: fate for fate in (CallNotSent, AnswerLost, AnswerUnreadable)
}


def mark(delivery_error: DeliveryError) -> dict[str, str]:
    """The data of an error that a transport makes up in place of a server's answer."""
    return {"mark": _MARK, "fate": delivery_error.__name__}


def marked_error(data: Any) -> DeliveryError | None:
    """What a transport said by `mark`; None for what a server said."""
    if not isinstance(data, dict) or data.get("mark") != _MARK:
        return None
    return _DELIVERY_ERRORS[data["fate"]]


def problem_of(error: BaseException) -> str:
    """Its words and its notes, for the log only: notes may be what a program wrote to its stderr."""
    return "; ".join([message_of(error), *getattr(error, "__notes__", [])])


def message_of(error: BaseException) -> str:
    """In one line, as much of it as is read; of a group its first, which is what the others followed from."""
    return full_message_of(error)[:300]


def full_message_of(error: BaseException) -> str:
    """All of it: what is cut may be half a secret that nobody recognises any more."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(str(error).split()) or type(error).__name__
