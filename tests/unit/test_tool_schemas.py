"""Definitions of tools for models: rewritten so that every provider accepts them, and the arguments turned back."""

from __future__ import annotations

import json
from copy import deepcopy
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from devstack.simulator.tool_checks import anthropic_refusal, openai_refusal
from services.tools.schemas import Schema, untrusted_schema
from tenure.domain.tool_schemas import WRAPPER, refused_tools, shown_schema
from tests.support.hostile_tools import SCHEMAS, random_schema

NAMES = ["alpha", "beta", "gamma"]
KEYS = st.sampled_from(["a", "b", "_filter", "$filter", "filter[id]", "filter_id_", "", "k" * 70, "é"]) | st.text(
    max_size=3
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


def refusals(schema: Any) -> list[str]:
    tool = {"name": "t", "input_schema": schema}
    return [refusal for refusal in (anthropic_refusal(0, tool), openai_refusal(0, tool)) if refusal]


@given(
    keys=st.sets(KEYS, max_size=6),
    top=st.sampled_from(
        [{}, {"anyOf": [{}]}, {"not": {"required": ["$no"]}}, {"dependentRequired": {"$filter": ["a"]}}]
    ),
    arguments=st.dictionaries(KEYS, VALUES, max_size=5),
)
def test_arguments_survive_the_way_to_the_model_and_back(
    keys: set[str], top: dict[str, Any], arguments: dict[str, Any]
) -> None:
    schema = {"type": "object", "properties": {key: {} for key in keys}, "required": sorted(keys)[:1], **top}
    shown = shown_schema(schema)
    assert not refusals(shown.schema)
    others = {key: value for key, value in arguments.items() if key not in shown.own_keys}
    assert shown.own_arguments(shown.shown_arguments(others)) == others
    assert shown.own_arguments(deepcopy(others)) == others or shown.is_wrapped  # in the tool's own form


@given(st.integers(0, 2**32))
def test_a_rewritten_schema_means_the_same(seed: int) -> None:
    """The shown arguments fit the shown schema if and only if the tool's own arguments fit its own schema."""
    random = Random(seed)
    schema = random_schema(random)
    if not isinstance(schema, dict):
        return
    schema["type"] = "object"
    schema.pop("$schema", None)
    try:
        Draft202012Validator.check_schema(schema)
        untrusted_schema(json.dumps(schema))
    except (ValueError, ValidationError, Exception):  # noqa: BLE001  another test's matter
        return
    shown = shown_schema(schema)
    assert not refusals(shown.schema)
    for _ in range(5):
        arguments: dict[str, Any] = {
            key: random.choice(["x", 1, None, [], {}, ["x"]]) for key in random.sample(["a", "b", "$filter"], 2)
        }
        if not shown.own_keys.keys().isdisjoint(arguments):
            continue
        own, of_model = (fits(schema, arguments), fits(shown.schema, shown.shown_arguments(arguments)))
        assert own == of_model, (schema, shown.schema, arguments)


def fits(schema: Any, value: Any) -> bool | str:
    try:
        return bool(Draft202012Validator(schema).is_valid(value))
    except Exception as error:  # noqa: BLE001  a reference to nothing
        return type(error).__name__


def compiled(schema: Any) -> Schema | str:
    """The schema, or why it is left out."""
    try:
        return untrusted_schema(json.dumps(schema))
    except ValueError as refusal:
        return str(refusal)


def test_each_hostile_schema_is_accepted_or_explained() -> None:
    results = {name: compiled(schema) for name, schema in SCHEMAS.items()}
    sentences = {name: result for name, result in results.items() if isinstance(result, str)}
    shown = {name: json.loads(result.shown_json) for name, result in results.items() if isinstance(result, Schema)}
    for name, sentence in sentences.items():
        assert sentence.startswith(("its schema ", "to check its schema ")), name
        assert len(sentence.encode()) < 500, name
    refused = {name: refusals(schema) for name, schema in shown.items() if refusals(schema)}
    assert list(refused) == ["bad_regex"]  # to compile the regular expressions of strangers would cost too much
    assert all(refused_tools(refusal, ["t"]) == ("t",) for refusal in refused["bad_regex"])
    assert shown.keys() >= {
        *("top_any", "top_one", "top_all", "top_not", "top_ref", "dollar", "brackets", "same_after", "long_key"),
        *("empty_key", "dependent", "no_items", "draft_4", "draft_7", "recursive", "type_list", "words"),
    }


def test_a_choice_at_the_top_is_wrapped_with_its_references() -> None:
    shown = shown_schema(
        {
            "type": "object",
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            "properties": {"a": {"$ref": "#/$defs/word"}, "b": {"$ref": "#"}},
            "$defs": {"word": {"type": "string"}},
        }
    )
    assert list(shown.schema["properties"]) == [WRAPPER]
    assert fits(shown.schema, {WRAPPER: {"b": {"a": "x"}}}) is True
    assert fits(shown.schema, {WRAPPER: {"b": {"a": 7}}}) is False
    assert shown.own_arguments({WRAPPER: {"a": "x"}}) == {"a": "x"}
    assert shown.own_arguments({"a": "x"}) == {"a": "x"}


def test_a_renamed_key_says_its_own_name() -> None:
    shown = shown_schema({"type": "object", "properties": {"$top": {"description": "How many."}}, "required": ["$top"]})
    assert shown.schema["properties"] == {"_top": {"description": "How many. The tool calls it '$top'."}}
    assert shown.schema["required"] == ["_top"]
    assert shown.own_arguments({"_top": 3, "x": 1}) == {"$top": 3, "x": 1}
    assert shown.own_arguments({"_top": 3, "$top": 1}) == {"_top": 3, "$top": 1}


def test_a_plain_schema_keeps_its_text() -> None:
    text = '{"type": "object",  "properties": {"a": {"type": "array", "items": {"type": "string"}}}}'
    assert untrusted_schema(text).shown_json == text


@pytest.mark.parametrize(
    ("message", "tools"),
    [
        ("tools.1.custom.input_schema: JSON schema is invalid.", ["beta"]),
        ("tools.2.custom.input_schema.properties: Property keys should match pattern", ["gamma"]),
        ("tools.0.custom.name: String should match pattern", ["alpha"]),
        ("Invalid schema for function 'beta': In context=('properties', 'x'), array schema missing items.", ["beta"]),
        ("Invalid 'tools[1].function.description': string too long. Expected", ["beta"]),
        ("Invalid 'tools[0].function.parameters': x", ["alpha"]),
        (
            "* tools[0].function_declarations[2].name: x\n* tools[0].function_declarations[1].parameters.items: no",
            ["gamma", "beta"],
        ),
        ("tools.1.custom.cache_control: Extra inputs are not permitted", []),
        ("tools.7.custom.input_schema: x", []),
        ("tools: Tool names must be unique.", []),
        ("messages.1.content.0.tool_use.name: String should have at most 200 characters", []),
        ("Invalid schema for function 'delta': x", []),
    ],
)
def test_a_refusal_names_the_tools_that_it_blames(message: str, tools: list[str]) -> None:
    assert refused_tools(message, NAMES) == tuple(tools)
