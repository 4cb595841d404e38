"""Refuses the definitions of tools that the providers refuse, with their messages, as public reports quote them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

ToolCheck = Callable[[int, Any], str]
"""Takes the position of a tool in the request and its definition. Returns the refusal, or ""."""

_ANTHROPIC_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_ANTHROPIC_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_OPENAI_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_OPENAI_DESCRIPTION = 1024
_KEPT = 4096


def anthropic_refusal(index: int, tool: Any) -> str:
    """The rules of the Messages API."""
    place = f"tools.{index}.custom"
    name = tool.get("name") if isinstance(tool, dict) else None
    if not isinstance(name, str) or not _ANTHROPIC_NAME.fullmatch(name):
        return f"{place}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
    if tool.get("type") not in {None, "custom"}:
        return ""
    if not isinstance(tool.get("input_schema"), dict):
        return f"{place}.input_schema: Field required"
    fault = _anthropic_fault(json.dumps(tool["input_schema"]))
    return f"{place}.{fault}" if fault else ""


@lru_cache(_KEPT)
def _anthropic_fault(text: str) -> str:
    schema = json.loads(text)
    if schema.get("type") != "object":
        return "input_schema.type: " + ("Input should be 'object'" if "type" in schema else "Field required")
    if not {"oneOf", "allOf", "anyOf"}.isdisjoint(schema):
        return "input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level"
    if not _is_valid(schema):
        return (
            "input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12 "
            "(https://json-schema.org/draft/2020-12). Learn more about tool use at https://docs.claude.com/en/docs/tool-use."
        )
    if not all(map(_ANTHROPIC_KEY.fullmatch, schema.get("properties", ()))):
        return "input_schema.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'"
    return ""


def openai_refusal(index: int, tool: Any) -> str:
    """The rules of Chat Completions and of Responses, for a tool in the form of the Messages API."""
    name, schema = tool.get("name"), tool.get("input_schema")
    if not isinstance(name, str) or not _OPENAI_NAME.fullmatch(name):
        return (
            f"Invalid 'tools[{index}].function.name': string does not match pattern. "
            "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
        )
    if len(description := str(tool.get("description"))) > _OPENAI_DESCRIPTION:
        return (
            f"Invalid 'tools[{index}].function.description': string too long. Expected a string with maximum length "
            f"{_OPENAI_DESCRIPTION}, but got a string with length {len(description)} instead."
        )
    if not isinstance(schema, dict):
        return f"Invalid type for 'tools[{index}].function.parameters': expected an object"
    fault = _openai_fault(json.dumps(schema))
    return f"Invalid schema for function '{name}': {fault}" if fault else ""


@lru_cache(_KEPT)
def _openai_fault(text: str) -> str:
    schema = json.loads(text)
    if schema.get("type") != "object":
        kind = json.dumps(schema.get("type", "None")).strip('"')
        return f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
    if not {"oneOf", "anyOf", "allOf", "enum", "not"}.isdisjoint(schema):
        return "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level."
    if "properties" not in schema:
        return "In context=(), object schema missing properties."
    if not _is_valid(schema):
        return f"{shortened(text)} is not valid under any of the given schemas."
    return next((f"In context={context}, array schema missing items." for context in _without_items(schema)), "")


def shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"


def _is_valid(schema: dict[str, Any]) -> bool:
    try:
        Draft202012Validator.check_schema(schema)
    except (SchemaError, RecursionError):
        return False
    return True


def _without_items(schema: Any, context: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the places of the arrays without `items` below properties."""
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "array" and "items" not in schema:
        yield context
    for key, part in schema.get("properties", {}).items():
        yield from _without_items(part, (*context, "properties", key))
    yield from _without_items(schema.get("items"), (*context, "items"))
