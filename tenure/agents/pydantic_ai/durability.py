"""Routes the operations of a Pydantic AI agent through the `Work` of the function that runs it."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar, cast

import pydantic_ai
from pydantic_ai import AgentRunResult
from pydantic_ai.capabilities import AbstractCapability, ValidatedToolArgs, WrapRunHandler, WrapToolExecuteHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    BoundDurableOperation,
    DurabilityEngineSpec,
    DurableOperation,
    DurableOperationBackend,
    JournalOperationNamer,
    ModelRequestId,
    ModelRequestParams,
    ToolsetCallToolId,
    ToolsetCallToolParams,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    conversation_id_from_run_id,
    durable_unit_scope,
)
from pydantic_ai.durable_exec._utils import DurableModel
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.tools import (
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    ToolApproved,
    ToolDefinition,
    ToolDenied,
)
from pydantic_ai.toolsets import ToolsetTool

from tenure.agents.approvals import inline_tool, offered_tools, permission
from tenure.agents.execution import Execution, execution, execution_of, unit
from tenure.agents.pydantic_ai.model_calls import (
    CallSettings,
    Handler,
    call_model,
    ledger_model,
    new_content,
    reporting_model,
)
from tenure.agents.pydantic_ai.tool_calls import (
    KEY,
    NEEDS_APPROVAL,
    CallParams,
    Effects,
    call_tool,
    effect_of,
    own_tool,
)
from tenure.control.failures import NotReplayable, TryAgain
from tenure.control.own_tools import DEFAULT_TIMEOUT_SECONDS, OwnTool
from tenure.control.work import LookUp
from tenure.domain.models import DEFAULT_MAX_OUTPUT_TOKENS
from tenure.domain.tools import USUAL_OUTPUT_BYTES, EffectClass
from tenure.domain.tools import ToolDefinition as ShownTool

_RECORDED: Final = frozenset({"pydantic_ai.toolsets.function", "pydantic_ai.durable_exec._toolset", "pydantic_ai.mcp"})
"""The modules of the toolsets whose calls Pydantic AI gives to the backend."""
MAX_STEP_NAME_CHARACTERS: Final = 200

P = TypeVar("P")
W = TypeVar("W")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class DurableSettings:
    """The settings by which an agent's operations become steps, model calls and tool calls.

    `effects`: the effect classes of tools by name, before those in the tools' metadata. `output_limits`: how many bytes
    of a tool's result the model reads, by name, where not the usual number. `max_output_tokens`: of a model
    call whose settings name no `max_tokens`. `tool_timeout_seconds`: of a tool without a timeout of its own. `stream`:
    model calls stream their answers.
    """

    effects: Effects
    output_limits: Mapping[str, int] = field(default_factory=dict)
    max_output_tokens: int = DEFAULT_MAX_OUTPUT_TOKENS
    tool_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    stream: bool = True


class _Bound(BoundDurableOperation[P, W, R], Generic[P, W, R]):
    """An operation that runs through `dispatch`."""

    def __init__(
        self, operation: DurableOperation[P, W, R], dispatch: Callable[[P, EffectClass | None], Awaitable[Any]]
    ) -> None:
        self._operation, self._dispatch = operation, dispatch

    @property
    def operation(self) -> DurableOperation[P, W, R]:
        return self._operation

    async def __call__(self, params: P, *, config: object | None = None) -> R:
        effect = config if isinstance(config, EffectClass) else None
        return self._operation.result_codec.load(await self._dispatch(params, effect))


class WorkBackend(DurableOperationBackend[EffectClass]):
    """Runs model requests by `Work.call_model`, tools by `Work.call_own_tools`, and all else by `Work.step`."""

    def __init__(self, agent: str, settings: DurableSettings) -> None:
        self._agent, self._settings = agent, settings
        self._namer = JournalOperationNamer(agent)

    def bind(self, operation: DurableOperation[P, W, R]) -> BoundDurableOperation[P, W, R]:
        """Returns the operation's caller."""
        dispatch: Callable[[Any, EffectClass | None], Awaitable[Any]]
        match operation.operation_id:
            case ModelRequestId():
                dispatch = partial(self._call_model, operation)
            case ToolsetCallToolId():
                dispatch = partial(self._call_tool, operation)
            case _:
                dispatch = partial(self._step, operation)
        return _Bound(operation, dispatch)

    def config_for_tool(
        self,
        operation: DurableOperation[P, W, R],  # noqa: ARG002
        *,
        tool: object | None,
        tool_name: str,
    ) -> EffectClass | Literal[False]:
        """Returns the effect class of a tool; False: the tool runs in the function itself."""
        definition = tool.tool_def if isinstance(tool, ToolsetTool) else ToolDefinition(name=tool_name)
        return effect_of(definition, self._settings.effects) or False

    def registrations(self) -> Sequence[Callable[..., object]]:
        """Returns nothing: operations need no registration."""
        return ()

    async def _call_model(
        self, operation: DurableOperation[Any, Any, Any], params: ModelRequestParams, _effect: EffectClass | None
    ) -> Any:
        handler = cast("Handler", operation.handler)
        settings = CallSettings(
            self._settings.max_output_tokens, self._offered(params.model_request_parameters.function_tools)
        )
        return await call_model(_current(), self._agent, operation, params, handler, settings)

    def _offered(self, tools: Sequence[ToolDefinition]) -> tuple[ShownTool, ...]:
        return offered_tools(partial(self._own_tool, tool.name, tool) for tool in tools)

    def _own_tool(self, name: str, definition: ToolDefinition, effect: EffectClass | None = None) -> OwnTool:
        """Returns a tool as people see it. `effect`: the one by which Pydantic AI makes a call of it."""
        effect = effect or effect_of(definition, self._settings.effects)
        if effect is None:
            return inline_tool(name, definition.description or "", definition.parameters_json_schema)
        limit_bytes = self._settings.output_limits.get(name, USUAL_OUTPUT_BYTES)
        return own_tool(name, definition, effect, self._settings.tool_timeout_seconds, limit_bytes)

    async def _call_tool(
        self, operation: DurableOperation[Any, Any, Any], params: CallParams, effect: EffectClass | None
    ) -> Any:
        definition = _definition_of(params)
        effect = effect or effect_of(definition, self._settings.effects) or EffectClass.UNSAFE
        tool = self._own_tool(params.name, definition, effect)
        return await call_tool(_current(), operation, params, definition, tool)

    async def _step(self, operation: DurableOperation[Any, Any, Any], params: Any, _effect: EffectClass | None) -> Any:
        label = operation.invocation_label(params) if operation.invocation_label is not None else None
        name = self._namer.invocation_name(operation.operation_id, label=label).operation_name

        async def body() -> Any:
            with unit(f"the step {name}"), durable_unit_scope(), repeated_discovery(operation.operation_id):
                return operation.result_codec.dump(await operation.handler(params))

        is_look_up = isinstance(operation.operation_id, ToolsetGetToolsId | ToolsetGetInstructionsId)
        current, name = _current(), name[:MAX_STEP_NAME_CHARACTERS]
        async with current.lock:
            return await current.work.step(LookUp(name) if is_look_up else name, body)


