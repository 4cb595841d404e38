"""The rules by which model providers refuse the definition of a tool, and the rewriting that keeps to them. Pure.

One refused definition fails the whole request, so a tool of a third party is shown to the model in a form that every
provider accepts. The arguments that the model gives for it are turned back before the tool's own schema checks them.

Sources: the providers' error messages, as public reports quote them.
Anthropic, Bedrock: "input_schema does not support oneOf, allOf, or anyOf at the top level"; "input_schema.properties:
Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'" (of the first level only); "JSON schema is invalid. It must
match JSON Schema draft 2020-12".
OpenAI: "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level"; "array
schema missing items"; "object schema missing properties".
Gemini: "function_declarations[3].parameters.properties[p].items: missing field"; "enum: only allowed for STRING type";
"required: only allowed for OBJECT type"; "Unknown name "$schema"".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

JsonSchema = dict[str, Any]
Arguments = dict[str, Any]

WRAPPER: Final = "arguments"
"""The property that holds the arguments of a tool whose own schema no provider accepts at the top level."""

_KEY: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}\Z")
_LONGEST_KEY: Final = 64
_NOT_AT_THE_TOP: Final = frozenset({"anyOf", "oneOf", "allOf", "not", "enum", "const", "$ref", "$dynamicRef"})
_NAMES_KEYS: Final = frozenset(
    {
        *("patternProperties", "propertyNames", "dependentRequired", "dependentSchemas", "dependencies"),
        *("if", "then", "else"),
    }
)
"""Keywords of an object that depend on the names of its keys, beside `properties` and `required`."""

_DEFINITIONS: Final = ("$defs", "definitions")
_SCHEMA: Final = (
    *("additionalProperties", "items", "contains", "not", "if", "then", "else", "propertyNames"),
    *("unevaluatedItems", "unevaluatedProperties", "additionalItems", "contentSchema"),
)
_LIST_OF_SCHEMAS: Final = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_MAP_OF_SCHEMAS: Final = ("properties", "patternProperties", "dependentSchemas", "dependencies", *_DEFINITIONS)
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")


@dataclass(frozen=True, slots=True)
class ShownSchema:
    """The schema that the model is shown, and what turns its arguments back: only here they become the tool's own.

    `is_wrapped`: the arguments are in the property WRAPPER. `own_keys`: the tool's own keys by the shown ones.
    """

    schema: JsonSchema
    is_wrapped: bool = False
    own_keys: Mapping[str, str] = field(default_factory=dict)

    def own_arguments(self, arguments: Arguments) -> Arguments:
        """Returns the arguments as the tool takes them.

        Arguments in the tool's own form stay as they are: older definitions of a running task had that form.
        """
        if self.is_wrapped:
            inner = arguments.get(WRAPPER)
            return inner if len(arguments) == 1 and isinstance(inner, dict) else arguments
        if not self.own_keys:
            return arguments
        own = {key: self.own_keys.get(key, key) for key in arguments}
        return {key if own[key] in arguments else own[key]: value for key, value in arguments.items()}

    def shown_arguments(self, arguments: Arguments) -> Arguments:
        """Returns the tool's own arguments as a model gives them: the inverse of `own_arguments`."""
        if self.is_wrapped:
            return {WRAPPER: arguments}
        shown = {own: key for key, own in self.own_keys.items()}
        return {shown.get(key, key): value for key, value in arguments.items()}


OWN_FORM: Final = ShownSchema({})
"""Of a tool that models are shown as it is: their arguments are the tool's own."""


def shown_schema(schema: JsonSchema) -> ShownSchema:
    """Returns the schema of a tool's arguments, a JSON Schema of an object, as every provider accepts it.

    A plain schema is returned as it is. Recursive: limit the depth of the schema before.
    """
    plain = {"type": "object", "properties": {}, **_rewritten(schema)}
    plain["type"] = "object"  # a list of types may have others, which no arguments have
    bad = [key for key in plain["properties"] if not _KEY.match(key)]
    if not _NOT_AT_THE_TOP.isdisjoint(plain) or (bad and (not _NAMES_KEYS.isdisjoint(plain) or _refers_to_root(plain))):
        return ShownSchema(_wrapped(plain), is_wrapped=True)
    return _renamed(plain, bad) if bad else ShownSchema(plain)


# The rules for every part of a schema. Each gives the same meaning in words that all providers accept.


class Rule(NamedTuple):
    """A rule: who refuses what, and the rewriting of a part that breaks it."""

    refused_by: str
    what: str
    rewrite: Callable[[JsonSchema], JsonSchema]


def _without(part: JsonSchema, *keys: str) -> JsonSchema:
    return {key: value for key, value in part.items() if key not in keys}


def _without_draft(part: JsonSchema) -> JsonSchema:
    return _without(part, *(key for key in ("$schema", "$id", "id") if isinstance(part.get(key), str)))


def _tuple_as_prefix(part: JsonSchema) -> JsonSchema:
    if not isinstance(part.get("items"), list):
        return part
    rest = {"items": part["additionalItems"]} if "additionalItems" in part else {}
    prefix = {"prefixItems": part["items"]} if part["items"] else {}
    return {**_without(part, "items", "additionalItems"), **prefix, **rest}


def _bounds_as_numbers(part: JsonSchema) -> JsonSchema:
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(part.get(exclusive), bool):
            limit = {exclusive: part[bound]} if part[exclusive] and bound in part else {}
            part = {**_without(part, exclusive, *([bound] if limit else [])), **limit}
    return part


def _list_with_items(part: JsonSchema) -> JsonSchema:
    return {**part, "items": {}} if _is_of(part, "array") and "items" not in part else part


