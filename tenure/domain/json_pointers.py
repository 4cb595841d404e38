"""JSON Pointer (RFC 6901): one value of a JSON document by its path."""

from __future__ import annotations

import re
from typing import Any, Final

JsonValue = Any
_INDEX: Final = re.compile(r"0|[1-9][0-9]*")
_BAD_ESCAPE: Final = re.compile(r"~(?![01])")


def value_at(document: JsonValue, pointer: str) -> JsonValue:
    """Returns the value at a pointer such as `/arguments/lines/0/price`; "" is the whole document.

    Raises LookupError when there is no such value, and when the text is not a pointer.
    """
    if not pointer:
        return document
    if not pointer.startswith("/") or _BAD_ESCAPE.search(pointer):
        raise LookupError(f"{pointer!r} is not a JSON pointer")
    value = document
    for part in pointer[1:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and _INDEX.fullmatch(name) and int(name) < len(value):
            value = value[int(name)]
        else:
            raise LookupError(f"there is no value at {pointer!r}")
    return value