class TenureDurability(BaseDurabilityCapability[Any]):
    """Makes the runs of an agent durable when a durable function runs it; elsewhere the agent is as before."""

    engine_spec: ClassVar = DurabilityEngineSpec(
        engine_name="Tenure",
        durable_unit_noun="step",
        durable_container_noun="task",
        codec=JSON_CODEC,
        toolset_lifecycles={"function": "enter-never", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        sequential_tools_in_durable_context=False,
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key=KEY,
    )

    def __init__(self, name: str, settings: DurableSettings) -> None:
        super().__init__(name=name)
        self._settings = settings

    @property
    def in_durable_context(self) -> bool:
        return execution() is not None

    def get_durable_operation_backend(self) -> DurableOperationBackend[Any]:
        return WorkBackend(self.name, self._settings)

    def get_default_run_id(self) -> str | None:
        current = execution()
        return None if current is None else current.next_run_id()

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:  # noqa: ARG002
        """Returns when the run began first, so that its `timeout=` counts from there."""
        current = execution()
        if current is None:
            return None
        async with current.lock:
            began = await current.work.step(LookUp(f"{self.name}: start of the run"), _now)
        return datetime.fromisoformat(began)

    async def _build_durable_model(self, ctx: RunContext[Any], request_context: ModelRequestContext) -> Any:
        """Makes each model of a FallbackModel durable by itself: each request has its own record, price and bill."""
        model = request_context.model
        if not isinstance(model, FallbackModel):
            self._models_by_id.setdefault(f"run-{id(model)}", model)
            return await super()._build_durable_model(replace(ctx, model=model), request_context)
        durable = copy.copy(model)
        durable.models = [
            await self._build_durable_model(ctx, replace(request_context, model=each)) for each in model.models
        ]
        return durable

    async def _ensure_durable_model(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        model = request_context.model
        if isinstance(model, FallbackModel) and all(isinstance(each, DurableModel) for each in model.models):
            return request_context
        return await super()._ensure_durable_model(ctx, request_context)

    def get_wrapper_model(self, model: Model) -> Model | None:
        return reporting_model(model, streams=self._settings.stream)

    async def prepare_tools(
        self,
        ctx: RunContext[Any],  # noqa: ARG002
        tool_defs: list[ToolDefinition],
    ) -> list[ToolDefinition]:
        """Lets recorded tools that need an approval wait for a person as calls of the task, and not end the run.

        A tool that runs in the function itself stays deferred until a person has allowed its call, and runs alone: the
        order of its calls identifies them later.
        """
        current = execution()
        if current is None:
            return tool_defs
        return [self._prepared(tool, current.work.approve_tools) for tool in tool_defs]

    def _prepared(self, tool: ToolDefinition, approve_tools: Collection[str]) -> ToolDefinition:
        is_inline = effect_of(tool, self._settings.effects) is None
        if tool.kind == "unapproved" or (tool.kind == "function" and tool.name in approve_tools):
            tool = replace(tool, kind="unapproved") if is_inline else _waiting(tool)
        return self._alone(tool) if is_inline else tool

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: ValidatedToolArgs,
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Refuses calls that nothing would record or let a person approve: out of a recorded tool, or of a toolset of a
        kind that Pydantic AI cannot make durable.
        """
        current = execution_of(f"the tool {tool_def.name}")
        if current is not None and effect_of(tool_def, self._settings.effects) is not None:
            toolset = _unrecorded_toolset(ctx, tool_def)
            if toolset:
                raise current.fail(
                    NotReplayable(
                        f"the tool {tool_def.name} is of a {toolset}, whose calls cannot be recorded: make it a tool of"
                        " a FunctionToolset, or declare it with effect=None"
                    )
                )
        return await super().wrap_tool_execute(ctx, call=call, tool_def=tool_def, args=args, handler=handler)

    async def prepare_output_tools(
        self,
        ctx: RunContext[Any],  # noqa: ARG002
        tool_defs: list[ToolDefinition],
    ) -> list[ToolDefinition]:
        """Lets output functions run alone, as other code in the function itself: they may make recorded calls."""
        return [self._alone(tool) for tool in tool_defs] if self.in_durable_context else tool_defs

    @staticmethod
    def _alone(tool: ToolDefinition) -> ToolDefinition:
        return replace(tool, sequential=True)

    async def wrap_run(self, ctx: RunContext[Any], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Runs the recorded tools of one answer in parallel, and all others alone, in the order of the answer."""
        if not self.in_durable_context:
            return await super().wrap_run(ctx, handler=handler)
        with pydantic_ai.Agent.parallel_tool_call_execution_mode("parallel_ordered_events"):
            return await super().wrap_run(ctx, handler=handler)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Asks a person about calls of inline tools that need an approval, and those that raised ApprovalRequired."""
        current = execution()
        if current is None or not requests.approvals:
            return None
        made = await asyncio.gather(*(_permission(current, ctx, call) for call in requests.approvals))
        approvals = {call.tool_call_id: answer for call, answer in zip(requests.approvals, made, strict=True)}
        return requests.build_results(approvals=dict[str, bool | ToolApproved | ToolDenied](approvals))


class ReadsMessages(AbstractCapability[Any]):
    """Gives an agent the messages that users send while it works, in its next request, and the images of the task."""

    def __init__(self, current: Execution) -> None:
        self._current = current

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        ctx.enqueue(*await new_content(self._current, ledger_model(request_context.model)))
        return request_context


async def _permission(current: Execution, ctx: RunContext[Any], call: ToolCallPart) -> ToolApproved | ToolDenied:
    """Asks for a call. A person may change its arguments."""
    known = None if ctx.tool_manager is None else ctx.tool_manager.get_tool_def(call.tool_name)
    tool, given = known or ToolDefinition(name=call.tool_name), call.args_as_dict()
    outcome = await permission(current, tool.name, tool.description or "", tool.parameters_json_schema, given)
    if outcome.is_error:
        return ToolDenied(f"{outcome.status}: {outcome.text}")
    allowed = json.loads(outcome.content)
    return ToolApproved() if allowed == given else ToolApproved(override_args=allowed)


@contextmanager
def repeated_discovery(operation: object) -> Iterator[None]:
    """Lets the task try again when an MCP server did not start or answer: to ask it for its tools has no effect.

    A command that does not exist, and a mistake in the program, is there the next time, too.
    """
    try:
        yield
    except (FileNotFoundError, PermissionError, UserError, NotReplayable):
        raise
    except Exception as error:
        is_mcp = isinstance(operation, ToolsetGetToolsId) and operation.toolset_kind == "mcp"
        if not is_mcp and not isinstance(operation, ToolsetGetInstructionsId):
            raise
        raise TryAgain(f"the MCP server did not answer: {type(error).__name__}: {error}") from error


def _current() -> Execution:
    current = execution()
    assert current is not None, "Pydantic AI asks only in a durable context"
    return current


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _waiting(tool: ToolDefinition) -> ToolDefinition:
    return replace(tool, kind="function", metadata={**(tool.metadata or {}), NEEDS_APPROVAL: True})


def _unrecorded_toolset(ctx: RunContext[Any], tool: ToolDefinition) -> str:
    """Returns the class of the tool's toolset if its calls go past the backend; "" for all others.

    Those of Pydantic AI itself, such as the search for tools, change nothing outside of the run.
    """
    known_tool = None if ctx.tool_manager is None else (ctx.tool_manager.tools or {}).get(tool.name)
    if known_tool is None:
        return ""
    modules = [each.__module__ for each in type(known_tool.toolset).__mro__]
    needs_approval = bool((tool.metadata or {}).get(NEEDS_APPROVAL))
    is_harmless = modules[0].startswith("pydantic_ai.") and not needs_approval
    return "" if is_harmless or not _RECORDED.isdisjoint(modules) else type(known_tool.toolset).__name__


def _definition_of(params: CallParams) -> ToolDefinition:
    tool = params.tool.tool_def if isinstance(params, ToolsetCallToolParams) and params.tool is not None else None
    if not isinstance(params, ToolsetCallToolParams):
        tool = params.tool_def
    return tool or ToolDefinition(name=params.name)
