"""The public JSON: the one rule that turns a public dataclass into JSON.

`to_json()` of a task and of an event, and `--json` of the command, all use it. docs/json.md lists the fields, and a
golden test holds every shape: a field may be added, none is renamed, removed or changed in its type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, make_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any


def json_value(value: Any) -> Any:
    """Returns a value as JSON: dataclasses as objects with the same field names, and every field always present.

    A time is RFC 3339 in UTC (`2026-11-23T07:00:00.000000Z`), an amount of money a number of US dollars, an enum its
    name, an absent value null. Raises TypeError for a type that the public API does not use.
    """
    match value:
        case IntEnum():
            return value.name
        case Enum():
            return value.value
        case None | bool() | int() | float() | str():
            return value
        case Decimal():
            return float(value)
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        case Mapping():
            return {str(key): json_value(each) for key, each in value.items()}
        case list() | tuple():
            return [json_value(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: json_value(getattr(value, field.name)) for field in fields(value)}
    raise TypeError(f"{type(value).__name__} has no JSON form")


class PublicValue:
    """The base of the public dataclasses, which gives them `to_json`."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the value as JSON, as docs/json.md describes it: stable from release to release."""
        shape: dict[str, Any] = json_value(self)
        return shape


def public_class(name: str, text: str, /, **types: Any) -> Any:
    """Declares a public dataclass whose values only a conversion makes: its name, its documentation and its fields."""
    named = {"__doc__": text, "__module__": __name__}
    return make_dataclass(name, types.items(), bases=(PublicValue,), namespace=named, frozen=True, slots=True)
