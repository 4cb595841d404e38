"""Schemas of strangers' tools: by their own draft, and never a reason to fetch anything."""

from __future__ import annotations

import json
from contextlib import suppress
from time import process_time
from typing import Any

import pytest

from services.tools.schemas import Schema, untrusted_schema

DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def test_a_schema_is_read_by_the_draft_that_it_names() -> None:
    tuples = {"type": "object", "properties": {"a": {"type": "array", "items": [{"type": "string"}]}}}
    assert Schema(json.dumps({"$schema": DRAFT_7, **tuples})).problems({"a": [1]}) == [
        "a[0]: 1 is not of type 'string'"
    ]
    with pytest.raises(ValueError, match="its schema is invalid"):
        Schema(json.dumps(tuples))  # in 2020-12 `items` is a schema, not a list


@pytest.mark.parametrize(
    "reference", ["http://127.0.0.1:1/a.json", "file:///etc/passwd", "other.json#/a", "urn:x:y", DRAFT_7]
)
@pytest.mark.parametrize("draft", [DRAFT_7, "https://json-schema.org/draft/2020-12/schema"])
def test_a_schema_that_refers_to_another_document_is_refused(reference: Any, draft: Any) -> None:
    schema = {"$schema": draft, "type": "object", "properties": {"a": {"items": {"$ref": reference}}}}
    with pytest.raises(ValueError, match="refers to another document"):
        Schema(json.dumps(schema))


