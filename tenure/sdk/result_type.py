"""Typed results: the JSON Schema of a Python type, and the value of that type in a task's result.

The worker and the ledger check a result against the schema (TaskSpec.result_schema_json), so a task succeeds only with
a result that fits. A pydantic model is known by its methods, and pydantic itself is not imported.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, InitVar, dataclass, fields, is_dataclass
from datetime import date, datetime
from enum import Enum
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    NotRequired,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

T = TypeVar("T")

_PLAIN: Final[dict[Any, dict[str, Any]]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    datetime: {"type": "string", "format": "date-time"},
    date: {"type": "string", "format": "date"},
}
_LISTS: Final = frozenset({list, Sequence})
_SUPPORTED: Final = (
    "a pydantic model, a dataclass, a TypedDict, a JSON Schema as a dict, or one of str, int, float, bool, None, "
    "datetime, date, an Enum, a Literal, list[…], dict[str, …] and unions of them"
)


@dataclass(frozen=True, slots=True)
class ResultType(Generic[T]):
    """The type of a task's result. `schema_json` "": any text. `read` makes the value from the result's JSON text.

    `read` raises ValueError for a value that does not fit; pydantic's ValidationError is one.
    """

    schema_json: str
    read: Callable[[str], T]
    is_text: bool = False


TEXT: Final[ResultType[str]] = ResultType("", lambda text: text, is_text=True)


def result_type_of(result: Any) -> ResultType[Any]:
    """Returns the result type for the argument `result` of a submit. Raises TypeError for an unsupported type.

    None: the text. A mapping: a JSON Schema, whose results are JSON values.
    """
    if result is None:
        return TEXT
    if isinstance(result, Mapping):
        return ResultType(json.dumps(result), json.loads)
    if _is_pydantic(result):
        return ResultType(json.dumps(result.model_json_schema()), result.model_validate_json)
    definitions: dict[str, Any] = {}
    schema = _without_definitions(schema_of(result), definitions)
    schema |= {"$defs": definitions} if definitions else {}
    return ResultType(json.dumps(schema), lambda text: build(result, json.loads(text)))


def _without_definitions(schema: Any, definitions: dict[str, Any]) -> Any:
    """Returns the schema without the `$defs` of pydantic models in it, whose references are from the root.

    Raises TypeError for two models of one name.
    """
    if isinstance(schema, list):
        return [_without_definitions(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    for name, definition in schema.get("$defs", {}).items():
        if definitions.setdefault(name, definition) != definition:
            raise TypeError(f"the result has two pydantic models named {name}: rename one of them")
    return {name: _without_definitions(each, definitions) for name, each in schema.items() if name != "$defs"}


def _is_pydantic(value: Any) -> bool:
    return hasattr(value, "model_json_schema") and hasattr(value, "model_validate_json")


# Schemas.


def schema_of(kind: Any, within: tuple[Any, ...] = ()) -> dict[str, Any]:
    """Returns the JSON Schema of a type. Raises TypeError. `within`: the types around it, to notice recursion.

    An `Annotated[T, "text"]` gives the schema the description that the model reads.
    """
    if kind in within:
        raise TypeError(f"{kind!r} contains itself: use a pydantic model for a recursive result")
    if _is_pydantic(kind):
        return dict(kind.model_json_schema())
    if _is_structure(kind):
        return _object_schema(kind, (*within, kind))
    if kind is Any or kind in _PLAIN:
        return dict(_PLAIN.get(kind, {}))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    return _generic_schema(kind, within)


def _generic_schema(kind: Any, within: tuple[Any, ...]) -> dict[str, Any]:
    """Returns the schema of a type with arguments, for example list[int]."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is Annotated:
        texts = [each for each in arguments[1:] if isinstance(each, str)]
        return schema_of(arguments[0], within) | ({"description": " ".join(texts)} if texts else {})
    if origin in {NotRequired, Required}:
        return schema_of(arguments[0], within)
    if origin in {Union, types.UnionType}:
        return {"anyOf": [schema_of(each, within) for each in arguments]}
    if origin in _LISTS:
        return {"type": "array", "items": schema_of(arguments[0], within)}
    if origin is dict and arguments[0] is str:
        return {"type": "object", "additionalProperties": schema_of(arguments[1], within)}
    raise TypeError(f"{kind!r} cannot be the type of a result: use {_SUPPORTED}")