def _typed_words(part: JsonSchema) -> JsonSchema:
    words = part.get("enum")
    is_untyped = isinstance(words, list) and bool(words) and not part.keys() & {"type", "$ref"}
    return {**part, "type": "string"} if is_untyped and all(isinstance(word, str) for word in words or ()) else part


def _no_members_of_others(part: JsonSchema) -> JsonSchema:
    kind = part.get("type")
    return _without(part, "properties", "required") if isinstance(kind, str) and kind != "object" else part


def _is_of(part: JsonSchema, kind: str) -> bool:
    kinds = part.get("type")
    return kinds == kind or (isinstance(kinds, list) and kind in kinds)


RULES: Final = (
    Rule("Gemini, some servers", "`$schema`, `$id`, and `id` of draft 4", _without_draft),
    Rule("Anthropic", "a list in `items`, as in drafts before 2020-12", _tuple_as_prefix),
    Rule("Anthropic", "true and false as exclusive bounds, as in draft 4", _bounds_as_numbers),
    Rule("OpenAI, Gemini", "an array without `items`", _list_with_items),
    Rule("Gemini", "a list of words without a type", _typed_words),
    Rule("Gemini", "`properties` and `required` of a value that is not an object", _no_members_of_others),
)


def _rewritten(part: Any) -> Any:
    """Returns a part of a schema, with all parts below it, by the rules. A boolean is a schema, too."""
    if not isinstance(part, dict):
        return part
    for rule in RULES:
        part = rule.rewrite(part)
    return {keyword: _below(keyword, value) for keyword, value in part.items()}


def _below(keyword: str, value: Any) -> Any:
    if isinstance(value, dict) and keyword in _MAP_OF_SCHEMAS:
        return {name: _rewritten(one) for name, one in value.items()}
    if isinstance(value, list) and keyword in _LIST_OF_SCHEMAS:
        return [_rewritten(one) for one in value]
    return _rewritten(value) if keyword in _SCHEMA else value


# The rules for the top level.


def _wrapped(plain: JsonSchema) -> JsonSchema:
    """Returns an object whose one property has the schema. Definitions stay at the top, where references find them."""
    definitions: JsonSchema = {name: _moved(plain[name]) for name in _DEFINITIONS if name in plain}
    inner = _moved(_without(plain, *_DEFINITIONS))
    return {"type": "object", "properties": {WRAPPER: inner}, "required": [WRAPPER], **definitions}


def _moved(value: Any) -> Any:
    """Returns a value with the references to the former top level changed to its new place."""
    if isinstance(value, list):
        return [_moved(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _moved_reference(item) if key in _REFERENCES and isinstance(item, str) else _moved(item)
        for key, item in value.items()
    }


def _moved_reference(reference: str) -> str:
    is_in_place = reference.startswith(tuple(f"#/{name}/" for name in _DEFINITIONS))
    if is_in_place or not (reference == "#" or reference.startswith("#/")):
        return reference
    return f"#/properties/{WRAPPER}{reference[1:]}"


def _refers_to_root(value: Any) -> bool:
    return any(_moved_reference(reference) != reference for reference in _references(value))


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (value[key] for key in _REFERENCES if isinstance(value.get(key), str))
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


def _renamed(plain: JsonSchema, bad: Sequence[str]) -> ShownSchema:
    """Returns the schema with other names for the keys that no provider accepts. Each says its own name."""
    taken = {*plain["properties"], *filter(_is_text, plain.get("required") or ())}
    counts: Counter[str] = Counter()
    shown = {key: _free_key(key, taken, counts) for key in bad}
    properties = {
        shown.get(key, key): _named(part, key) if key in shown else part for key, part in plain["properties"].items()
    }
    schema = {**plain, "properties": properties}
    if "required" in plain:
        schema["required"] = [shown.get(key, key) if _is_text(key) else key for key in plain["required"]]
    return ShownSchema(schema, own_keys={name: key for key, name in shown.items()})


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _free_key(key: str, taken: set[str], counts: Counter[str]) -> str:
    """Returns a key that providers accept and that the schema does not have, and takes it."""
    base = re.sub(r"[^a-zA-Z0-9_.-]", "_", key)[:_LONGEST_KEY] or "_"
    name = base
    while name in taken:
        counts[base] += 1
        ending = f"_{counts[base] + 1}"
        name = f"{base[: _LONGEST_KEY - len(ending)]}{ending}"
    taken.add(name)
    return name


def _named(part: Any, key: str) -> Any:
    """Returns the schema of a renamed key, with its own name: descriptions and error messages use that one."""
    if part is False:
        return part
    part = part if isinstance(part, dict) else {}
    described = part.get("description")
    own_name = f"The tool calls it {key[:200]!r}."
    return {**part, "description": f"{described} {own_name}" if isinstance(described, str) else own_name}


# Refusals of a request that name a tool.

_NAMED: Final = re.compile(r"invalid (?:json )?schema for (?:function|tool) ['\"`]([^'\"`]+)['\"`]", re.IGNORECASE)
_NUMBERED: Final = re.compile(
    r"\btools[.\[](\d+)\]?\.(?:custom\.|function\.|toolSpec\.)?"
    r"(?:input_schema|inputSchema|parameters|name|description)\b"
    r"|\bfunction_declarations\[(\d+)\]\.(?:parameters|parameters_json_schema|name|description)\b"
)


def refused_tools(message: str, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the tools whose definition a provider's refusal blames. `names`: of the request's tools, in its order.

    Only for what a definition says: a refused member of the request, such as a cache mark, blames no tool.
    """
    numbers = [int(first or second) for first, second in _NUMBERED.findall(message)]
    named = _NAMED.findall(message)
    blamed = [names[number] for number in numbers if number < len(names)] + [name for name in named if name in names]
    return tuple(dict.fromkeys(blamed))
