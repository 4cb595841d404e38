"""JSON schemas of tools' arguments, also of strangers' tools: checked when they come, and never reaching outside."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice
from time import thread_time
from typing import Any, Final

import attrs
from jsonschema import Draft202012Validator, ValidationError, validators
from jsonschema.validators import validator_for
from jsonschema_specifications import REGISTRY as SPECIFICATIONS  # type: ignore[import-untyped]  # it has no stubs
from referencing import Registry as Documents

from services.tools.tool import Arguments
from tenure.domain.tool_arguments import strict_json

__all__ = [
    "Arguments",
    "Schema",
    "parse_arguments",
    "shortened",
    "untrusted_schema",
]


# How a stranger's schema is checked and applied: within a number of steps, and without its regular expressions.

MOST_STEPS: Final = 50_000
MOST_SECONDS: Final = 1.0
"""Of processor time: some steps, such as a reference by an anchor's name, cost thousands of others."""

_STEPS_A_CHARACTER: Final = 4
_LEAST_STEPS: Final = 2000
_PART_OF_A_STEP: Final = 4


@dataclass(slots=True)
class _Left:
    """What checking may still take."""

    steps: int
    until: float

    def take(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0 or thread_time() > self.until:
            raise TooManySteps


_left: ContextVar[_Left] = ContextVar("left")
Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]


class TooManySteps(Exception):  # noqa: N818  what is known about the schema, or about the arguments
    """Applying the schema was given up."""


@contextmanager
def counted(steps: int = MOST_STEPS) -> Iterator[None]:
    """Raises TooManySteps inside, when the schemas applied there take more, or MOST_SECONDS."""
    token = _left.set(_Left(steps, thread_time() + MOST_SECONDS))
    try:
        yield
    finally:
        _left.reset(token)


def fault(kind: Any, schema: Any, characters: int) -> str:
    """What makes a schema of so many characters none of this draft; empty: nothing. Raises TooManySteps."""
    with counted(_LEAST_STEPS + _STEPS_A_CHARACTER * characters):
        error = next(_schema_of_schemas(kind).iter_errors(schema), None)
    return "" if error is None else str(error.message)


@cache
def bounded(kind: Any) -> Any:
    """The same draft, counting; to be used inside of `counted`."""
    changed: dict[str, Keyword] = {
        "pattern": _nothing,
        "patternProperties": _nothing,
        "additionalProperties": _unless_patterns(kind.VALIDATORS["additionalProperties"]),
        "unevaluatedProperties": _nothing,
        "unevaluatedItems": _nothing,
        "uniqueItems": _unique,
    }
    known = {name: changed.get(name, keyword) for name, keyword in kind.VALIDATORS.items()}
    extend: Any = validators.extend  # untyped
    counting = extend(kind, {name: _counting(keyword) for name, keyword in known.items()})
    # The library's own goes over to the draft that a part of the schema names: one that does not count.
    counting.evolve = attrs.evolve
    return counting


@cache
def _schema_of_schemas(kind: Any) -> Any:
    """In one document: newer drafts spread it over several, and following them takes a hundred times as long."""
    whole = kind.META_SCHEMA
    merged: dict[str, dict[str, Any]] = {"properties": {}, "$defs": {}}
    if "$vocabulary" not in whole:
        return bounded(kind)(whole)
    for part in [*(SPECIFICATIONS.contents(_beside(whole["$id"], one["$ref"])) for one in whole["allOf"]), whole]:
        for name, result in merged.items():
            result.update(_within(part.get(name, {})))
    return bounded(kind)({"$schema": whole["$schema"], "type": ["object", "boolean"], **merged})


def _beside(address: str, reference: str) -> str:
    return f"{address.rpartition('/')[0]}/{reference}"


def _within(part: Any) -> Any:
    """With every reference to another of the documents as one to the one they have become."""
    if isinstance(part, list):
        return [_within(one) for one in part]
    if not isinstance(part, dict):
        return part
    keywords: dict[str, Any] = {}
    for name, value in part.items():
        if name in {"$ref", "$dynamicRef", "$recursiveRef"} and isinstance(value, str):
            keywords["$ref"] = f"#/$defs/{value.rpartition('/')[2]}" if "/$defs/" in value else "#"
        elif name not in {"$anchor", "$dynamicAnchor", "$id"} or not isinstance(value, str):
            keywords[name] = _within(value)
    return keywords


def _counting(keyword: Keyword) -> Keyword:
    def applied(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _left.get().take(1 + _size(value) // _PART_OF_A_STEP + _size(instance) // _PART_OF_A_STEP)
        yield from keyword(validator, value, instance, schema) or ()

    return applied


def _size(value: Any) -> int:
    return len(value) if isinstance(value, list | dict | str) else 0


def _nothing(_validator: Any, _value: Any, _instance: Any, _schema: Any) -> Iterator[Any]:
    return iter(())


def _unless_patterns(keyword: Keyword) -> Keyword:
    def applied(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if "patternProperties" not in schema:
            yield from keyword(validator, value, instance, schema) or ()

    return applied


def _unique(_validator: Any, value: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    """By their texts, in a time that grows with the list alone; 1 and 1.0 count as two."""
    if value and isinstance(instance, list):
        texts = [json.dumps(one, sort_keys=True) for one in instance]
        if len(set(texts)) < len(texts):
            yield ValidationError(f"{instance!r} has non-unique elements")


_MOST_PROBLEMS: Final = 5
_LONGEST_PROBLEM: Final = 300


class Schema:
    """A schema of the draft that it names, 2020-12 if it names none. Raises ValueError for one that is none, or that
    refers to another document: that would be fetched from wherever a stranger says.

    `is_ours` False: applied within bounds, and without its regular expressions (schemas.py).
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
            message = shortened(str(error).partition(chr(10))[0])
            raise ValueError(f"its schema is none: {message or type(error).__name__}") from error
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
def untrusted_schema(schema_json: str) -> Schema:
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
