"""JSON schemas of tools' arguments, also of strangers' tools: checked when they come, and never reaching outside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from referencing import Registry as Documents

from services.tools.schema_checks import TooManySteps, bounded, counted, fault
from services.tools.tool import Arguments
from tenure.domain.strict_json import strict_json

__all__ = ("Arguments", "Schema", "parse_arguments", "shortened", "strangers_schema")
_MOST_PROBLEMS: Final = 5
_LONGEST_PROBLEM: Final = 300


class Schema:
    """A schema of the draft that it names, 2020-12 if it names none. Raises ValueError for one that is none, or that
    refers to another document: that would be fetched from wherever a stranger says.

    `is_ours` False: applied within bounds, and without its regular expressions (schema_checks.py).
    """

    def __init__(self, schema_json: str, *, is_ours: bool = True) -> None:
        try:
            schema = json.loads(schema_json)
            kind = validator_for(schema if isinstance(schema, dict) else True, default=Draft202012Validator)
            if is_ours:
                kind.check_schema(schema)
            elif problem := fault(kind, schema, len(schema_json)):
                raise ValueError(problem)  # noqa: TRY301  told as what check_schema raises is
            reference = next(_references_outside(schema), None)
        except TooManySteps:
            raise ValueError("checking its schema takes too long") from None
        except Exception as error:
            told = shortened(str(error).partition(chr(10))[0])
            raise ValueError(f"its schema is none: {told or type(error).__name__}") from error
        if not isinstance(schema, dict) or schema.get("type", "object") != "object":
            raise ValueError("its schema is not of an object")
        if reference is not None:
            raise ValueError(f"its schema refers to another document: {shortened(reference)}")
        documents: Documents[Any] = Documents()
        self._validator = (kind if is_ours else bounded(kind))(schema, registry=documents)

    def problems(self, arguments: Arguments) -> list[str]:
        """The first few; a long list of wrong items has as many."""
        try:
            with counted():
                errors = list(islice(self._validator.iter_errors(arguments), _MOST_PROBLEMS + 1))
        except TooManySteps:
            return ["checking them against the tool's schema takes too long: give less at once"]
        except Exception as error:  # noqa: BLE001  a reference can make anything of the schema a schema
            return [f"the tool's own schema cannot be applied to them ({type(error).__name__})"]
        shown = [f"{_place(error.json_path)}{shortened(error.message)}" for error in errors[:_MOST_PROBLEMS]]
        return [*shown, "and more"] if len(errors) > _MOST_PROBLEMS else shown


@lru_cache(maxsize=1024)
def strangers_schema(schema_json: str) -> Schema:
    """The same for each text: a source that tells its tools anew has mostly told them before."""
    return Schema(schema_json, is_ours=False)


def parse_arguments(text: str) -> Arguments | None:
    """The object; None for anything else. Also for what nests too deeply to be read."""
    try:
        parsed = strict_json(text)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def shortened(message: str) -> str:
    """The library quotes the value: one of a megabyte helps nobody, and half a character is in no message."""
    message = message.encode(errors="backslashreplace").decode()
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


def _place(json_path: str) -> str:
    return "" if json_path == "$" else f"{shortened(json_path.removeprefix('$.'))}: "
