"""Parses untrusted JSON and text, and the arguments of tools that the ledger answers (waits, sub-agents)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
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

# Strict JSON, and text that a proto message can carry.


def strict_json(text: str, *, unique_names: bool = False) -> Any:
    """Parses JSON by the standard. Python's parser accepts NaN, Infinity and 1e999, which cannot be written again.

    `unique_names`: refuses an object with a repeated name. Raises ValueError, and RecursionError if the value nests too
    deeply.
    """
    return (_UNIQUE_NAMES if unique_names else _ANY_NAMES).decode(text)


def exact_json(text: str) -> Any:
    """Parses JSON with fractions as exact decimals. Raises as `strict_json` with unique names."""
    return _EXACT.decode(text)


MAX_JSON_DEPTH: Final = 200
"""Of JSON that several processes parse: how deep Python's parser gets depends on how deep its caller's stack is."""


def storable_json(text: str) -> Any:
    """Parses JSON from a stranger that is kept, and that other processes parse and write again. Raises ValueError."""
    try:
        value = strict_json(text)
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    if text.count("[") + text.count("{") > MAX_JSON_DEPTH and depth_of(value) > MAX_JSON_DEPTH:
        raise ValueError(f"it nests more than {MAX_JSON_DEPTH} deep")
    if "\\ud" in text or "\\uD" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("it has half of a surrogate pair") from None
    return value


def depth_of(value: Any) -> int:
    """Returns the nesting depth of a JSON value; that of a string or number is 1. Not recursive, so it has no limit."""
    level, depth = [value], 0
    while level:
        depth += 1
        inner = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list)]
        level = [item for items in inner for item in items]
    return depth


def is_deeper(text: str, value: Any, most: int) -> bool:
    """Whether the value parsed from `text` nests more than `most` deep; walks only a value with enough brackets."""
    return text.count("[") + text.count("{") >= most and depth_of(value) > most


def well_formed(text: str) -> str:
    """Returns the text with surrogate pairs joined and lone surrogates replaced by U+FFFD: UTF-8 cannot encode them."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def well_formed_value(value: Any) -> Any:
    """Returns a JSON value with well-formed strings. Raises ValueError if two names of an object become equal."""
    written = json.dumps(value, ensure_ascii=False)
    mended = well_formed(written)
    return value if mended is written else strict_json(mended, unique_names=True)


TRUNCATED: Final = " …"
"""Ends a text that was truncated."""


def escaped(text: str, most_characters: int) -> str:
    """Returns an untrusted text for people: truncated, with unprintable characters except line breaks escaped."""
    cut = text if len(text) <= most_characters else f"{text[:most_characters]}{TRUNCATED}"
    if cut.isprintable():
        return cut
    return "".join(
        one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode("ascii") for one in cut
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite_number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def _exact_number(text: str) -> Decimal:
    _finite_number(text)
    return Decimal(text)


def _object_of_unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"an object has the name {name[:40]!a} twice")
        made[name] = value
    return made


def _strict_decoder(
    pairs_hook: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None,
    parse_float: Callable[[str], Any] = _finite_number,
) -> json.JSONDecoder:
    return json.JSONDecoder(parse_constant=_refuse_constant, parse_float=parse_float, object_pairs_hook=pairs_hook)


# json.loads would build a decoder for each text, which takes as long as reading an event of a model's answer
_ANY_NAMES: Final = _strict_decoder(None)
_UNIQUE_NAMES: Final = _strict_decoder(_object_of_unique_names)
_EXACT: Final = _strict_decoder(_object_of_unique_names, _exact_number)

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_POLICIES: Final = {"time_out": WaitDeadlinePolicy.TIME_OUT, "go_on": WaitDeadlinePolicy.GO_ON}


class InvalidArguments(Exception):  # noqa: N818  becomes an outcome for the model
    """The arguments are invalid. The message is a clause for the call's outcome."""


class Arguments:
    """Reads arguments one by one. Each method removes an argument; `refuse_rest` refuses unknown ones."""

    def __init__(self, text: str) -> None:
        """Raises InvalidArguments if the text is not a JSON object."""
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
            raise InvalidArguments(f"these are unknown: {named.encode(errors='replace').decode()}")

    def texts(self, name: str, most: int, most_characters: int) -> tuple[str, ...]:
        """Returns a required list of strings: at least one, none of them blank."""
        value = self._left.pop(name, None)
        fits = isinstance(value, list) and 0 < len(value) <= most
        if not fits or not all(_is_text(one, most_characters) for one in value):
            raise InvalidArguments(f"{name} must be 1 to {most} texts of 1 to {most_characters} characters")
        return tuple(value)

    def names(self, name: str, most: int) -> tuple[str, ...] | None:
        """Returns an optional list of names. None: the argument is absent."""
        value = self._left.pop(name, None)
        if value is None:
            return None
        fits = isinstance(value, list) and len(value) <= most
        if not fits or not all(isinstance(one, str) and _NAME.match(one) for one in value):
            raise InvalidArguments(f"{name} must be up to {most} names of 1 to 64 letters, digits, _ and -")
        return tuple(dict.fromkeys(value))

    def count(self, name: str, most: int) -> int:
        """Returns an optional number. 0: the argument is absent."""
        value = self._left.pop(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise InvalidArguments(f"{name} must be a whole number up to {most}")
        return value


def _is_text(value: Any, most_characters: int) -> bool:
    """Whether the value is a string that is not blank and has no lone surrogates, which JSON allows."""
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
    """Returns the outcome of a call with invalid arguments."""
    return Outcome(OutcomeStatus.INVALID_ARGUMENTS, sentence)