def _is_structure(kind: Any) -> bool:
    return isinstance(kind, type) and (is_dataclass(kind) or is_typeddict(kind))


def _field_types(kind: type) -> dict[str, Any]:
    """Returns the types of the fields, of a dataclass those that its constructor takes. Raises TypeError."""
    annotations = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        return annotations
    if arguments := [name for name, annotation in annotations.items() if isinstance(annotation, InitVar)]:
        raise TypeError(f"{kind.__name__}.{arguments[0]} is an InitVar, which is not a field: use a pydantic model")
    return {field.name: annotations[field.name] for field in fields(kind) if field.init}


def _object_schema(kind: type, within: tuple[Any, ...]) -> dict[str, Any]:
    field_types = _field_types(kind)
    return {
        "type": "object",
        "title": kind.__name__,
        "properties": {name: schema_of(hint, within) for name, hint in field_types.items()},
        "required": [name for name in field_types if name in _required_names(kind)],
        "additionalProperties": False,
    }


def _required_names(kind: type) -> frozenset[str]:
    if not is_typeddict(kind):
        return frozenset(
            field.name
            for field in fields(kind)
            if field.init and field.default is MISSING and field.default_factory is MISSING
        )
    # Python fills in __required_keys__ before it reads annotations that are strings: NotRequired may be left out there.
    of_class: frozenset[str] = vars(kind)["__required_keys__"]
    marks = {name: get_origin(each) for name, each in get_type_hints(kind, include_extras=True).items()}
    return frozenset(
        name for name, mark in marks.items() if mark is Required or (name in of_class and mark is not NotRequired)
    )


# Values.


def build(kind: Any, value: Any) -> Any:
    """Returns a JSON value as a value of the type. Raises ValueError if it does not fit."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Annotated, NotRequired, Required):
        return build(arguments[0], value)
    if origin in (Union, types.UnionType):
        return _first_fit(arguments, value)
    if origin is Literal:
        return _checked(value, value in arguments, kind)
    if origin in _LISTS:
        return [build(arguments[0], each) for each in _checked(value, isinstance(value, list), kind)]
    if origin is dict:
        members = _checked(value, isinstance(value, dict), kind)
        return {name: build(arguments[1], each) for name, each in members.items()}
    if _is_pydantic(kind) or _is_structure(kind):
        return _build_object(kind, value)
    if issubclass(kind, Enum):
        return kind(value)
    if kind in {datetime, date}:
        return kind.fromisoformat(_checked(value, isinstance(value, str), kind))
    return _build_plain(kind, value)


def _build_plain(kind: Any, value: Any) -> Any:
    """Returns a value of a plain type. JSON has one kind of numbers: 3 fits a float, and 3.0 fits an int."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float:
        return float(_checked(value, is_number, kind))
    if kind is int:
        return int(_checked(value, is_number and value == int(value), kind))
    return _checked(value, isinstance(value, kind), kind)


def _build_object(kind: Any, value: Any) -> Any:
    if _is_pydantic(kind):
        return kind.model_validate_json(json.dumps(value))
    members: dict[str, Any] = _checked(value, isinstance(value, dict), kind)
    field_types = _field_types(kind)
    absent, unknown = _required_names(kind) - members.keys(), members.keys() - field_types.keys()
    if absent or unknown:
        raise ValueError(f"{kind.__name__}: absent {sorted(absent)}, unknown {sorted(unknown)}")
    return kind(**{name: build(field_types[name], each) for name, each in members.items()})


def _first_fit(kinds: tuple[Any, ...], value: Any) -> Any:
    for kind in kinds:
        try:
            return build(kind, value)
        except ValueError:
            continue
    raise ValueError(f"{value!r} fits none of {kinds}")


def _checked(value: Any, fits: bool, kind: Any) -> Any:
    if not fits:
        raise ValueError(f"{value!r} is not a valid {getattr(kind, '__name__', kind)}")
    return value
