"""Dataclasses from JSON and from query strings, and as JSON Schema: the other direction of tenure/sdk/json_shape.py.

A field has one of the types of the public JSON: text, numbers, truth values, times, money, enums, lists, maps, other
dataclasses, bytes in base64, any JSON value, or None.
"""

from __future__ import annotations

import types
from base64 import b64decode
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, field, fields, is_dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from enum import Enum, IntEnum
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from tenure.domain.errors import InvalidRequest

T = TypeVar("T")
MAX_PROBLEMS: Final = 20
"""The violations that an answer names: a body may have millions."""
MAX_SHOWN: Final = 64
"""The characters of a stranger's name in a violation."""
_TEXT: Final = "text"


def given(text: str, default: Any = MISSING) -> Any:
    """Declares a field of a request with its description."""
    metadata = {_TEXT: text}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


class _Misfit(Exception):  # noqa: N818  becomes a violation
    """A value that does not fit. `violations`: fields and descriptions."""

    def __init__(self, *violations: tuple[str, str]) -> None:
        super().__init__(violations)
        self.violations = violations[:MAX_PROBLEMS]


def read_json(kind: type[T], value: Any) -> T:
    """Returns a dataclass from a JSON object. Raises InvalidRequest with all violations."""
    try:
        made: T = _read(kind, value, "")
    except _Misfit as misfit:
        raise InvalidRequest(violations=misfit.violations) from None
    return made


def read_query(kind: type[T], items: Iterable[tuple[str, str]]) -> T:
    """Returns a dataclass from the parameters of a query string. Raises InvalidRequest with all violations.

    A list has its parameter several times, a map as `label=name:value`.
    """
    parameters: dict[str, list[str]] = {}
    for name, text in items:
        parameters.setdefault(name, []).append(text)
    types_by_name, violations, values = _types_of(kind), list[tuple[str, str]](), dict[str, Any]()
    violations += _unknown(parameters, types_by_name, "", "parameter")
    for name, texts in parameters.items():
        if name not in types_by_name:
            continue
        try:
            values[name] = _read_texts(types_by_name[name], texts, name)
        except _Misfit as misfit:
            violations += misfit.violations
    violations += _missing(kind, values.keys() | parameters.keys(), "")
    if violations:
        raise InvalidRequest(violations=violations[:MAX_PROBLEMS])
    return kind(**values)


def _unknown(names: Iterable[str], known: Iterable[str], prefix: str, noun: str) -> list[tuple[str, str]]:
    """Returns a violation for each of the first unknown names; the first of them lists the known names."""
    known_names = list(known)
    unknown = list(islice((name for name in names if name not in known_names), MAX_PROBLEMS))
    problems = [f"is not a {noun}; there are {', '.join(known_names) or 'none'}", f"is not a {noun}"]
    return [(f"{prefix}{name[:MAX_SHOWN]}", problems[min(1, number)]) for number, name in enumerate(unknown)]


_TYPES: Final[dict[type[Any], dict[str, Any]]] = {}


