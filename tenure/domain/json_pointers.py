"""JSON pointers (RFC 6901): a value inside a JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

JsonValue = None | bool | int | float | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"]


def value_at(document: JsonValue, pointer: str) -> JsonValue:
    """Returns the value at the pointer; "" is the whole document. Raises LookupError, which says what is missing."""
    if pointer and not pointer.startswith("/"):
        raise LookupError(f"the JSON pointer {pointer!r} must be empty or begin with /")
    value = document
    for token in pointer.split("/")[1:]:
        value = _member(value, token.replace("~1", "/").replace("~0", "~"), pointer)
    return value


def _member(value: JsonValue, name: str, pointer: str) -> JsonValue:
    if isinstance(value, Mapping) and name in value:
        return value[name]
    if isinstance(value, Sequence) and not isinstance(value, str) and _is_index(name) and int(name) < len(value):
        return value[int(name)]
    raise LookupError(f"there is no value at {pointer}")


def _is_index(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 10 and (name == "0" or name[0] != "0")
