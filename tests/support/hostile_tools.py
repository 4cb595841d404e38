"""Definitions of tools that some provider, library or service refuses: by hand, and by chance from a seed."""

from __future__ import annotations

import json
from random import Random
from typing import Any

GOOD: dict[str, Any] = {
    "name": "good",
    "description": "Says what it was given.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "annotations": {"readOnlyHint": True},
}
AB = {"a": {"type": "string"}, "b": {"type": "string"}}
DEEP: dict[str, Any] = {"type": "string"}
for _ in range(300):
    DEEP = {"type": "object", "properties": {"x": DEEP}}

SCHEMAS: dict[str, Any] = {
    "top_any": {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": AB},
    "top_one": {"type": "object", "oneOf": [{"properties": AB}, {"properties": {"c": {"type": "integer"}}}]},
    "top_all": {"type": "object", "allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"properties": AB}}},
    "top_not": {"type": "object", "properties": AB, "not": {"required": ["a", "b"]}},
    "top_enum": {"type": "object", "enum": [{"a": "x"}, {}]},
    "top_ref": {"type": "object", "$ref": "#/definitions/x", "definitions": {"x": {"properties": AB}}},
    "recursive": {"type": "object", "properties": {"$child": {"$ref": "#"}, "name": {"type": "string"}}},
    "no_type": {"anyOf": [{"type": "object", "properties": AB}]},
    "empty": {},
    "type_list": {"type": ["object", "null"], "properties": AB},
    "type_string": {"type": "string"},
    "type_number": {"type": 7},
    "a_list": [1],
    "a_text": "object",
    "nothing": None,
    "true": True,
    "dollar": {"type": "object", "properties": {"$filter": {"type": "string"}, "$top": {"type": "integer"}}},
    "brackets": {"type": "object", "properties": {"filter[id]": {}, "filter[name]": {}}, "required": ["filter[id]"]},
    "same_after": {"type": "object", "properties": {"a b": {}, "a_b": {}, "a-b": {}, "a$b": {}, "a€b": {}}},
    "long_key": {"type": "object", "properties": {"k" * 65: {"type": "string"}, "k" * 66: {"type": "string"}}},
    "empty_key": {"type": "object", "properties": {"": {"type": "string"}, "é": False, "\0": True}},
    "dependent": {"type": "object", "properties": {"$a": {}, "b": {}}, "dependentRequired": {"$a": ["b"]}},
    "pattern_keys": {"type": "object", "properties": {"$a": {}}, "patternProperties": {"^\\$": {"type": "string"}}},
    "required_inside": {"type": "object", "properties": {"a": {"type": "string"}, "required": ["a"]}},
    "required_word": {"type": "object", "properties": AB, "required": "a"},
    "required_true": {"type": "object", "properties": {"a": {"type": "string", "required": True}}},
    "properties_list": {"type": "object", "properties": []},
    "no_items": {"type": "object", "properties": {"ids": {"type": "array"}, "m": {"type": ["array", "null"]}}},
    "tuple": {
        "type": "object",
        "properties": {"t": {"type": "array", "items": [{"type": "string"}, {"type": "array"}]}},
    },
    "draft_4": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "id": "http://example.com/x",
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 1, "exclusiveMinimum": True}},
    },
    "draft_7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"t": {"type": "array", "items": [{"type": "string"}], "additionalItems": False}},
    },
    "draft_x": {"$schema": "http://example.com/draft", "type": "object", "properties": AB},
    "draft_number": {"$schema": 7, "type": "object", "properties": AB},
    "elsewhere": {"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:1/x.json"}}},
    "dangling": {"type": "object", "properties": {"x": {"$ref": "#/$defs/none"}}},
    "bad_regex": {"type": "object", "properties": {"x": {"type": "string", "pattern": "(["}}},
    "words": {"type": "object", "properties": {"x": {"enum": ["", "a"]}, "n": {"enum": [1, "a"]}, "z": {"enum": []}}},
    "members_of_text": {"type": "object", "properties": {"x": {"type": "string", "properties": AB, "required": ["a"]}}},
    "infinite": {"type": "object", "properties": {"x": {"type": "number", "maximum": float("inf")}}},
    "not_a_number": {"type": "object", "properties": {"x": {"default": float("nan")}}},
    "half_pair": {"type": "object", "properties": {"x": {"description": "\ud800"}}},
    "half_key": {"type": "object", "properties": {"\udfff": {}}},
    "deep": DEEP,
    "wide": {"type": "object", "properties": {f"${n}": {} for n in range(600)}},
    "large": {"type": "object", "description": "x" * 200_000},
    "big_number": {"type": "object", "properties": {"x": {"type": "integer", "maximum": 10**400}}},
}
TOOLS: list[Any] = [
    *({"name": name, "inputSchema": schema} for name, schema in SCHEMAS.items()),
    {"name": "no_schema"},
    {"inputSchema": {"type": "object"}},
    {"name": 7, "inputSchema": {"type": "object"}},
    {"name": "", "inputSchema": {"type": "object"}},
    {"name": "not a name!", "inputSchema": {"type": "object"}},
    {"name": "n" * 80, "inputSchema": {"type": "object"}},
    {"name": "half\ud800", "inputSchema": {"type": "object"}},
    {"name": "odd_words", "description": 7, "inputSchema": {"type": "object"}},
    {"name": "half_words", "description": "half \ud83d of a pair", "inputSchema": {"type": "object"}},
    {"name": "nul_words", "description": "a \0 b", "inputSchema": {"type": "object"}},
    {"name": "long_words", "description": "x" * 20_000, "inputSchema": {"type": "object"}},
    {"name": "odd_hints", "inputSchema": {"type": "object"}, "annotations": "read-only"},
    {"name": "good", "inputSchema": {"type": "string"}},
    {"name": "twice", "inputSchema": {"type": "object"}},
    {"name": "twice", "inputSchema": {"type": "object"}},
    "not a tool",
    None,
    7,
]
"""Each of them beside GOOD. One of them has the same name."""

