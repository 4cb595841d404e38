"""What a model gave a tool that the ledger answers: arguments one by one, with words for what does not fit."""

from __future__ import annotations

import json
import math
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

# JSON as the standard has it, from whoever writes it, and text that every message can carry.


def strict_json(text: str, *, unique_names: bool = False) -> Any:
    """The value. Python's own reader would take NaN and Infinity and make 1e999 infinite, which nobody can write.

    `unique_names`: an object that names a member twice is refused. Raises ValueError, and RecursionError for what nests
    too deeply.
    """
    pairs_hook = _object_of_unique_names if unique_names else None
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite_number, object_pairs_hook=pairs_hook)


def depth_of(value: Any) -> int:
    """How deeply a JSON value nests; a text or number has depth 1. Level by level: recursion could be exhausted."""
    level, depth = [value], 0
    while level:
        depth += 1
        inner = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list)]
        level = [item for items in inner for item in items]
    return depth


def well_formed(text: str) -> str:
    """The text with its surrogate pairs joined and lone surrogates replaced by U+FFFD: UTF-8 cannot encode those."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def well_formed_value(value: Any) -> Any:
    """The same for every text in a JSON value. Raises ValueError when two names of one object become the same."""
    written = json.dumps(value, ensure_ascii=False)
    mended = well_formed(written)
    return value if mended is written else strict_json(mended, unique_names=True)


def escaped(text: str, most_characters: int) -> str:
    """A stranger's text for a message to people: bounded, on its lines, with everything unprintable escaped."""
    cut = text if len(text) <= most_characters else f"{text[:most_characters]} …"
    if cut.isprintable():
        return cut
    return "".join(
        one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode("ascii") for one in cut
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _finite_number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is too large a number")
    return number


def _object_of_unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"an object names the member {name[:40]!a} twice")
        made[name] = value
    return made


_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_POLICIES: Final = {"time_out": WaitDeadlinePolicy.TIME_OUT, "go_on": WaitDeadlinePolicy.GO_ON}


class InvalidArguments(Exception):  # noqa: N818  said to the model, no error of ours
    """In words that fit into a sentence."""


class Arguments:
    """Takes arguments out, one by one; what is left at the end is nothing we know."""

    def __init__(self, text: str) -> None:
        """Unfit when it is no JSON object."""
        self._left = _object(text)

    def text(self, name: str, most: int, *, required: bool = False) -> str:
        value = self._left.pop(name, "")
        if not isinstance(value, str) or len(value) > most or (required and not value.strip()):
            raise InvalidArguments(f"{name} must be a text of {1 if required else 0} to {most} characters")
        return value

    def options(self) -> tuple[str, ...]:
        value = self._left.pop("options", None) or list(DEFAULT_OPTIONS)
        fits = isinstance(value, list) and len(value) <= MAX_OPTIONS and len({str(one) for one in value}) == len(value)
        if not fits or not all(isinstance(one, str) and 0 < len(one) <= MAX_OPTION_CHARACTERS for one in value):
            raise InvalidArguments(
                f"options must be up to {MAX_OPTIONS} different texts of 1 to {MAX_OPTION_CHARACTERS} characters"
            )
        return tuple(value)

    def policy(self) -> WaitDeadlinePolicy:
        value = self._left.pop("at_deadline", "time_out")
        if not isinstance(value, str) or value not in _POLICIES:
            raise InvalidArguments("at_deadline must be time_out or go_on")
        return _POLICIES[value]

    def seconds(self, name: str, default: float) -> float:
        value = self._left.pop(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not MIN_WAIT_SECONDS <= value <= MAX_WAIT_SECONDS:
            raise InvalidArguments(f"{name} must be {MIN_WAIT_SECONDS:g} to {MAX_WAIT_SECONDS:g}")
        return float(value)

    def refuse_rest(self) -> None:
        if self._left:
            named = ", ".join(sorted(self._left))[:200]
            raise InvalidArguments(f"there is no {named.encode(errors='replace').decode()}")

    def texts(self, name: str, most: int, most_characters: int) -> tuple[str, ...]:
        """At least one, none of them blank."""
        value = self._left.pop(name, None)
        fits = isinstance(value, list) and 0 < len(value) <= most
        if not fits or not all(_is_text(one, most_characters) for one in value):
            raise InvalidArguments(f"{name} must be 1 to {most} texts of 1 to {most_characters} characters")
        return tuple(value)

    def names(self, name: str, most: int) -> tuple[str, ...] | None:
        """None: not given."""
        value = self._left.pop(name, None)
        if value is None:
            return None
        fits = isinstance(value, list) and len(value) <= most
        if not fits or not all(isinstance(one, str) and _NAME.match(one) for one in value):
            raise InvalidArguments(f"{name} must be up to {most} names of 1 to 64 letters, digits, _ and -")
        return tuple(dict.fromkeys(value))

    def count(self, name: str, most: int) -> int:
        """0: not given."""
        value = self._left.pop(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise InvalidArguments(f"{name} must be a whole number up to {most}")
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
        raise InvalidArguments("they must be a JSON object")
    return value


def unfit(sentence: str) -> Outcome:
    """What a call comes to whose arguments do not fit."""
    return Outcome(OutcomeStatus.INVALID_ARGUMENTS, sentence)
