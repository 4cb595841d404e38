"""Makes an agent's tool calls as calls behind the tool service's fence, in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_ai.durable_exec import DurableOperation, DynamicToolsetCallToolParams, ToolsetCallToolParams
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_core import to_jsonable_python

from tenure.agents.approvals import ANY_OBJECT
from tenure.agents.calls import running_call
from tenure.agents.effects import effect_class
from tenure.agents.execution import Execution, unit
from tenure.agents.own_calls import check_finite, content_of, for_model, value_of
from tenure.agents.shared_state import unchanged
from tenure.control.own_tools import (
    DEFAULT_OUTPUT_BYTES,
    OwnTool,
    OwnToolContext,
    ToolError,
    runs_nowhere,
)
from tenure.domain.effect_keys import EffectKey
from tenure.domain.tools import Compensation, EffectClass, Outcome

# Makes JSON of a tool's validated arguments, the same in each execution of the task: it names the recorded call.


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


KEY: Final = "tenure"
"""The key of a tool's metadata that has its effect class: `{"tenure": {"effect": "KEYED"}}`, or False for none."""
NEEDS_APPROVAL: Final = "needs_approval"
_RAISED: Final = frozenset({"MODEL_RETRY", "TOOL_FAILED", "VALIDATION_ERROR", "RUN_CANCELLED"})
"""The details of FAILED outcomes whose tools raised an exception of Pydantic AI."""

Stated = TypeVar("Stated")
CallParams = ToolsetCallToolParams | DynamicToolsetCallToolParams
Effects = Mapping[str, EffectClass | None]


@dataclass(repr=False, kw_only=True)
class ToolContext(RunContext[Any]):
    """Pydantic AI's context of a tool, with the call that it runs for: what `tenure.agents.tool_call()` returns."""

    task_id: str = ""
    call_id: str = ""
    call_attempt: int = 1
    idempotency_key: str = ""
    epoch: int = 0


def metadata_of(
    effect: EffectClass | None, effect_key: EffectKey | None = None, compensation: Compensation | None = None
) -> dict[str, Any]:
    """Returns the metadata for a tool of this effect class. None: the tool runs in the function itself.

    Raises ValueError for a value that is not an effect class, and for what a tool without calls declares of them.
    """
    known = effect_class(effect)
    stated = {name: value for name, value in (("effect_key", effect_key), ("compensation", compensation)) if value}
    if known is None:
        if stated:
            raise ValueError("a tool with effect=None has no calls of its own, and so no effect key or compensation")
        return {KEY: False}
    return {KEY: {"effect": known.value, **stated}}


def effect_key_of(tool: ToolDefinition) -> EffectKey | None:
    """Returns the effect key in the metadata of a tool. Raises ValueError for another value in its place."""
    return _stated(tool, "effect_key", EffectKey, "a tenure.agents.EffectKey")


def compensation_of(tool: ToolDefinition) -> Compensation | None:
    """Returns the compensation in the metadata of a tool. Raises ValueError for another value in its place."""
    return _stated(tool, "compensation", Compensation, "made by tenure.agents.compensate_with")


def _stated(tool: ToolDefinition, name: str, kind: type[Stated], what: str) -> Stated | None:
    stated = (tool.metadata or {}).get(KEY)
    value = stated.get(name) if isinstance(stated, Mapping) else None
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"tool {tool.name}: {name} must be {what}")
    return value


def effect_of(tool: ToolDefinition, effects: Effects) -> EffectClass | None:
    """Returns the effect class of a tool, UNSAFE if none is named; None: it runs in the function itself.

    Raises ValueError for metadata that names no effect class.
    """
    if tool.name in effects:
        return effects[tool.name]
    stated = (tool.metadata or {}).get(KEY, {})
    if stated is False:
        return None
    name = stated.get("effect", EffectClass.UNSAFE) if isinstance(stated, Mapping) else stated
    return effect_class(str(name), tool.name)


def own_tool(
    name: str, definition: ToolDefinition, effect: EffectClass, default_timeout_seconds: float, model_limit_bytes: int
) -> OwnTool:
    """Returns a recorded tool, as the model is offered it. Raises ValueError for one that the ledger cannot have."""
    return OwnTool(
        name=name,
        description=definition.description or "",
        input_schema=ANY_OBJECT,  # Pydantic has validated them, and knows types that a JSON Schema cannot describe
        shown_schema=definition.parameters_json_schema,
        effect=effect,
        timeout_seconds=definition.timeout or default_timeout_seconds,
        output_limit_bytes=max(DEFAULT_OUTPUT_BYTES, model_limit_bytes),
        model_limit_bytes=model_limit_bytes,
        run=runs_nowhere,
        effect_key=effect_key_of(definition),
        compensation=compensation_of(definition),
    )


