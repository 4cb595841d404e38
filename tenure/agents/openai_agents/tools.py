"""Makes function tools of the OpenAI Agents SDK as calls behind the tool service's fence, in this process."""

from __future__ import annotations

import copy
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from agents import RunContextWrapper
from agents.tool import FunctionTool
from agents.tool_context import ToolContext
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from tenure.agents.calls import running_call
from tenure.agents.execution import Execution, execution, unit
from tenure.agents.own_calls import value_of
from tenure.control.own_tools import OwnTool, OwnToolContext
from tenure.domain.tools import EffectClass

DEFAULT_TIMEOUT_SECONDS: Final = 300.0
OUTPUT_LIMIT_BYTES: Final = 256 * 1024
INPUT_SCHEMA: Final[Mapping[str, Any]] = {"type": "object"}
"""The SDK validates the arguments."""

NeedsApproval = bool | Callable[[RunContextWrapper[Any], dict[str, Any], str], Awaitable[bool]]


class ApprovalUnavailable(RuntimeError):  # noqa: N818  the name says what is missing
    """A tool that needs an approval was called outside of a task, where Tenure asks nobody."""


class DurableInvocation:
    """Runs a function tool behind the fence in durable functions, and directly elsewhere."""

    def __init__(self, tool: FunctionTool, effect: EffectClass, timeout_seconds: float) -> None:
        self.original = tool
        self._name, self._description = tool.name, tool.description
        self._schema = tool.params_json_schema
        self._plain, self._approval = tool.on_invoke_tool, tool.needs_approval
        self._effect, self._timeout_seconds = effect, tool.timeout_seconds or timeout_seconds

    @property
    def needs_approval(self) -> bool:
        """Whether calls need an approval, or may: a function decides it for each."""
        return self._approval is not False

    async def __call__(self, context: ToolContext[Any], arguments: str) -> Any:
        """Returns what the model is told, recorded now or earlier."""
        current = execution()
        if current is not None:
            return await self._call(current, context, arguments)
        if self.needs_approval:
            raise ApprovalUnavailable(f"the durable tool {self._name} needs an approval, and so runs in tasks only")
        return await self._plain(context, arguments)

    async def _call(self, current: Execution, context: ToolContext[Any], arguments: str) -> Any:
        try:
            sent = json.loads(arguments or "{}")
        except (ValueError, RecursionError):  # a model may write broken JSON: it gets an error, and can call again
            sent = None
        if not isinstance(sent, dict):
            return f"The arguments of {self._name} must be a JSON object."

        async def run(call: OwnToolContext, given: Mapping[str, Any]) -> str:
            with unit(f"the tool {self._name}"), running_call(call):
                edited = arguments if given == sent else json.dumps(dict(given))
                return json.dumps(_recorded(await self._plain(context, edited)))

        tool = OwnTool(
            name=self._name,
            description=self._description,
            input_schema=INPUT_SCHEMA,
            shown_schema=self._schema,
            effect=self._effect,
            timeout_seconds=self._timeout_seconds,
            output_limit_bytes=OUTPUT_LIMIT_BYTES,
            needs_approval=await self._needs_approval(context, sent),
            run=run,
        )
        outcome = await current.own_calls.call(tool, sent)
        if outcome.is_error:
            return f"{outcome.status}: {outcome.content}"
        value = value_of(outcome.content)
        return value if isinstance(value, str | dict | list) else outcome.content

    async def _needs_approval(self, context: ToolContext[Any], arguments: dict[str, Any]) -> bool:
        if isinstance(self._approval, bool):
            return self._approval
        return bool(await self._approval(context, arguments, context.tool_call_id))


def needs_approval(tool: FunctionTool) -> bool:
    """Whether calls of a tool, durable or not, need an approval, or may."""
    invocation = tool.on_invoke_tool
    return invocation.needs_approval if isinstance(invocation, DurableInvocation) else tool.needs_approval is not False


def durable_tool(tool: FunctionTool, effect: EffectClass | None, timeout_seconds: float) -> FunctionTool:
    """Returns a durable copy of the tool. None: the tool itself, which runs in the function.

    A copy, because another agent may have the same tool with another effect class.
    """
    original = tool.on_invoke_tool.original if isinstance(tool.on_invoke_tool, DurableInvocation) else tool
    if effect is None:
        return original
    durable = copy.copy(original)
    durable.on_invoke_tool = DurableInvocation(original, effect, timeout_seconds)
    durable.needs_approval = False  # the invocation waits for the approval
    durable.timeout_seconds = None  # the call has the timeout, and a wait for an approval has none
    return durable


def _recorded(output: Any) -> Any:
    """Returns what a tool returned as a JSON value that the SDK tells the model in the same way."""
    if isinstance(output, BaseModel):
        return output.model_dump(mode="json", exclude_none=True)
    if isinstance(output, list):
        return [_recorded(each) for each in output]
    if isinstance(output, dict):  # the call has had its effect: no value in it may make it fail
        return to_jsonable_python(output, fallback=str)
    return output if isinstance(output, str) else str(output)
