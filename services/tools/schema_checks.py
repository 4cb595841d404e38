"""How a stranger's schema is checked and applied: within a number of steps, and without its regular expressions.

A schema of one kilobyte can refer to itself so that checking arguments takes for ever, one pattern can make a match
take hours, and a list of a thousand objects that have to differ is compared for seconds, all of it in one piece of work
that nothing interrupts. The tool checks its arguments itself anyway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from time import thread_time
from typing import Any, Final

import attrs
from jsonschema import ValidationError, validators
from jsonschema_specifications import REGISTRY as SPECIFICATIONS  # type: ignore[import-untyped]  # it has no stubs

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
        for name, found in merged.items():
            found.update(_within(part.get(name, {})))
    return bounded(kind)({"$schema": whole["$schema"], "type": ["object", "boolean"], **merged})


def _beside(address: str, reference: str) -> str:
    return f"{address.rpartition('/')[0]}/{reference}"


def _within(part: Any) -> Any:
    """With every reference to another of the documents as one to the one they have become."""
    if isinstance(part, list):
        return [_within(one) for one in part]
    if not isinstance(part, dict):
        return part
    told: dict[str, Any] = {}
    for name, value in part.items():
        if name in {"$ref", "$dynamicRef", "$recursiveRef"} and isinstance(value, str):
            told["$ref"] = f"#/$defs/{value.rpartition('/')[2]}" if "/$defs/" in value else "#"
        elif name not in {"$anchor", "$dynamicAnchor", "$id"} or not isinstance(value, str):
            told[name] = _within(value)
    return told


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
