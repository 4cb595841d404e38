"""JSON schemas of tools' arguments, also of strangers' tools: checked when they come, and never reaching outside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for
from referencing import Registry as Documents
from referencing.exceptions import Unresolvable

from services.tools.tool import Arguments

__all__ = ("Arguments", "Schema", "parse_arguments", "shortened")
_MOST_PROBLEMS: Final = 5
_LONGEST_PROBLEM: Final = 300


class Schema:
    """A schema of the draft that it names, 2020-12 if it names none. Raises ValueError for one that is none, or that
    refers to another document: that would be fetched from wherever a stranger says.
    """

    def __init__(self, schema_json: str) -> None:
        try:
            schema = json.loads(schema_json)
            kind = validator_for(schema if isinstance(schema, dict) else True, default=Draft202012Validator)
            kind.check_schema(schema)
            reference = next(_references_outside(schema), None)
        except (ValueError, RecursionError, SchemaError) as error:
            raise ValueError(f"its schema is none: {shortened(str(error).partition(chr(10))[0])}") from error
        if not isinstance(schema, dict) or schema.get("type", "object") != "object":
            raise ValueError("its schema is not of an object")
        if reference is not None:
            raise ValueError(f"its schema refers to another document: {shortened(reference)}")
        documents: Documents[Any] = Documents()
        self._validator = kind(schema, registry=documents)

    def problems(self, arguments: Arguments) -> list[str]:
        """The first few; a long list of wrong items has as many."""
        try:
            errors = list(islice(self._validator.iter_errors(arguments), _MOST_PROBLEMS + 1))
        except (RecursionError, Unresolvable) as error:
            return [f"the tool's own schema cannot be applied to them ({type(error).__name__})"]
        shown = [f"{_place(error.json_path)}{shortened(error.message)}" for error in errors[:_MOST_PROBLEMS]]
        return [*shown, "and more"] if len(errors) > _MOST_PROBLEMS else shown


def parse_arguments(text: str) -> Arguments | None:
    """The object; None for anything else. Python's parser would take NaN, and gives up on very deep nesting."""
    try:
        parsed = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def shortened(message: str) -> str:
    """The library quotes the value; one of a megabyte helps nobody."""
    return message if len(message) <= _LONGEST_PROBLEM else f"{message[:_LONGEST_PROBLEM]}…"


def _references_outside(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key in {"$ref", "$dynamicRef", "$recursiveRef"} and isinstance(value, str) and not value.startswith("#"):
                yield value
            yield from _references_outside(value)
    elif isinstance(schema, list):
        for one in schema:
            yield from _references_outside(one)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _place(json_path: str) -> str:
    return "" if json_path == "$" else f"{json_path.removeprefix('$.')}: "
