"""How a stranger's schema is applied: within a number of steps, and without its regular expressions.

A schema of one kilobyte can refer to itself so that checking it takes for ever, and one pattern can make a match take
hours, all of it in one piece of work that nothing interrupts. The tool checks its arguments itself anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Final

from jsonschema import validators

MOST_STEPS: Final = 50_000
_PART_OF_A_STEP: Final = 4
_MOST_COMPARED: Final = 1000
_steps: ContextVar[list[int]] = ContextVar("steps")

Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]


class TooManySteps(Exception):  # noqa: N818  what is known about the schema, or about the arguments
    """Applying the schema was given up."""


@contextmanager
def counted() -> Iterator[None]:
    """Raises TooManySteps inside, when the schemas applied there take more than MOST_STEPS."""
    token = _steps.set([MOST_STEPS])
    try:
        yield
    finally:
        _steps.reset(token)


@cache
def bounded(kind: Any) -> Any:
    """The same draft, counting; to be used inside of `counted`."""
    changed: dict[str, Keyword] = {
        "pattern": _nothing,
        "patternProperties": _nothing,
        "additionalProperties": _unless_patterns(kind.VALIDATORS["additionalProperties"]),
        "unevaluatedProperties": _nothing,
        "uniqueItems": _when_short(kind.VALIDATORS["uniqueItems"]),
    }
    known = {name: changed.get(name, keyword) for name, keyword in kind.VALIDATORS.items()}
    extend: Any = validators.extend  # untyped
    return extend(kind, {name: _counting(keyword) for name, keyword in known.items()})


def _counting(keyword: Keyword) -> Keyword:
    def applied(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        steps = _steps.get()
        steps[0] -= 1 + (len(value) // _PART_OF_A_STEP if isinstance(value, list | dict) else 0)
        if steps[0] < 0:
            raise TooManySteps
        yield from keyword(validator, value, instance, schema) or ()

    return applied


def _nothing(_validator: Any, _value: Any, _instance: Any, _schema: Any) -> Iterator[Any]:
    return iter(())


def _unless_patterns(keyword: Keyword) -> Keyword:
    def applied(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if "patternProperties" not in schema:
            yield from keyword(validator, value, instance, schema) or ()

    return applied


def _when_short(keyword: Keyword) -> Keyword:
    def applied(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if not isinstance(instance, list) or len(instance) <= _MOST_COMPARED:
            yield from keyword(validator, value, instance, schema) or ()

    return applied
