"""Mappings: the arguments of a call that follows from another call, such as its compensation.

A mapping gives each argument as a JSON pointer into the other call, or as a value. A string that begins with / is a
pointer to /arguments, /outcome or /key; {"literal": VALUE} is VALUE, also where it looks like a pointer; everything
else is taken as it is.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from tenure.domain.json_pointers import JsonValue, value_at

ROOTS: Final = ("arguments", "outcome", "key")
"""The members of the document that pointers lead into."""

MAX_MAPPING_BYTES: Final = 16 * 1024
_LITERAL: Final = "literal"


def mapped_arguments(mapping: Mapping[str, JsonValue], document: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Returns the arguments. `document`: `arguments`, and `outcome` and `key` where there are such.

    Raises LookupError, which names the argument whose value the document lacks.
    """
    return {name: _mapped(name, wanted, document) for name, wanted in mapping.items()}


def _mapped(name: str, wanted: JsonValue, document: Mapping[str, JsonValue]) -> JsonValue:
    if isinstance(wanted, Mapping) and wanted.keys() == {_LITERAL}:
        return wanted[_LITERAL]
    if not isinstance(wanted, str) or not _is_pointer(wanted):
        return wanted
    try:
        return value_at(document, wanted)
    except LookupError as missing:
        raise LookupError(f"the argument {name}: {missing}") from None


def _is_pointer(text: str) -> bool:
    return text.startswith("/")


def problems_of_mapping(mapping: Mapping[str, JsonValue], roots: tuple[str, ...] = ROOTS) -> Iterator[str]:
    """Yields what is wrong with a mapping, for the author of a config file. `roots`: the members that it may use."""
    for name, wanted in mapping.items():
        if not isinstance(wanted, str) or not _is_pointer(wanted):
            continue
        root = wanted.split("/")[1]
        if root not in roots:
            allowed = " or ".join(f"/{each}" for each in roots)
            yield f'{name}: {wanted!r} must begin with {allowed}; write {{"literal": …}} for a text that begins with /'
    try:
        size = len(json.dumps(dict(mapping)).encode())
    except (TypeError, ValueError):
        yield "its values must be JSON"
        return
    if size > MAX_MAPPING_BYTES:
        yield f"it has {size} bytes as JSON, and may have {MAX_MAPPING_BYTES}"


def problems_of_names(schema: Mapping[str, Any], names: Collection[str]) -> Iterator[str]:
    """Yields why arguments of these names would not fit the schema of an object."""
    known, required = schema.get("properties"), schema.get("required", ())
    if missing := sorted(set(required) - set(names)):
        yield f"requires {', '.join(missing)}"
    if schema.get("additionalProperties") is not False or not isinstance(known, Mapping):
        return
    if unknown := sorted(set(names) - known.keys()):
        yield f"has no {', '.join(unknown)}"


def parsed(text: str) -> JsonValue:
    """Returns the value of a JSON text, and any other text as it is."""
    try:
        return json.loads(text)  # type: ignore[no-any-return]
    except (ValueError, RecursionError):
        return text
