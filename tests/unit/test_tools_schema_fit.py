"""The quick check of arguments: it accepts nothing that the validator refuses, and the usual arguments of our tools."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft3Validator, Draft4Validator, Draft7Validator, Draft202012Validator

from services.tools.schema_fit import compile_fit
from services.tools.schemas import Schema
from services.tools.tool import define
from tenure.domain.tools import EffectClass
from tests.support.examples import examples

ANYTHING: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-3, 3) | st.text("ab", max_size=3) | st.just([])
)
NUMBERS = st.integers(-3, 3) | st.floats(-3, 3) | st.booleans()
COUNTS = st.integers(0, 3)
KEYWORDS = {
    "minLength": COUNTS,
    "maxLength": COUNTS,
    "minimum": NUMBERS.filter(lambda bound: not isinstance(bound, bool)),
    "maximum": NUMBERS.filter(lambda bound: not isinstance(bound, bool)),
    "minItems": COUNTS,
    "maxItems": COUNTS,
    "enum": st.lists(ANYTHING, min_size=1, max_size=4),
    "pattern": st.sampled_from(["^a", "b$"]),  # from here on: keywords that the check leaves to the validator
    "const": ANYTHING,
    "multipleOf": st.just(2),
    "not": st.just({"type": "string"}),
}


def typed(kind: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Pairs of a schema of a type and a value, mostly of that type."""
    return st.tuples(st.fixed_dictionaries({"type": st.just(kind)}, optional=KEYWORDS), values | values | ANYTHING)


SCALARS = (
    typed("string", st.text("ab\U0001f600", max_size=4))
    | typed("integer", NUMBERS)
    | typed("number", NUMBERS)
    | typed("boolean", ANYTHING)
)


def containers(pairs: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(in_list, st.lists(pairs, min_size=1, max_size=3), COUNTS) | st.builds(
        in_object,
        st.dictionaries(st.sampled_from("abc"), pairs, min_size=1),
        st.sets(st.sampled_from("abcd")),
        st.sets(st.sampled_from("abcd"), max_size=1),
        st.booleans() | st.just({"type": "string"}),
    )


def in_list(pairs: list[Any], most: int) -> Any:
    return {"type": "array", "items": pairs[0][0], "maxItems": most}, [value for _, value in pairs]


def in_object(pairs: dict[str, Any], described: set[str], required: set[str], others: Any) -> Any:
    properties = {name: schema for name, (schema, _) in pairs.items() if name in described}
    schema = {"type": "object", "properties": properties, "required": sorted(required), "additionalProperties": others}
    return schema, {name: value for name, (_, value) in pairs.items()}


@settings(max_examples=examples(20))
@given(SCALARS | st.recursive(SCALARS, containers, max_leaves=4))
def test_quick_check_accepts_only_valid_arguments(pair: Any) -> None:
    schema, value = pair
    if compile_fit(Draft202012Validator, {"type": "object", "properties": {"x": schema}})({"x": value}):
        assert Draft202012Validator(schema).is_valid(value)


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
def test_quick_check_accepts_plain_arguments(arguments: Any, accepted: bool, draft: Any) -> None:
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
