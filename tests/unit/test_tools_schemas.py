"""Schemas of strangers' tools: by their own draft, and never a reason to fetch anything."""

from __future__ import annotations

import json

import pytest

from services.tools.schemas import Schema

DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def test_a_schema_is_read_by_the_draft_that_it_names():
    tuples = {"type": "object", "properties": {"a": {"type": "array", "items": [{"type": "string"}]}}}
    assert Schema(json.dumps({"$schema": DRAFT_7, **tuples})).problems({"a": [1]}) == [
        "a[0]: 1 is not of type 'string'"
    ]
    with pytest.raises(ValueError, match="its schema is none"):
        Schema(json.dumps(tuples))  # in 2020-12 `items` is a schema, not a list


@pytest.mark.parametrize(
    "reference", ["http://127.0.0.1:1/a.json", "file:///etc/passwd", "other.json#/a", "urn:x:y", DRAFT_7]
)
@pytest.mark.parametrize("draft", [DRAFT_7, "https://json-schema.org/draft/2020-12/schema"])
def test_a_schema_that_refers_to_another_document_is_refused(reference, draft):
    schema = {"$schema": draft, "type": "object", "properties": {"a": {"items": {"$ref": reference}}}}
    with pytest.raises(ValueError, match="refers to another document"):
        Schema(json.dumps(schema))


def test_references_inside_work_and_endless_or_broken_ones_are_told():
    inside = {"type": "object", "$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}}
    assert Schema(json.dumps(inside)).problems({"a": "x"}) == ["a: 'x' is not of type 'integer'"]
    for broken in ({"$ref": "#"}, {"$ref": "#/$defs/none"}):
        [problem] = Schema(json.dumps({"type": "object", "allOf": [broken]})).problems({})
        assert "the tool's own schema cannot be applied" in problem


@pytest.mark.parametrize(
    "schema", ["nonsense", "3", '"x"', "[]", "true", '{"type": "string"}', '{"type": 3}', "[" * 100_000]
)
def test_what_is_no_schema_of_an_object_is_refused(schema):
    with pytest.raises(ValueError, match="its schema"):
        Schema(schema)
