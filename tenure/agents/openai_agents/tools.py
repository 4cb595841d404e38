"""Makes function tools of the OpenAI Agents SDK as calls behind the tool service's fence, in this process."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from agents import RunContextWrapper
from agents.tool import (
    FunctionTool,
    default_tool_error_function,
    resolve_function_tool_failure_error_function,
    set_function_tool_failure_error_function,
)
from agents.tool_context import ToolContext
from agents.util._approvals import evaluate_function_tool_approval
from openai.types.responses import ResponseFunctionToolCall
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from tenure.agents.approvals import ANY_OBJECT, inline_tool, permission
from tenure.agents.calls import running_call
from tenure.agents.execution import Execution, execution_of, unit
from tenure.agents.openai_agents.one_answer import NEWEST_ANSWER, CallToMake
from tenure.agents.own_calls import content_of, for_model, value_of
from tenure.agents.prompts import FromInput, made_from
from tenure.agents.shared_state import unchanged
from tenure.agents.undo_tools import loose_schema
from tenure.control.failures import NotReplayable
from tenure.control.own_tools import (
    DEFAULT_OUTPUT_BYTES,
    EffectUnknown,
    OwnTool,
    OwnToolContext,
    ToolError,
    runs_nowhere,
)
from tenure.domain.effect_keys import EffectKey
from tenure.domain.tools import USUAL_OUTPUT_BYTES, Compensation, EffectClass, Outcome

_MEDIA: Final = frozenset({"image", "file"})


class ApprovalUnavailable(RuntimeError):  # noqa: N818  the name says what is missing
    """A tool that needs an approval was called outside of a task, where Tenure cannot ask a person."""


class DurableInvocation:
    """Runs a function tool behind the fence in durable functions, and directly elsewhere.

    `effect` None: the tool runs in the function itself, after a person's permission if its calls need one.
    """

    def __init__(
        self,
        tool: FunctionTool,
        effect: EffectClass | None,
        timeout_seconds: float,
        limit_bytes: int,
        effect_key: EffectKey | None = None,
        compensation: Compensation | None = None,
    ) -> None:
        self.original, self.effect, self.effect_key, self._limit_bytes = tool, effect, effect_key, limit_bytes
        self.compensation = compensation
        self._name, self._description = tool.name, tool.description
        self._schema = tool.params_json_schema
        self._plain, self._explain = tool.on_invoke_tool, _explanation_of(tool)
        self._timeout_seconds = tool.timeout_seconds or timeout_seconds

    @property
    def needs_approval(self) -> bool:
        """Whether calls need an approval, or may: a function decides it for each."""
        return self.original.needs_approval is not False

    async def __call__(self, context: ToolContext[Any], arguments: str) -> Any:
        """Returns the output for the model, recorded now or earlier. Raises NotReplayable in a recorded tool."""
        current = execution_of(f"the tool {self._name}")
        if current is None:
            if self.needs_approval:
                raise ApprovalUnavailable(f"the durable tool {self._name} needs an approval, and so runs in tasks only")
            return await self._plain(context, arguments)
        sent = _object_of(arguments)
        if sent is None:
            return f"The arguments of {self._name} must be a JSON object."
        outcome = await self._made(current, context, arguments, sent)
        if self.effect is None:
            return await self._run_inline(current, context, arguments, sent, outcome)
        assert outcome is not None
        if outcome.is_error:
            return _refusal(outcome)
        value = value_of(outcome.content)
        return value if isinstance(value, str | dict | list) else outcome.content

    async def _made(
        self, current: Execution, context: ToolContext[Any], arguments: str, sent: dict[str, Any]
    ) -> Outcome | None:
        """Returns the outcome of the call, or of the permission for an inline tool. None: it needs no permission.

        The calls of one answer of the model wait together for people. If the SDK runs them one at a time, the first one
        makes all.
        """
        if (answer := NEWEST_ANSWER.get()) is not None:
            tool, outcome = await answer.made(context.tool_call_id, partial(_look, current, context))
            if tool is self and outcome is not None:
                return outcome
        return await (await self.call_to_make(current, context, arguments, sent)).outcome()

    async def call_to_make(
        self, current: Execution, context: ToolContext[Any], arguments: str, sent: dict[str, Any]
    ) -> CallToMake:
        """Returns the call, and whether a person must allow it."""
        asks = self._name in current.work.approve_tools or await self._needs_approval(context, arguments)
        if self.effect is not None:
            return CallToMake(self, asks, partial(self._call, current, context, arguments, sent, asks=asks))
        ask = partial(permission, current, self._name, self._description, self._schema, sent)
        return CallToMake(self, asks, ask if asks else None)

    @property
    def has_turn(self) -> bool:
        """Whether a call must wait for its turn, because a guardrail may refuse it."""
        return self.effect is not None and bool(self.original.tool_input_guardrails)

    async def _run_inline(
        self,
        current: Execution,
        context: ToolContext[Any],
        arguments: str,
        sent: dict[str, Any],
        permitted: Outcome | None,
    ) -> Any:
        """Runs the tool in the function itself, with the arguments that a person permitted."""
        if permitted is not None:
            if permitted.is_error:
                return _refusal(permitted)
            arguments = arguments if json.loads(permitted.content) == sent else permitted.content
        return await _ending_the_task(self.original, current)(context, arguments)

    async def _call(
        self,
        current: Execution,
        context: ToolContext[Any],
        arguments: str,
        sent: dict[str, Any],
        *,
        asks: bool,
    ) -> Outcome:
        async def run(call: OwnToolContext, given: Mapping[str, Any]) -> str:
            edited = arguments if given == sent else json.dumps(dict(given))
            what = f"the tool {self._name}"
            with unit(what), running_call(call), unchanged(context.context, what):
                try:
                    output = await _raising(self.original)(context, edited)
                except Exception as error:
                    if self._explain is None or isinstance(error, EffectUnknown | NotReplayable):
                        raise
                    raise ToolError(await self._explain(context, error)) from error
            recorded = _recorded(output)
            return content_of(recorded) if _has_media(recorded) else for_model(recorded, self._limit_bytes)

        return await current.call_own_tool(replace(self.own_tool(), needs_approval=asks, run=run), sent)

    def own_tool(self) -> OwnTool:
        """Returns the tool as the model is offered it. Raises ValueError for one that the ledger cannot have."""
        if self.effect is None:
            return inline_tool(self._name, self._description, self._schema)
        return OwnTool(
            name=self._name,
            description=self._description,
            input_schema=ANY_OBJECT,  # the SDK validates the arguments
            shown_schema=self._schema,
            effect=self.effect,
            timeout_seconds=self._timeout_seconds,
            output_limit_bytes=max(DEFAULT_OUTPUT_BYTES, self._limit_bytes),
            model_limit_bytes=self._limit_bytes,
            run=runs_nowhere,
            effect_key=self.effect_key,
            compensation=self.compensation,
        )

    def undo_tool(self, make: FromInput | None, given: Any) -> OwnTool:
        """Returns the tool for undos, which run without the agent. `make`: makes the context from the input."""

        async def run(call: OwnToolContext, sent: Mapping[str, Any]) -> str:
            arguments = json.dumps(dict(sent))
            made = None if make is None else await made_from(make, given)
            context = ToolContext(made, tool_name=self._name, tool_call_id=call.call_id, tool_arguments=arguments)
            with unit(f"the tool {self._name}"), running_call(call):
                output = _recorded(await _raising(self.original)(context, arguments))
            return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)

        schema = loose_schema(self._schema)
        return replace(self.own_tool(), input_schema=schema, needs_approval=self.needs_approval, run=run)

    async def _needs_approval(self, context: ToolContext[Any], arguments: str) -> bool:
        """Whether the SDK would ask for an approval: also if it cannot evaluate the arguments."""
        evaluated = await evaluate_function_tool_approval(self.original, context, arguments, context.tool_call_id)
        return evaluated.outcome != "invoke"


async def _look(current: Execution, context: ToolContext[Any], call: ResponseFunctionToolCall) -> CallToMake | None:
    """Returns a call of the answer to which the call of `context` belongs. None: it must be made on its turn."""
    named = (tool for tool in getattr(context.agent, "tools", ()) if tool.name == call.name)
    invocation = getattr(next(named, None), "on_invoke_tool", None)
    sent = _object_of(call.arguments)
    if sent is None or call.namespace is not None:
        return None
    if not isinstance(invocation, DurableInvocation) or invocation.has_turn:
        return None
    own_context = ToolContext.from_agent_context(context, call.call_id, tool_call=call)
    return await invocation.call_to_make(current, own_context, call.arguments, sent)


def _object_of(arguments: str) -> dict[str, Any] | None:
    """Returns the arguments of a call; None: the model wrote no JSON object. It gets an error, and can call again."""
    try:
        sent = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return sent if isinstance(sent, dict) else None


def _refusal(outcome: Outcome) -> str:
    return f"{outcome.status}: {outcome.text}"


Explain = Callable[[ToolContext[Any], Exception], Awaitable[str]]


def _explanation_of(tool: FunctionTool) -> Explain | None:
    """Returns the function that makes the tool's own text for a failure; None: the outcome names the exception."""
    explain = resolve_function_tool_failure_error_function(tool)
    if explain is None or explain is default_tool_error_function:
        return None

    async def explained(context: ToolContext[Any], error: Exception) -> str:
        text = explain(context, error)
        return str(await text if inspect.isawaitable(text) else text)

    return explained