def _types_of(kind: type[Any]) -> dict[str, Any]:
    """Returns the type of each field of a dataclass."""
    known = _TYPES.get(kind)
    if known is None:
        types_by_name = get_type_hints(kind)
        known = _TYPES[kind] = {one.name: types_by_name[one.name] for one in fields(kind)}
    return known


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Returns a type without None, and whether it had it."""
    if get_origin(hint) in {Union, types.UnionType}:
        parts = [part for part in get_args(hint) if part is not types.NoneType]
        assert len(parts) == 1, f"{hint}: a field has one type, or None"
        return parts[0], True
    return hint, False


def _missing(kind: type[Any], names: Iterable[str], prefix: str) -> list[tuple[str, str]]:
    known = set(names)
    return [(f"{prefix}{one.name}", "is missing") for one in fields(kind) if one.name not in known and _is_needed(one)]


def _is_needed(one: Field[Any]) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


def _read(hint: Any, value: Any, where: str) -> Any:
    hint, may_be_none = _without_none(hint)
    if hint is Any or (value is None and may_be_none):
        return value
    origin = get_origin(hint)
    if origin is tuple:
        item = get_args(hint)[0]
        return tuple(
            _read_all((_read, item, each, f"{where}[{number}]") for number, each in enumerate(_of(list, value, where)))
        )
    if origin is not None and issubclass(origin, Mapping):
        item = get_args(hint)[1]
        pairs = _of(dict, value, where).items()
        return dict(
            zip(
                value,
                _read_all((_read, item, each, f"{where}.{name[:MAX_SHOWN]}") for name, each in pairs),
                strict=True,
            )
        )
    if isinstance(hint, type) and is_dataclass(hint):
        return _read_object(hint, _of(dict, value, where), where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum(hint, value, where)
    if hint is datetime:
        return _time(value, where)
    if hint is Decimal:
        return _money(value, where)
    if hint is bytes:
        return _bytes(value, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(_of(int, value, where))
    return _of(hint, value, where)


def _read_all(parts: Iterable[tuple[Any, ...]]) -> list[Any]:
    made, violations = [], list[tuple[str, str]]()
    for read, *arguments in parts:
        try:
            made.append(read(*arguments))
        except _Misfit as misfit:
            violations += misfit.violations
            if len(violations) >= MAX_PROBLEMS:
                break
    if violations:
        raise _Misfit(*violations)
    return made


def _read_object(kind: type[Any], value: dict[str, Any], where: str) -> Any:
    types_by_name, prefix = _types_of(kind), f"{where}." if where else ""
    violations = _unknown(value, types_by_name, prefix, "field")
    violations += _missing(kind, value, prefix)
    values = {}
    for name in value.keys() & types_by_name.keys():
        try:
            values[name] = _read(types_by_name[name], value[name], f"{prefix}{name}")
        except _Misfit as misfit:
            violations += misfit.violations
    if violations:
        raise _Misfit(*sorted(violations))
    return kind(**values)


_NAMES: Final = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


MOST: Final = {int: 2**53, float: 3e11}
"""The largest numbers: of every amount, and of the seconds that the contract can express."""


def _of(kind: type[Any], value: Any, where: str) -> Any:
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise _Misfit((where, f"must be {_NAMES[kind]}"))
    if kind in MOST and not -MOST[kind] <= value <= MOST[kind]:
        raise _Misfit((where, f"must be at most {MOST[kind]:.0f}"))
    return value


def _enum(kind: type[Enum], value: Any, where: str) -> Enum:
    names = enum_names(kind)
    if isinstance(value, str) and value.upper() in names:
        return names[value.upper()]
    raise _Misfit((where, f"must be one of {', '.join(names)}"))


def enum_names(kind: type[Enum]) -> dict[str, Enum]:
    """Returns the members of an enum by their names in the public JSON."""
    return {member.name if issubclass(kind, IntEnum) else str(member.value): member for member in kind}


def _time(value: Any, where: str) -> datetime:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise _Misfit((where, "must be a time with its zone, for example 2026-11-23T07:00:00Z"))
    return moment


def _money(value: Any, where: str) -> Decimal:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        with suppress(InvalidOperation):  # said below
            return Decimal(str(value))
    raise _Misfit((where, "must be an amount of US dollars, for example 0.5"))


def _bytes(value: Any, where: str) -> bytes:
    with suppress(ValueError):  # said below
        if isinstance(value, str):
            return b64decode(value, validate=True)
    raise _Misfit((where, "must be base64"))


def _read_texts(hint: Any, texts: list[str], where: str) -> Any:
    """Returns a value from the texts of one parameter."""
    hint, _ = _without_none(hint)
    origin = get_origin(hint)
    if origin is tuple:
        return tuple(_read(get_args(hint)[0], text, where) for joined in texts for text in joined.split(",") if text)
    if origin is not None and issubclass(origin, Mapping):
        pairs = [text.partition(":") for text in texts]
        if not all(colon for _, colon, _ in pairs):
            raise _Misfit((where, "must be name:value"))
        return {name: value for name, _, value in pairs}
    if len(texts) != 1:
        raise _Misfit((where, "must be given once"))
    return _read(hint, _plain(hint, texts[0], where), where)


def _plain(hint: Any, text: str, where: str) -> Any:
    if hint is bool and text.lower() in {"true", "1", "false", "0", ""}:
        return text.lower() in {"true", "1", ""}
    if hint in {int, float}:
        try:
            number = hint(text) if len(text) <= 20 else None
        except ValueError:
            number = None
        if number is None or number != number:  # noqa: PLR0124  not a number
            raise _Misfit((where, f"must be {_NAMES[hint]}"))
        return number
    return text


# JSON Schema.

_PLAIN: Final[dict[Any, dict[str, Any]]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    Decimal: {"type": "number"},
    datetime: {"type": "string", "format": "date-time"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    Any: {},
}


class Parameter(NamedTuple):
    """A parameter of a query string. `is_map`: it has the form name:value."""

    name: str
    schema: dict[str, Any]
    text: str
    is_needed: bool


class Schemas:
    """Makes the schemas of types. `components` collects those of dataclasses, by name."""

    def __init__(self) -> None:
        self.components: dict[str, dict[str, Any]] = {}
        self._kinds: dict[str, type[Any]] = {}

    def of(self, hint: Any, *, is_request: bool = False) -> dict[str, Any]:
        """Returns the schema of a type. Of an answer, every field is always present; a request has only its own."""
        hint, may_be_none = _without_none(hint)
        schema = self._of(hint, is_request=is_request)
        if not may_be_none or not schema:
            return schema
        if isinstance(schema.get("type"), str) and "enum" not in schema:
            return {**schema, "type": [schema["type"], "null"]}
        return {"anyOf": [schema, {"type": "null"}]}

    def parameters(self, kind: type[Any]) -> list[Parameter]:
        """Returns the parameters of a query string."""
        return [
            Parameter(
                one.name, self._parameter(_types_of(kind)[one.name]), one.metadata.get(_TEXT, ""), _is_needed(one)
            )
            for one in fields(kind)
        ]

    def _parameter(self, hint: Any) -> dict[str, Any]:
        hint, _ = _without_none(hint)
        origin = get_origin(hint)
        if origin is not None and issubclass(origin, Mapping):
            return {"type": "array", "items": {"type": "string", "pattern": "^[^:]+:"}}
        return self._of(hint, is_request=True)

    def _of(self, hint: Any, *, is_request: bool) -> dict[str, Any]:
        origin = get_origin(hint)
        if origin is tuple:
            return {"type": "array", "items": self.of(get_args(hint)[0], is_request=is_request)}
        if origin is not None and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(get_args(hint)[1], is_request=is_request)}
        if isinstance(hint, type) and is_dataclass(hint):
            return self._component(hint, is_request=is_request)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return {"type": "string", "enum": list(enum_names(hint))}
        return dict(_PLAIN[hint])

    def _component(self, kind: type[Any], *, is_request: bool) -> dict[str, Any]:
        name = (
            f"{kind.__name__}Input" if is_request and not kind.__name__.endswith(("Body", "Input")) else kind.__name__
        )
        assert self._kinds.setdefault(name, kind) is kind, f"two dataclasses have the name {name}"
        if name not in self.components:
            made: dict[str, Any] = {"type": "object"}
            self.components[name] = made  # before its fields: a dataclass may contain itself
            if kind.__doc__:
                made["description"] = " ".join(kind.__doc__.split())
            types_by_name = _types_of(kind)
            made["properties"] = {
                one.name: self._described(one, self.of(types_by_name[one.name], is_request=is_request))
                for one in fields(kind)
            }
            needed = [one.name for one in fields(kind) if not is_request or _is_needed(one)]
            if needed:
                made["required"] = needed
            if is_request:
                made["additionalProperties"] = False
        return {"$ref": f"#/components/schemas/{name}"}

    @staticmethod
    def _described(one: Field[Any], schema: dict[str, Any]) -> dict[str, Any]:
        text = one.metadata.get(_TEXT)
        return {**schema, "description": text} if text else schema
