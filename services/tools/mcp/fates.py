"""What became of a call that got no answer."""

from __future__ import annotations

import secrets
from typing import Any, Final

_MARK: Final = secrets.token_hex(16)
"""Tells what we say about a call from what a server says: it does not know the mark."""


class NothingDone(Exception):  # noqa: N818  what is certain about the call, no error of ours
    """It did not reach the server: it may be sent again, whatever its class."""


class Lost(Exception):  # noqa: N818  what is certain about the call, no error of ours
    """It was sent, and the connection or the server ended before the answer: it may or may not have happened."""


class Unreadable(Lost):
    """It was answered, with what cannot be read: asking again would be no better."""


Fate = type[NothingDone] | type[Lost]
_FATES: Final[dict[str, Fate]] = {fate.__name__: fate for fate in (NothingDone, Lost, Unreadable)}


def mark(fate: Fate) -> dict[str, str]:
    """The data of an error that a transport makes up in place of a server's answer."""
    return {"mark": _MARK, "fate": fate.__name__}


def marked_fate(data: Any) -> Fate | None:
    """What a transport said by `mark`; None for what a server said."""
    if not isinstance(data, dict) or data.get("mark") != _MARK:
        return None
    return _FATES[data["fate"]]


def problem_of(error: BaseException) -> str:
    """Its words and its notes, for the log only: notes may be what a program wrote to its stderr."""
    return "; ".join([words_of(error), *getattr(error, "__notes__", [])])


def words_of(error: BaseException) -> str:
    """In one line, as much of it as is read; of a group its first, which is what the others followed from."""
    return whole_words_of(error)[:300]


def whole_words_of(error: BaseException) -> str:
    """All of it: what is cut may be half a secret that nobody recognises any more."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(str(error).split()) or type(error).__name__