Invoke = Callable[[ToolContext[Any], str], Awaitable[Any]]


def _raising(tool: FunctionTool) -> Invoke:
    """Returns the tool's invocation without the SDK's texts for failures, which look like successes."""
    return set_function_tool_failure_error_function(copy.copy(tool), None).on_invoke_tool


def _ending_the_task(tool: FunctionTool, current: Execution) -> Invoke:
    """Returns the invocation of an inline tool. An unknown effect ends the task; the SDK would go on with a text."""
    explain = resolve_function_tool_failure_error_function(tool)
    if explain is None:
        return tool.on_invoke_tool

    def explained(context: RunContextWrapper[Any], error: Exception) -> Any:
        if isinstance(error, EffectUnknown):
            raise current.fail(
                NotReplayable(f"the effect of the inline tool {tool.name} is unknown: {error}")
            ) from error
        return explain(context, error)

    return set_function_tool_failure_error_function(copy.copy(tool), explained).on_invoke_tool


def needs_approval(tool: FunctionTool) -> bool:
    """Whether calls of a tool, durable or not, need an approval, or may."""
    invocation = tool.on_invoke_tool
    return invocation.needs_approval if isinstance(invocation, DurableInvocation) else tool.needs_approval is not False


def durable_tool(
    tool: FunctionTool,
    effect: EffectClass | None,
    timeout_seconds: float,
    limit_bytes: int = USUAL_OUTPUT_BYTES,
    effect_key: EffectKey | None = None,
    compensation: Compensation | None = None,
) -> FunctionTool:
    """Returns a durable copy of the tool. None: it runs in the function itself.

    A copy, because another agent may have the same tool with another effect class.
    """
    original = tool.on_invoke_tool.original if isinstance(tool.on_invoke_tool, DurableInvocation) else tool
    durable = copy.copy(original)
    durable.on_invoke_tool = DurableInvocation(original, effect, timeout_seconds, limit_bytes, effect_key, compensation)
    durable.needs_approval = False  # the invocation waits for the approval
    if effect is not None:
        durable.timeout_seconds = None  # the call has the timeout, and a wait for an approval has none
    return durable


def _has_media(recorded: Any) -> bool:
    """Whether the SDK sends a part of the result as an image or a file."""
    parts = recorded if isinstance(recorded, list) else [recorded]
    return any(isinstance(part, dict) and part.get("type") in _MEDIA for part in parts)


def _recorded(output: Any) -> Any:
    """Returns a tool's result as a JSON value from which the SDK makes the same text for the model."""
    if isinstance(output, BaseModel):
        return output.model_dump(mode="json", exclude_none=True)
    if isinstance(output, list):
        return [_recorded(each) for each in output]
    if isinstance(output, dict):  # the call has had its effect: no value in it may make it fail
        return to_jsonable_python(output, fallback=str)
    is_number = isinstance(output, int) and not isinstance(output, bool)
    return output if is_number or isinstance(output, str) else str(output)
