"""JSON pointers (RFC 6901): the name of a place in a JSON document, such as `/order/id`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

JsonValue = None | bool | int | float | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"]
MAX_POINTER_CHARACTERS: Final = 200
_POINTER: Final = re.compile(r"(/([^~/]|~[01])*)*\Z")
_INDEX: Final = re.compile(r"(0|[1-9][0-9]{0,8})\Z", re.ASCII)


def check_pointer(pointer: str) -> str:
    """Returns the pointer. Raises ValueError for another text, or one that is too long."""
    if _POINTER.match(pointer) is None:
        raise ValueError(f"{pointer!r} is not a JSON pointer: write / before each name, such as /order/id")
    if len(pointer) > MAX_POINTER_CHARACTERS:
        raise ValueError(f"a JSON pointer may have {MAX_POINTER_CHARACTERS} characters")
    return pointer


def value_at(document: JsonValue, pointer: str) -> JsonValue:
    """Returns the value at the pointer; "" is the whole document. Raises LookupError, which says what is missing."""
    if not _POINTER.match(pointer):
        raise LookupError(f"the JSON pointer {pointer!r} must be empty or begin with /")
    value = document
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, Sequence) and not isinstance(value, str) and _is_index(name, len(value)):
            value = value[int(name)]
        else:
            raise LookupError(f"there is no value at {pointer}")
    return value


def _is_index(name: str, length: int) -> bool:
    return _INDEX.match(name) is not None and int(name) < length
