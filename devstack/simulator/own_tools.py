"""The scenario of an agent whose tools no written scenario knows: it calls them, with arguments made from the goal."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jsonschema

from devstack.simulator.scenario import SUMMARY, ToolCall, Turn

MAX_CALLS: Final = 5
_OUTPUT: Final = re.compile(r"final_result(_.*)?")
"""The tools by which Pydantic AI gets a typed output: a call of one ends the conversation."""
_MAX_DEPTH: Final = 10
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True)
class OwnToolsScenario:
    """Calls each offered tool once, at most `MAX_CALLS` of them, then answers.

    `tools`: in the form of Messages. `output_schema`: of the answer, which is JSON then.
    """

    goal: str
    tools: Sequence[Mapping[str, Any]]
    output_schema: Mapping[str, Any] | None = None
    name: str = "own-tools"
    window_tokens: int | None = None
    summary: Turn = SUMMARY

    def turn(self, index: int) -> Turn:
        """Returns a call of the next tool, or the answer."""
        calls = [call for tool in self.tools if not _OUTPUT.fullmatch(tool["name"]) and (call := self._call(tool))]
        calls = calls[:MAX_CALLS]
        if index < len(calls):
            return Turn(text=f"I call {calls[index].name}.", calls=(calls[index],))
        outputs = (call for tool in self.tools if _OUTPUT.fullmatch(tool["name"]) and (call := self._call(tool)))
        if (output := next(outputs, None)) is not None:
            return Turn(calls=(output,))
        if self.output_schema is not None:
            answer = json.dumps(example(self.output_schema, self.output_schema, self.goal))
            return Turn(text=answer, is_literal=True)
        results = "".join(f" {call.name}: {{{{result.{turn}.0}}}}" for turn, call in enumerate(calls))
        return Turn(text=f"Done.{results}" if calls else "This is a simulated answer to: {{goal}}")

    def _call(self, tool: Mapping[str, Any]) -> ToolCall | None:
        """Returns a call with arguments that the schema of the tool allows, or None without such arguments."""
        schema = tool.get("input_schema") or {}
        arguments = example(schema, schema, self.goal)
        is_valid = isinstance(arguments, dict) and jsonschema.Draft202012Validator(schema).is_valid(arguments)
        return ToolCall(tool["name"], arguments) if is_valid else None


def example(schema: Any, root: Any, goal: str, name: str = "", depth: int = 0) -> Any:
    """Returns a value for a schema. `name`: of the property, by which the goal is searched: 7 in "refund order 7"."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return goal
    for key in ("const", "default"):
        if schema.get(key) is not None:
            return schema[key]
    for key in ("enum", "examples"):
        if schema.get(key):
            return schema[key][0]
    if "$ref" in schema:
        return example(_resolved(schema["$ref"], root), root, goal, name, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if choices := [choice for choice in schema.get(key) or () if choice != {"type": "null"}]:
            return example(choices[0], root, goal, name, depth + 1)
    return _of_type(schema, root, goal, name, depth)


def _of_type(schema: Mapping[str, Any], root: Any, goal: str, name: str, depth: int) -> Any:
    kinds = schema.get("type", "object" if "properties" in schema else "string")
    match next((kind for kind in kinds if kind != "null"), "null") if isinstance(kinds, list) else kinds:
        case "object":
            properties = schema.get("properties") or {}
            wanted = [key for key in properties if key in (schema.get("required") or ())]
            return {key: example(properties[key], root, goal, key, depth + 1) for key in wanted}
        case "array":
            return [example(schema.get("items"), root, goal, name, depth + 1)] * max(1, schema.get("minItems", 1))
        case "integer" | "number" as kind:
            return _number(schema, goal, name, whole=kind == "integer")
        case "boolean":
            return True
        case "null":
            return None
    return (_beside(name, goal) or goal)[: schema.get("maxLength")]


def _number(schema: Mapping[str, Any], goal: str, name: str, *, whole: bool) -> float:
    said = [text for text in (_beside(name, goal), *_NUMBER.findall(goal)) if _NUMBER.fullmatch(text)]
    usual: list[float] = [schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)]
    for value in (*map(float, said), *usual):
        number = int(value) if whole else value
        if number == value and jsonschema.Draft202012Validator(schema).is_valid(number):
            return number
    return usual[0]


def _beside(name: str, goal: str) -> str:
    """Returns the word after a name in the goal, or the number before it: "order 7", "500 cents"; "" without one."""
    if not name:
        return ""
    spoken = re.escape(name).replace("_", r"[\s_-]")
    match = re.search(rf"(-?\d[\d.]*)\s+{spoken}\b|\b{spoken}\W+([\w-]+)", goal, re.IGNORECASE)
    return "" if match is None else match[1] or match[2]


def _resolved(reference: str, root: Any) -> Any:
    value = root
    for part in reference.removeprefix("#/").split("/"):
        value = value.get(part, {}) if isinstance(value, dict) else {}
    return value
