"""JSON as the standard has it, from whoever writes it, and text that every message can carry."""

from __future__ import annotations

import json
import math
from typing import Any


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