def test_inner_references_work_and_broken_ones_are_reported() -> None:
    inside = {"type": "object", "$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}}
    assert Schema(json.dumps(inside)).problems({"a": "x"}) == ["a: 'x' is not of type 'integer'"]
    for broken in ({"$ref": "#"}, {"$ref": "#/$defs/none"}):
        [problem] = Schema(json.dumps({"type": "object", "allOf": [broken]})).problems({})
        assert "the tool's own schema cannot be applied" in problem


@pytest.mark.parametrize(
    "schema", ["nonsense", "3", '"x"', "[]", "true", '{"type": "string"}', '{"type": 3}', "[" * 100_000]
)
def test_schema_of_another_type_is_refused(schema: Any) -> None:
    with pytest.raises(ValueError, match="its schema"):
        Schema(schema)


def cpu_seconds_of(work: Any) -> float:
    before = process_time()
    work()
    return process_time() - before


def test_foreign_schema_has_a_bound_of_steps() -> None:
    doubling = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    bomb = json.dumps({"type": "object", "$defs": {**doubling, "d40": {}}, "$ref": "#/$defs/d0"})
    wide = json.dumps({"type": "object", "properties": {"a": {"items": {"enum": list(range(20_000))}}}})
    for schema, arguments in ((bomb, {}), (wide, {"a": [19_999] * 20_000})):
        texts: list[str] = []
        assert cpu_seconds_of(lambda s=schema, a=arguments, f=texts: f.extend(untrusted_schema(s).problems(a))) < 15
        assert texts == ["the check against the tool's schema takes too long: send less data in one call"]


def test_foreign_patterns_are_not_matched() -> None:
    slow = json.dumps({"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}})
    assert untrusted_schema(slow).problems({"a": "a" * 64 + "!"}) == []
    assert Schema(json.dumps({"type": "object", "properties": {"a": {"pattern": "^b$"}}})).problems({"a": "a"})
    named = {"type": "object", "patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}
    assert untrusted_schema(json.dumps(named)).problems({"a" * 64 + "!": 1}) == []
    left = {"type": "object", "patternProperties": {"^b": {}}, "unevaluatedProperties": False}
    assert untrusted_schema(json.dumps(left)).problems({"a": 1}) == []


def test_a_long_foreign_list_is_compared_with_itself() -> None:
    schema = untrusted_schema(json.dumps({"type": "object", "properties": {"a": {"uniqueItems": True}}}))
    assert schema.problems({"a": [1] * 1001})
    assert schema.problems({"a": list(range(1001))}) == []


def test_a_subschema_with_its_own_draft_has_the_same_bounds() -> None:
    for draft in ("https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"):
        slow = json.dumps({"type": "object", "properties": {"a": {"$schema": draft, "pattern": "^(a+)+$"}}})
        assert untrusted_schema(slow).problems({"a": "a" * 64 + "!"}) == []


DISTINCT = [{"a": number} for number in range(3000)]


@pytest.mark.parametrize(
    "parts",
    [
        {"a": {"type": DISTINCT}},
        {"$schema": "http://json-schema.org/draft-04/schema#", "a": {"enum": DISTINCT}},
        {f"p{number}": {"pattern": f"(?i:[\x00-\U0010ffff]){number}"} for number in range(8000)},
        {f"p{number}": {} for number in range(10_000)},
    ],
)
def test_foreign_schema_is_checked_in_bounded_time(parts: dict[str, object]) -> None:
    properties = {name: part for name, part in parts.items() if name != "$schema"}
    draft = parts.get("$schema", "https://json-schema.org/draft/2020-12/schema")
    schema = json.dumps({"$schema": draft, "type": "object", "properties": properties}, ensure_ascii=False)

    def take() -> None:
        with suppress(ValueError):
            untrusted_schema(schema)

    assert cpu_seconds_of(take) < 15


def test_unique_items_and_named_references_are_bounded() -> None:
    named = {"a": {"$anchor": "a"}, **{f"x{number}": {} for number in range(3000)}}
    for schema, arguments in (
        ({"properties": {"l": {"uniqueItems": True}}}, {"l": DISTINCT[:1000]}),
        ({"$defs": named, "allOf": [{"$ref": "#a"}] * 4000}, {}),
    ):
        compiled = untrusted_schema(json.dumps({"type": "object", **schema}))
        assert cpu_seconds_of(lambda c=compiled, a=arguments: c.problems(a)) < 15


def test_every_draft_is_known_by_its_own_schema() -> None:
    for draft in ("2020-12", "2019-09"):
        named = {"$schema": f"https://json-schema.org/draft/{draft}/schema", "type": "object"}
        untrusted_schema(json.dumps({**named, "properties": {"a": {"dependentRequired": {"x": ["y"]}}}}))
        wrongs: list[dict[str, Any]] = [
            {"minLength": -1},
            {"properties": []},
            {"required": "a"},
            {"allOf": [{"type": 1}]},
            {"$defs": 1},
        ]
        for wrong in wrongs:
            with pytest.raises(ValueError, match="its schema is invalid"):
                untrusted_schema(json.dumps({**named, "properties": {"a": wrong}}))


def test_foreign_schema_is_applied() -> None:
    schema = json.dumps(
        {
            "type": "object",
            "properties": {
                "a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
                "b": {"minimum": 2},
            },
            "required": ["a"],
            "additionalProperties": False,
        }
    )
    for arguments in ({"a": [1, 2], "b": 2}, {}, {"a": [1, 1]}, {"a": ["x"]}, {"a": [], "b": 1}, {"a": [], "c": 1}):
        assert untrusted_schema(schema).problems(arguments) == Schema(schema).problems(arguments)
    assert untrusted_schema(schema) is untrusted_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "$schema": 5},
        {"type": "object", "$schema": []},
        {"type": "object", "properties": {"a": {"type": "text"}}},
    ],
)
def test_any_library_error_is_attributed_to_the_schema(schema: Any) -> None:
    with pytest.raises(ValueError, match="its schema is invalid"):
        untrusted_schema(json.dumps(schema))


def test_reference_to_another_value_is_reported() -> None:
    for target in ("#/required", "#/properties/a"):
        schema = {"type": "object", "required": ["a"], "properties": {"a": {"$ref": target}}}
        problems = untrusted_schema(json.dumps(schema)).problems({"a": 1})
        assert all("cannot be applied" in problem for problem in problems)


def test_half_a_surrogate_is_reported_in_sendable_text() -> None:
    half = '{"type": "object", "$ref": "\\ud800"}'
    with pytest.raises(ValueError, match="its schema is invalid: it has half of a surrogate pair") as refusal:
        untrusted_schema(half)
    texts = untrusted_schema('{"type": "object", "additionalProperties": {"type": "string"}}')
    problems = texts.problems(json.loads('{"\\ud800": 1, "a": "\\ud800"}'))
    assert problems
    assert "".join([str(refusal.value), *problems]).encode()
