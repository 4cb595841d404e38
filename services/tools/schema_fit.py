"""A quick check that accepts arguments which plainly fit a plain schema, and says nothing about any others.

The full validator walks the schema for every call. Most calls fit, and most schemas use a few keywords. For those, this
check is compiled once, as functions. "No" means "ask the validator": only the validator refuses, and words a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from jsonschema import Draft4Validator, Draft6Validator, Draft7Validator, Draft201909Validator, Draft202012Validator

Fits = Callable[[Any], bool]
"""True: the value fits the schema. False: unknown."""

_DRAFTS: Final = (
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
)
"""The drafts that give these keywords the meaning that this module gives them."""
_MAX_DEPTH: Final = 8
_ANNOTATIONS: Final = frozenset(("title", "description", "default", "examples", "$comment", "deprecated"))
_KEYWORDS: Final = {
    "string": frozenset(("minLength", "maxLength", "enum")),
    "integer": frozenset(("minimum", "maximum")),
    "number": frozenset(("minimum", "maximum")),
    "boolean": frozenset[str](),
    "array": frozenset(("items", "minItems", "maxItems")),
    "object": frozenset(("properties", "required", "additionalProperties")),
}


def compile_fit(kind: Any, schema: Any) -> Fits:
    """Returns the check of a valid schema of the draft `kind`, a validator class of jsonschema."""
    if kind not in _DRAFTS or not isinstance(schema, dict):
        return _unknown
    named_draft = {name: value for name, value in schema.items() if name != "$schema"}
    return _compiled({"type": "object", **named_draft}, _MAX_DEPTH)


def _unknown(_value: Any) -> bool:
    return False


def _compiled(schema: Any, depth: int) -> Fits:
    """Returns the check of a schema, `_unknown` if it has a keyword or a nesting that this module does not know."""
    kind = schema.get("type") if isinstance(schema, dict) and depth else None
    if (
        not isinstance(kind, str)
        or kind not in _KEYWORDS
        or not schema.keys() - _ANNOTATIONS - {"type"} <= _KEYWORDS[kind]
    ):
        return _unknown
    return _COMPILERS[kind](schema, depth)


def _text(schema: Mapping[str, Any], _depth: int) -> Fits:
    least, most, options = schema.get("minLength", 0), schema.get("maxLength"), schema.get("enum")
    if options is not None:
        words = frozenset(option for option in options if isinstance(option, str))
        return lambda value: type(value) is str and value in words and least <= len(value) and _up_to(most, len(value))
    return lambda value: type(value) is str and least <= len(value) and _up_to(most, len(value))


def _number(types: tuple[type, ...]) -> Callable[[Mapping[str, Any], int], Fits]:
    def compiled(schema: Mapping[str, Any], _depth: int) -> Fits:
        least, most = schema.get("minimum"), schema.get("maximum")
        # type() and not isinstance: a bool is an int in Python, and no number in JSON.
        return lambda value: type(value) in types and (least is None or least <= value) and _up_to(most, value)

    return compiled


def _boolean(_schema: Mapping[str, Any], _depth: int) -> Fits:
    return lambda value: type(value) is bool


def _array(schema: Mapping[str, Any], depth: int) -> Fits:
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    fits = _compiled(schema["items"], depth - 1) if "items" in schema else _anything
    return lambda value: (
        type(value) is list and least <= len(value) and _up_to(most, len(value)) and all(map(fits, value))
    )


def _object(schema: Mapping[str, Any], depth: int) -> Fits:
    required, others = schema.get("required", ()), schema.get("additionalProperties", True)
    fit_of_other = (
        {True: _anything, False: _unknown}[others] if isinstance(others, bool) else _compiled(others, depth - 1)
    )
    fits = {name: _compiled(part, depth - 1) for name, part in schema.get("properties", {}).items()}

    def check(value: Any) -> bool:
        if type(value) is not dict:
            return False
        for name in required:
            if name not in value:
                return False
        return all(fits.get(name, fit_of_other)(part) for name, part in value.items())

    return check


def _anything(_value: Any) -> bool:
    return True


def _up_to(most: float | None, value: float) -> bool:
    return most is None or value <= most


_COMPILERS: Final[dict[str, Callable[[Mapping[str, Any], int], Fits]]] = {
    "string": _text,
    "integer": _number((int,)),
    "number": _number((int, float)),
    "boolean": _boolean,
    "array": _array,
    "object": _object,
}
