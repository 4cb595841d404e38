"""What a model gave a tool that the ledger answers: arguments one by one, with words for what does not fit."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.domain.waits import (
    DEFAULT_OPTIONS,
    MAX_OPTION_CHARACTERS,
    MAX_OPTIONS,
    MAX_WAIT_SECONDS,
    MIN_WAIT_SECONDS,
    WaitDeadlinePolicy,
)

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_POLICIES: Final = {"time_out": WaitDeadlinePolicy.TIME_OUT, "go_on": WaitDeadlinePolicy.GO_ON}


class Unfit(Exception):  # noqa: N818  said to the model, no error of ours
    """In words that fit into a sentence."""


class Arguments:
    """Takes arguments out, one by one; what is left at the end is nothing we know."""

    def __init__(self, text: str) -> None:
        """Unfit when it is no JSON object."""
        self._left = _object(text)

    def text(self, name: str, most: int, *, required: bool = False) -> str:
        value = self._left.pop(name, "")
        if not isinstance(value, str) or len(value) > most or (required and not value.strip()):
            raise Unfit(f"{name} must be a text of {1 if required else 0} to {most} characters")
        return value

    def options(self) -> tuple[str, ...]:
        value = self._left.pop("options", None) or list(DEFAULT_OPTIONS)
        fits = isinstance(value, list) and len(value) <= MAX_OPTIONS and len({str(one) for one in value}) == len(value)
        if not fits or not all(isinstance(one, str) and 0 < len(one) <= MAX_OPTION_CHARACTERS for one in value):
            raise Unfit(
                f"options must be up to {MAX_OPTIONS} different texts of 1 to {MAX_OPTION_CHARACTERS} characters"
            )
        return tuple(value)

    def policy(self) -> WaitDeadlinePolicy:
        value = self._left.pop("at_deadline", "time_out")
        if not isinstance(value, str) or value not in _POLICIES:
            raise Unfit("at_deadline must be time_out or go_on")
        return _POLICIES[value]

    def seconds(self, name: str, default: float) -> float:
        value = self._left.pop(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not MIN_WAIT_SECONDS <= value <= MAX_WAIT_SECONDS:
            raise Unfit(f"{name} must be {MIN_WAIT_SECONDS:g} to {MAX_WAIT_SECONDS:g}")
        return float(value)

    def refuse_rest(self) -> None:
        if self._left:
            named = ", ".join(sorted(self._left))[:200]
            raise Unfit(f"there is no {named.encode(errors='replace').decode()}")

    def texts(self, name: str, most: int, most_characters: int) -> tuple[str, ...]:
        """At least one, none of them blank."""
        value = self._left.pop(name, None)
        fits = isinstance(value, list) and 0 < len(value) <= most
        if not fits or not all(_is_text(one, most_characters) for one in value):
            raise Unfit(f"{name} must be 1 to {most} texts of 1 to {most_characters} characters")
        return tuple(value)

    def names(self, name: str, most: int) -> tuple[str, ...] | None:
        """None: not given."""
        value = self._left.pop(name, None)
        if value is None:
            return None
        fits = isinstance(value, list) and len(value) <= most
        if not fits or not all(isinstance(one, str) and _NAME.match(one) for one in value):
            raise Unfit(f"{name} must be up to {most} names of 1 to 64 letters, digits, _ and -")
        return tuple(dict.fromkeys(value))

    def count(self, name: str, most: int) -> int:
        """0: not given."""
        value = self._left.pop(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise Unfit(f"{name} must be a whole number up to {most}")
        return value


def _is_text(value: Any, most_characters: int) -> bool:
    """Not blank, and nothing that cannot be sent on: JSON may speak of broken surrogates."""
    if not isinstance(value, str) or not value.strip() or len(value) > most_characters:
        return False
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Unfit("they must be a JSON object")
    return value


def unfit(sentence: str) -> Outcome:
    """What a call comes to whose arguments do not fit."""
    return Outcome(OutcomeStatus.INVALID_ARGUMENTS, sentence)
