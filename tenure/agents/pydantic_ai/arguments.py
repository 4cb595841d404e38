"""Makes JSON of a tool's validated arguments, the same in each execution of the task: it names the recorded call."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python


def recordable(arguments: Any) -> Any:
    """Returns the arguments as JSON. The order of a set is another one in each process, so sets are sorted."""
    return _ordered(arguments, to_jsonable_python(arguments, fallback=str))


def _ordered(value: Any, written: Any) -> Any:
    """Returns the JSON that was written of a value, with its sets in order."""
    match value:
        case set() | frozenset() if isinstance(written, list):
            return sorted(written, key=lambda item: json.dumps(item, sort_keys=True))
        case dict() if isinstance(written, dict) and len(written) == len(value):
            pairs = zip(value.values(), written.items(), strict=True)
            return {name: _ordered(inner, json_value) for inner, (name, json_value) in pairs}
        case list() | tuple() if isinstance(written, list) and len(written) == len(value):
            return [_ordered(*pair) for pair in zip(value, written, strict=True)]
        case _ if isinstance(written, dict):
            inner = _members(value)
            return {name: _ordered(inner[name], each) if name in inner else each for name, each in written.items()}
        case _:
            return written


def _members(value: Any) -> dict[str, Any]:
    """Returns the members of a model or a dataclass, by their names in JSON."""
    if isinstance(value, BaseModel):
        known = type(value).model_fields.items()
        return {field.serialization_alias or field.alias or name: getattr(value, name) for name, field in known}
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return {}