async def call_tool(
    execution: Execution,
    operation: DurableOperation[Any, Any, Any],
    params: CallParams,
    definition: ToolDefinition,
    tool: OwnTool,
) -> Any:
    """Returns the encoded result, recorded now or earlier. Raises ToolFailed, which the model reads.

    A tool that raised, that a person did not approve, or that is in doubt has failed for ever: the model decides what
    to do about it.
    """
    sent = recordable(params.tool_args)

    async def run(call: OwnToolContext, arguments: Mapping[str, Any]) -> str:
        called = params if arguments == sent else _edited(params, arguments)
        what = f"the tool {params.name}"
        with unit(what), running_call(call), unchanged(params.ctx.deps, what):
            result = await operation.handler(replace(called, ctx=_context(params.ctx, call, needs_approval)))
            check_finite(getattr(result, "result", result), what)  # without the frame of Pydantic AI
            return _written(operation, operation.result_codec.dump(result), tool.model_limit_bytes)

    needs_approval = bool((definition.metadata or {}).get(NEEDS_APPROVAL))
    outcome = await execution.call_own_tool(replace(tool, needs_approval=needs_approval, run=run), sent)
    if outcome.detail in _RAISED:
        return _framed_failure(operation, outcome)
    if outcome.is_error:
        raise ToolFailed(f"{outcome.status}: {outcome.text}")
    return _framed(operation, value_of(outcome.content))


def _written(operation: DurableOperation[Any, Any, Any], encoded: Any, limit_bytes: int) -> str:
    """Returns the content of the outcome: the tool's result, without Pydantic AI's frame where it can be made again.

    That is a text for the model; a frame has images, for example. Raises ToolError for a failure that the tool raised
    as an exception of Pydantic AI.
    """
    framed = json.dumps(encoded, ensure_ascii=False)
    if not isinstance(encoded, Mapping):
        return framed
    kind = str(encoded.get("kind", ""))
    if kind.upper() in _RAISED:
        raise ToolError(str(encoded["message"]) if len(encoded) == 2 else framed, detail=kind.upper())
    value = encoded.get("result")
    load = operation.result_codec.load  # of values: the frame of an object also has a list of its files
    is_plain = load(_framed(operation, value_of(content_of(value)))) == load(encoded)
    return for_model(value, limit_bytes) if is_plain else framed


def _framed_failure(operation: DurableOperation[Any, Any, Any], outcome: Outcome) -> Any:
    """Returns the frame of a failure that the tool raised as an exception of Pydantic AI. Raises ToolFailed."""
    for frame in ({"kind": outcome.detail.lower(), "message": outcome.text}, value_of(outcome.content)):
        try:
            operation.result_codec.load(frame)
        except ValidationError:
            continue
        return frame
    raise ToolFailed(f"{outcome.status}: {outcome.text}")


def _framed(operation: DurableOperation[Any, Any, Any], value: Any) -> Any:
    """Returns the encoded result of the tool. The result that a person gave to a call in doubt has no frame yet."""
    try:
        operation.result_codec.load(value)
    except ValidationError:
        return {"kind": "tool_return", "result": value}
    return value


def _edited(params: CallParams, arguments: Mapping[str, Any]) -> CallParams:
    """Returns the call with the arguments that a person changed at the approval."""
    if isinstance(params, ToolsetCallToolParams) and params.tool is not None:
        edited = json.dumps(dict(arguments))  # as the model's own: a strict type accepts a date as JSON only
        return replace(params, tool_args=params.tool.args_validator.validate_json(edited))
    return replace(params, tool_args=dict(arguments))


def _context(context: RunContext[Any], call: OwnToolContext, approved: bool) -> ToolContext:
    given = {each.name: getattr(context, each.name) for each in fields(context)}
    given["tool_call_approved"] = context.tool_call_approved or approved
    own = {name: getattr(call, name) for name in ("task_id", "call_id", "call_attempt", "idempotency_key", "epoch")}
    return ToolContext(**{**given, **own})
