"""Makes function tools of the OpenAI Agents SDK as calls behind the tool service's fence, in this process."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
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
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from tenure.agents.approvals import ANY_OBJECT, permission
from tenure.agents.calls import running_call
from tenure.agents.execution import Execution, execution_of, unit
from tenure.agents.own_calls import value_of
from tenure.agents.shared_state import unchanged
from tenure.control.failures import NotReplayable
from tenure.control.own_tools import (
    DEFAULT_OUTPUT_BYTES,
    EffectUnknown,
    ForModel,
    OwnTool,
    OwnToolContext,
    ToolError,
)
from tenure.domain.tools import USUAL_OUTPUT_BYTES, EffectClass

DEFAULT_TIMEOUT_SECONDS: Final = 300.0
_MEDIA: Final = frozenset({"image", "file"})


class ApprovalUnavailable(RuntimeError):  # noqa: N818  the name says what is missing
    """A tool that needs an approval was called outside of a task, where Tenure cannot ask a person."""


class DurableInvocation:
    """Runs a function tool behind the fence in durable functions, and directly elsewhere.

    `effect` None: the tool runs in the function itself, after a person's permission if its calls need one.
    """

    def __init__(
        self, tool: FunctionTool, effect: EffectClass | None, timeout_seconds: float, limit_bytes: int
    ) -> None:
        self.original, self.effect, self._limit_bytes = tool, effect, limit_bytes
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
        try:
            sent = json.loads(arguments or "{}")
        except (ValueError, RecursionError):  # a model may write broken JSON: it gets an error, and can call again
            sent = None
        if not isinstance(sent, dict):
            return f"The arguments of {self._name} must be a JSON object."
        asks = self._name in current.work.approve_tools or await self._asks(context, arguments)
        if self.effect is None:
            return await self._call_inline(current, context, arguments, sent if asks else None)
        return await self._call(current, context, arguments, sent, self.effect, asks=asks)

    async def _call_inline(
        self, current: Execution, context: ToolContext[Any], arguments: str, arguments_to_allow: dict[str, Any] | None
    ) -> Any:
        """Runs the tool in the function itself. `arguments_to_allow`: for a person to allow; None: no approval."""
        if arguments_to_allow is not None:
            outcome = await permission(current, self._name, self._description, self._schema, arguments_to_allow)
            if outcome.is_error:
                return f"{outcome.status}: {outcome.text}"
            arguments = arguments if json.loads(outcome.content) == arguments_to_allow else outcome.content
        return await _ending_the_task(self.original, current)(context, arguments)

    async def _call(
        self,
        current: Execution,
        context: ToolContext[Any],
        arguments: str,
        sent: dict[str, Any],
        effect: EffectClass,
        *,
        asks: bool,
    ) -> Any:
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
            is_plain = isinstance(recorded, str) and value_of(recorded) == recorded
            text = recorded if is_plain else json.dumps(recorded, ensure_ascii=False)
            return text if _has_media(recorded) else ForModel(text)

        tool = OwnTool(
            name=self._name,
            description=self._description,
            input_schema=ANY_OBJECT,  # the SDK validates the arguments
            shown_schema=self._schema,
            effect=effect,
            timeout_seconds=self._timeout_seconds,
            output_limit_bytes=max(DEFAULT_OUTPUT_BYTES, self._limit_bytes),
            model_limit_bytes=self._limit_bytes,
            needs_approval=asks,
            run=run,
        )
        outcome = await current.call_own_tool(tool, sent)
        if outcome.is_error:
            return f"{outcome.status}: {outcome.text}"
        value = value_of(outcome.content)
        return value if isinstance(value, str | dict | list) else outcome.content

    async def _asks(self, context: ToolContext[Any], arguments: str) -> bool:
        """Whether the SDK would ask for an approval: also if it cannot evaluate the arguments."""
        evaluated = await evaluate_function_tool_approval(self.original, context, arguments, context.tool_call_id)
        return evaluated.outcome != "invoke"


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
    tool: FunctionTool, effect: EffectClass | None, timeout_seconds: float, limit_bytes: int = USUAL_OUTPUT_BYTES
) -> FunctionTool:
    """Returns a durable copy of the tool. None: it runs in the function itself.

    A copy, because another agent may have the same tool with another effect class.
    """
    original = tool.on_invoke_tool.original if isinstance(tool.on_invoke_tool, DurableInvocation) else tool
    durable = copy.copy(original)
    durable.on_invoke_tool = DurableInvocation(original, effect, timeout_seconds, limit_bytes)
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
    return output if isinstance(output, str) else str(output)
