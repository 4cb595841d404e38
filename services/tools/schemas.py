"""Checks arguments against the JSON schemas of tools, also of untrusted sources.

A schema is checked when its tool is added, and never refers to another document. An untrusted schema is applied within
a limited number of steps and without its regular expressions. The model is shown it in a form that every provider
accepts (tenure/domain/tool_schemas.py).
"""

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
from jsonschema import Draft4Validator, Draft7Validator, Draft202012Validator, ValidationError, validators
from jsonschema.validators import validator_for
from jsonschema_specifications import REGISTRY as SPECIFICATIONS  # type: ignore[import-untyped]  # it has no stubs
from referencing import Registry as Documents

from services.tools.schema_fit import compile_fit
from services.tools.tool import Arguments
from tenure.domain.tool_arguments import MAX_JSON_DEPTH, is_deeper, storable_json, strict_json
from tenure.domain.tool_schemas import ShownSchema, shown_schema

# Untrusted schemas: the step counter, and the validators that use it.

MAX_STEPS: Final = 50_000
MAX_SECONDS: Final = 1.0
"""Processor time. Some steps, such as a reference by the name of an anchor, cost as much as thousands of others."""

_STEPS_A_CHARACTER: Final = 4
_MIN_STEPS: Final = 2000
_PART_OF_A_STEP: Final = 4


@dataclass(slots=True)
class _Left:
    """The steps and the processor time that a check has left."""

    steps: int
    until: float

    def take(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0 or thread_time() > self.until:
            raise TooManySteps


_left: ContextVar[_Left] = ContextVar("left")
Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]


class TooManySteps(Exception):  # noqa: N818  a finding about the schema or the arguments, not an error
    """The check was given up at its limit of steps or of time."""


@contextmanager
def counted(steps: int = MAX_STEPS) -> Iterator[None]:
    """Limits the schemas that the block applies: a check over the steps, or over MAX_SECONDS, raises TooManySteps."""
    token = _left.set(_Left(steps, thread_time() + MAX_SECONDS))
    try:
        yield
    finally:
        _left.reset(token)


def fault(kind: Any, schema: Any, characters: int) -> str:
    """Returns why a schema is invalid in this draft, or "". `characters`: its length. Raises TooManySteps."""
    with counted(_MIN_STEPS + _STEPS_A_CHARACTER * characters):
        error = next(_schema_of_schemas(kind).iter_errors(schema), None)
    return "" if error is None else str(error.message)


@cache
def bounded(kind: Any) -> Any:
    """Returns the validator of a draft with a step counter and without regular expressions. Use it inside `counted`."""
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
    # The library's `evolve` switches to the draft that a subschema names: a validator without the counter.
    counting.evolve = attrs.evolve
    return counting


@cache
def _schema_of_schemas(kind: Any) -> Any:
    """Returns the metaschema's validator, merged into one document.

    Newer drafts spread the metaschema over several documents; to follow their references takes a hundred times as long.
    """
    whole = kind.META_SCHEMA
    merged: dict[str, dict[str, Any]] = {"properties": {}, "$defs": {}}
    if "$vocabulary" not in whole:
        return bounded(kind)(whole)
    parts = [SPECIFICATIONS.contents(_sibling(whole["$id"], part["$ref"])) for part in whole["allOf"]]
    for part in [*parts, whole]:
        for name, result in merged.items():
            result.update(_localized(part.get(name, {})))
    return bounded(kind)({"$schema": whole["$schema"], "type": ["object", "boolean"], **merged})


def _sibling(address: str, reference: str) -> str:
    return f"{address.rpartition('/')[0]}/{reference}"


def _localized(part: Any) -> Any:
    """Returns the part with references to the other documents changed to references into the merged document."""
    if isinstance(part, list):
        return [_localized(item) for item in part]
    if not isinstance(part, dict):
        return part
    keywords: dict[str, Any] = {}
    for name, value in part.items():
        if name in {"$ref", "$dynamicRef", "$recursiveRef"} and isinstance(value, str):
            keywords["$ref"] = f"#/$defs/{value.rpartition('/')[2]}" if "/$defs/" in value else "#"
        elif name not in {"$anchor", "$dynamicAnchor", "$id"} or not isinstance(value, str):
            keywords[name] = _localized(value)
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
    """Compares the items' JSON texts, in time linear in the list. 1 and 1.0 count as different."""
    if value and isinstance(instance, list):
        texts = [json.dumps(item, sort_keys=True) for item in instance]
        if len(set(texts)) < len(texts):
            yield ValidationError(f"{instance!r} has non-unique elements")


_MAX_PROBLEMS: Final = 5
_LONGEST_PROBLEM: Final = 300


