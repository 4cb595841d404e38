"""The quick check of arguments: it accepts nothing that the validator refuses, and the usual arguments of our tools."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft3Validator, Draft4Validator, Draft7Validator, Draft202012Validator

from services.tools.schema_fit import compile_fit
from services.tools.schemas import Schema
from services.tools.tool import define
from tenure.domain.tools import EffectClass

NAMES = st.sampled_from(["a", "b", "c"])
BOUNDS = st.integers(-2, 3) | st.floats(-2, 3)
COUNTS = st.integers(0, 3)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-4, 4) | st.floats(-4, 4) | st.text("ab\U0001f600", max_size=4),
    lambda part: st.lists(part, max_size=4) | st.dictionaries(NAMES, part, max_size=3),
    max_leaves=6,
)


def schemas(part: Any) -> Any:
    """Schemas of every type with each keyword that the check knows, and with some that it does not know."""
    common = {"description": st.just("d"), "enum": st.lists(VALUES, min_size=1, max_size=4), "const": VALUES}
    unknown = {
        "pattern": st.sampled_from(["^a", "b$"]),
        "multipleOf": st.just(2),
        "not": part,
        "anyOf": st.lists(part, min_size=1),
    }
    known = {
        "minLength": COUNTS,
        "maxLength": COUNTS,
        "minimum": BOUNDS,
        "maximum": BOUNDS,
        "items": part,
        "minItems": COUNTS,
        "maxItems": COUNTS,
        "properties": st.dictionaries(NAMES, part, max_size=3),
        "required": st.lists(NAMES, max_size=2, unique=True),
        "additionalProperties": st.booleans() | part,
    }
    types = st.sampled_from(["string", "integer", "number", "boolean", "array", "object", "null"])
    typed = st.fixed_dictionaries(
        {"type": types | st.lists(types, min_size=1, max_size=2, unique=True)}, optional=known
    )
    return typed | st.fixed_dictionaries({"type": types}, optional={**common, **unknown, **known}) | st.booleans()


SCHEMAS = st.recursive(st.fixed_dictionaries({"type": st.sampled_from(["string", "integer"])}), schemas, max_leaves=5)


@given(SCHEMAS.filter(lambda schema: isinstance(schema, dict)), VALUES)
def test_it_accepts_nothing_that_the_validator_refuses(schema: Any, value: Any) -> None:
    if compile_fit(Draft202012Validator, schema)(value):
        assert Draft202012Validator({"type": "object", **schema}).is_valid(value)


PLAIN = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1, "maxLength": 5, "description": "what to search"},
        "count": {"type": "integer", "minimum": 1, "maximum": 3, "default": 2},
        "kind": {"type": "string", "enum": ["one", "two"]},
        "names": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "deep": {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]},
        "ratio": {"type": "number"},
        "named": {"type": "string", "pattern": "^a"},
    },
    "required": ["query"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("arguments", "accepted"),
    [
        ({"query": "q"}, True),
        ({"query": "q", "count": 3, "kind": "two", "names": ["a"], "deep": {"on": True}, "ratio": 0.5}, True),
        ({"query": "q", "named": "a"}, False),  # it fits, and only the validator matches patterns
        ({}, False),
        ({"query": ""}, False),
        ({"query": "longer"}, False),
        ({"query": 1}, False),
        ({"query": "q", "count": True}, False),
        ({"query": "q", "count": 4}, False),
        ({"query": "q", "kind": "three"}, False),
        ({"query": "q", "names": ["a", 1]}, False),
        ({"query": "q", "deep": {}}, False),
        ({"query": "q", "more": 1}, False),
    ],
)
@pytest.mark.parametrize("draft", [Draft4Validator, Draft7Validator, Draft202012Validator])
def test_it_accepts_plain_arguments_of_a_plain_schema(arguments: Any, accepted: bool, draft: Any) -> None:
    assert compile_fit(draft, PLAIN)(arguments) is accepted


def test_a_draft_with_other_keywords_is_left_to_its_validator() -> None:
    assert not compile_fit(Draft3Validator, {"type": "object"})({})


def test_arguments_that_plainly_fit_are_not_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways: the validator is asked about all others, and it words the refusal."""
    schema = Schema(define("t", EffectClass.PURE, "d", {"a": {"type": "string"}}, required=("a",)).input_schema_json)
    assert schema.problems({"a": 1}) == ["a: 1 is not of type 'string'"]
    monkeypatch.setattr(schema, "_validator", None)
    assert schema.problems({"a": "x"}) == []


def test_a_deep_schema_is_left_to_the_validator() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(2000):
        deep = {"type": "object", "properties": {"a": deep}}
    value: Any = "x"
    for _ in range(20):
        value = {"a": value}
    assert not compile_fit(Draft202012Validator, deep)(value)