_KEYS = ["a", "b", "$filter", "filter[id]", "a b", "", "k" * 70, "é", "type", "required", "$ref", "properties"]
_TYPES = ["object", "array", "string", "integer", "number", "boolean", "null", ["string", "null"], "any", 7]


def random_schema(random: Random, depth: int = 3) -> Any:
    """Returns a schema that is mostly valid, or nearly one."""
    if depth == 0 or random.random() < 0.1:
        return random.choice([True, False, {}, {"type": "string"}, {"enum": ["x"]}, {"type": "array"}, "x"])
    schema: dict[str, Any] = {}
    if random.random() < 0.8:
        schema["type"] = random.choice(_TYPES)
    if random.random() < 0.7:
        keys = random.sample(_KEYS, random.randint(0, 4))
        schema["properties"] = {key: random_schema(random, depth - 1) for key in keys}
        schema["required"] = random.choice([keys, keys[:1], [], "a", True])
    for keyword in random.sample(["anyOf", "oneOf", "allOf", "prefixItems", "items"], random.randint(0, 2)):
        schema[keyword] = [random_schema(random, depth - 1) for _ in range(random.randint(0, 3))]
    for keyword in random.sample(["items", "additionalProperties", "not", "if", "then"], random.randint(0, 2)):
        schema[keyword] = random_schema(random, depth - 1)
    odd: list[tuple[str, Any]] = [
        ("$ref", random.choice(["#", "#/properties/a", "#/$defs/x", "#/no", "x.json", 7])),
        ("$defs", {"x": random_schema(random, depth - 1)}),
        ("$schema", random.choice(["http://json-schema.org/draft-04/schema#", "x", 7])),
        ("exclusiveMinimum", random.choice([True, 3])),
        ("dependentRequired", {"$filter": ["a"]}),
        ("patternProperties", {"^x": {}}),
        ("const", random.choice([1, {}, "\ud800"])),
        ("minProperties", random.choice([1, 0, -1, "1", 1e999])),
    ]
    schema |= dict(random.sample(odd, random.choice([0, 0, 0, 0, 0, 1, 2])))
    return schema


def random_tools(seed: int, count: int) -> list[Any]:
    """Returns tools with schemas by chance. Half of them at least say that they take an object."""
    random = Random(seed)
    tools = []
    for number in range(count):
        schema = random_schema(random)
        if isinstance(schema, dict) and random.random() < 0.7:
            schema["type"] = "object"
        tools.append({"name": f"random_{number}", "inputSchema": schema})
    return tools


def as_json(value: Any) -> str:
    """Returns JSON as a careless server writes it: with NaN, Infinity and halves of pairs."""
    return json.dumps(value)