class Schema:
    """A compiled JSON schema of an object. Its draft is the one that it names, or 2020-12. One that names none and is
    not valid in 2020-12 may be of draft 7 or 4, if it is valid there.

    Raises ValueError for an invalid schema, for one that refers to another document (a source could make the service
    fetch from any address), and for one without a form that model providers accept. `is_ours` False: an untrusted
    schema. `is_checked`: a valid one, which is not checked again.
    `shown`: the form for the model. `shown_json`: its text.
    """

    def __init__(self, schema_json: str, *, is_ours: bool = True, is_checked: bool = False) -> None:
        try:
            schema = json.loads(schema_json) if is_ours else storable_json(schema_json)
            kind = validator_for(schema if isinstance(schema, dict) else True, default=Draft202012Validator)
            if is_ours and not is_checked:
                kind.check_schema(schema)
            elif not is_ours:
                kind = _valid_kind(kind, schema, len(schema_json))
            reference = next(_references_outside(schema), None)
        except TooManySteps:
            raise ValueError("checking its schema takes too long") from None
        except Exception as error:
            message = shortened(str(error).partition(chr(10))[0])
            raise ValueError(f"its schema is invalid: {message or type(error).__name__}") from error
        if not isinstance(schema, dict) or "object" not in _types_of(schema):
            raise ValueError("its schema does not describe an object")
        if reference is not None:
            raise ValueError(f"its schema refers to another document: {shortened(reference)}")
        self.shown = ShownSchema(schema) if is_ours else _shown(schema, kind, len(schema_json))
        self.shown_json = schema_json if self.shown.schema == schema else json.dumps(self.shown.schema)
        self._fits = compile_fit(kind, schema)
        documents: Documents[Any] = Documents()
        self._validator = (kind if is_ours else bounded(kind))(schema, registry=documents)

    def problems(self, arguments: Arguments) -> list[str]:
        """Returns the first _MAX_PROBLEMS violations, written for the model, and "and more" if there are more."""
        if self._fits(arguments):
            return []
        try:
            with counted():
                errors = list(islice(self._validator.iter_errors(arguments), _MAX_PROBLEMS + 1))
        except TooManySteps:
            return ["the check against the tool's schema takes too long: send less data in one call"]
        except Exception as error:  # noqa: BLE001  a reference can make any part of the schema act as a schema
            return [f"the tool's own schema cannot be applied to them ({type(error).__name__})"]
        shown = [f"{_place(error.json_path)}{shortened(error.message)}" for error in errors[:_MAX_PROBLEMS]]
        return [*shown, "and more"] if len(errors) > _MAX_PROBLEMS else shown


def _valid_kind(kind: Any, schema: Any, characters: int) -> Any:
    """Returns the draft in which the schema is valid. Raises ValueError, and TooManySteps."""
    problem = fault(kind, schema, characters)
    names_none = isinstance(schema, dict) and "$schema" not in schema
    for older in (Draft7Validator, Draft4Validator) if problem and names_none else ():
        if not fault(older, schema, characters):
            return older
    if problem:
        raise ValueError(problem)
    return kind


def _types_of(schema: dict[str, Any]) -> list[str]:
    types = schema.get("type", "object")
    return types if isinstance(types, list) else [types]


def _shown(schema: dict[str, Any], kind: Any, characters: int) -> ShownSchema:
    """Returns the form of a valid schema for the model. Raises ValueError if providers accept none."""
    try:
        shown = shown_schema(schema)
        # the rewriting keeps a schema of 2020-12 valid
        problem = "" if kind is Draft202012Validator else fault(Draft202012Validator, shown.schema, characters)
    except (TooManySteps, RecursionError):
        raise ValueError("to check its schema takes too long") from None
    if problem:
        shortened_problem = shortened(problem)
        raise ValueError(
            f"its schema does not fit JSON Schema 2020-12, which model providers demand: {shortened_problem}"
        )
    return shown


def built_in_schema(schema_json: str) -> Schema:
    """Returns the compiled schema of a built-in tool. Tests check them all: at each start it would take 0.1 s."""
    return Schema(schema_json, is_checked=True)


@lru_cache(maxsize=1024)
def untrusted_schema(schema_json: str) -> Schema:
    """Returns the compiled schema, cached by its text: a source that lists its tools again mostly repeats them."""
    return Schema(schema_json, is_ours=False)


def parse_arguments(text: str) -> Arguments | None:
    """Returns the JSON object of a text, or None for any other text, also for JSON that nests deeper than
    MAX_JSON_DEPTH: what walks the arguments later calls itself for each level.
    """
    try:
        parsed = strict_json(text)
    except (ValueError, RecursionError):
        return None
    return None if not isinstance(parsed, dict) or is_deeper(text, parsed, MAX_JSON_DEPTH) else parsed


def shortened(message: str) -> str:
    """Returns a message of at most _LONGEST_PROBLEM characters, without surrogates, which no protobuf string may have.

    The library quotes the value, which may have megabytes.
    """
    message = message.encode(errors="backslashreplace").decode()
    return message if len(message) <= _LONGEST_PROBLEM else f"{message[:_LONGEST_PROBLEM]}…"


def _references_outside(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key in {"$ref", "$dynamicRef", "$recursiveRef"} and isinstance(value, str) and not value.startswith("#"):
                yield value
            yield from _references_outside(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from _references_outside(item)


def _place(json_path: str) -> str:
    return "" if json_path == "$" else f"{shortened(json_path.removeprefix('$.'))}: "
