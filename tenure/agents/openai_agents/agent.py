"""Agents of the OpenAI Agents SDK as durable functions: `durable`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from agents import Agent, RunConfig, Runner
from agents.handoffs import Handoff
from agents.models.interface import Model
from agents.tool import (
    CodeInterpreterTool,
    FileSearchTool,
    FunctionTool,
    HostedMCPTool,
    ImageGenerationTool,
    ProgrammaticToolCallingTool,
    ToolSearchTool,
    WebSearchTool,
)
from pydantic_core import to_jsonable_python

from tenure.agents.conversation import answer_messages
from tenure.agents.effects import check_declared, effect_classes
from tenure.agents.execution import executing
from tenure.agents.functions import DurableFunction, UndoTool, all_undo_tools
from tenure.agents.openai_agents.content import content_of, functions, known_tools, reachable, target_of
from tenure.agents.openai_agents.messages import FinishedTurn, MessagesOfUsers
from tenure.agents.openai_agents.models import CallOptions, DurableModel, name_of
from tenure.agents.openai_agents.runner import IS_DURABLE, as_unit, install
from tenure.agents.openai_agents.tools import DurableInvocation, durable_tool
from tenure.agents.prompts import FromInput, made_from, prompt_of
from tenure.agents.undo_tools import check_arguments, two_tools_of
from tenure.control.own_tools import DEFAULT_TIMEOUT_SECONDS, OwnTool, checked_limits
from tenure.control.work import Work
from tenure.domain.agents import AgentContent
from tenure.domain.effect_keys import EffectKey
from tenure.domain.models import DEFAULT_MAX_OUTPUT_TOKENS
from tenure.domain.tools import USUAL_OUTPUT_BYTES, Compensation, EffectClass

MAX_TURNS: Final = 100
Declared = TypeVar("Declared")
_HOSTED: Final = (
    CodeInterpreterTool,
    FileSearchTool,
    HostedMCPTool,
    ImageGenerationTool,
    ProgrammaticToolCallingTool,
    ToolSearchTool,
    WebSearchTool,
)
"""The tools that the provider runs. All others run here, where only functions can be recorded."""
_NO_EFFECTS: Final[Mapping[str, EffectClass | None]] = {}
_NO_KEYS: Final[Mapping[str, EffectKey]] = {}
_NO_COMPENSATIONS: Final[Mapping[str, Compensation]] = {}
_USUAL_LIMITS: Final[Mapping[str, int]] = {}
_SETTINGS: Final = "_tenure_settings"
"""The attribute of a durable agent with the settings that it was made durable with."""


@dataclass(frozen=True, kw_only=True)
class _Settings:
    effects: Mapping[str, EffectClass | None]
    calls: CallOptions
    tool_timeout_seconds: float
    effect_keys: Mapping[str, EffectKey] = field(default_factory=dict)
    compensations: Mapping[str, Compensation] = field(default_factory=dict)
    output_limits: Mapping[str, int] = field(default_factory=dict)


_DEFAULTS: Final = _Settings(effects=_NO_EFFECTS, calls=CallOptions(), tool_timeout_seconds=DEFAULT_TIMEOUT_SECONDS)
"""For an agent that a durable function runs, and that is not durable itself."""


def durable(
    agent: Agent[Any],
    *,
    name: str = "",
    effects: Mapping[str, EffectClass | None] = _NO_EFFECTS,
    effect_keys: Mapping[str, EffectKey] = _NO_KEYS,
    compensations: Mapping[str, Compensation] = _NO_COMPENSATIONS,
    context: FromInput | None = None,
    run_config: RunConfig | None = None,
    max_turns: int = MAX_TURNS,
    max_output_tokens: int = DEFAULT_MAX_OUTPUT_TOKENS,
    tool_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    output_limits: Mapping[str, int] = _USUAL_LIMITS,
    version: str = "",
    stream: bool = True,
    undo_tools: Sequence[UndoTool] = (),
) -> DurableFunction:
    """Makes an agent, its handoffs and the agents among its tools durable, and returns the function that runs it.

    name: by which tasks ask for it; the agent's own by default. effects: the effect class of each function tool by
    name; UNSAFE for the others. None: the tool runs in the function itself, as agents among the tools do. effect_keys:
    by tool name, the arguments by which calls are the same effect, which happens once (docs/effects.md).
    compensations: by tool name, how an undo takes the effect back, made by `compensate_with` (docs/undo.md). context:
    makes the run's context from the task's input. max_output_tokens: of a model call whose settings name no
    `max_tokens`. tool_timeout_seconds: of a tool without a timeout of its own. output_limits: how many bytes of a
    tool's result the model reads, by name; 65,536 by default. version: of the code; another version is another
    revision, also if the agent says the same of itself (docs/versions.md). stream: False for a server that cannot
    stream its answers. undo_tools: the agents that its inline tools run by `Runner.run`, and own tools, with which
    compensations are made besides those of these agents.

    The agents are changed in place and get copies of their tools; outside of tasks they run as before, except tools
    that need an approval. Raises ValueError for an agent with tools that Tenure cannot record, for one that is part of
    two durable functions with different declarations of a tool, and for what is declared of a tool without calls.
    """
    settings = _Settings(
        effects=effect_classes(effects),
        calls=CallOptions(max_output_tokens, streams=stream),
        tool_timeout_seconds=tool_timeout_seconds,
        effect_keys=_checked(effect_keys, EffectKey, "effect key must be a tenure.agents.EffectKey"),
        compensations=_checked(compensations, Compensation, "compensation must be made by compensate_with"),
        output_limits=checked_limits(output_limits),
    )
    _prepare(agent, settings, set())
    install(_prepared_for_run)
    name = name or agent.name

    async def run(work: Work, given: Any) -> Any:
        with executing(work) as current:
            made = None if context is None else await made_from(context, given)

            async def run_once(prompt: str, before: FinishedTurn | None) -> tuple[Any, FinishedTurn]:
                messages = MessagesOfUsers(current, run_config or RunConfig())
                result = await Runner.run(
                    agent if before is None else before.agent,
                    prompt if before is None else before.then(prompt),
                    context=made,
                    max_turns=max_turns,
                    run_config=messages.config,
                )
                return result.final_output, FinishedTurn(result.last_agent, messages.placed(result.to_input_list()))

            answer = await answer_messages(current, prompt_of(name, work, given), run_once)
        return to_jsonable_python(answer)

    def content() -> AgentContent:
        _prepare(agent, settings, set())  # it may have got tools since
        if (tools := known_tools(agent)) is not None:
            declared = ("effects", "effect_keys", "compensations", "output_limits")
            check_declared(name, tools, {each: getattr(settings, each) for each in declared})
        return content_of(agent, max_output_tokens, version)

    def undoing(given: Any) -> list[OwnTool]:
        return all_undo_tools(name, [*_undo_tools(agent, context, given), *undo_tools], given)

    return DurableFunction(name, run, content, undo_tools=undoing)


def _checked(given: Mapping[str, Declared], kind: type[Declared], rule: str) -> dict[str, Declared]:
    for tool, declared in given.items():
        if not isinstance(declared, kind):
            raise ValueError(f"tool {tool}: its {rule}")  # noqa: TRY004  as above
        if isinstance(declared, EffectKey):
            declared.check()
    return dict(given)


def _prepared_for_run(agent: Agent[Any]) -> tuple[CallOptions, bool]:
    """Makes an agent durable that a function runs, with the settings of its own `durable` if there are any."""
    settings: _Settings = getattr(agent, _SETTINGS, _DEFAULTS)
    return settings.calls, _prepare(agent, settings, set())


def _prepare(agent: Agent[Any], settings: _Settings, seen: set[int]) -> bool:
    """Makes the models and tools of an agent durable, and those of the agents that it may hand over to.

    Returns whether tools must run one at a time, because one of them runs in the function itself, or may: the order of
    its calls identifies them in a later execution.
    """
    if id(agent) in seen:
        return False
    seen.add(id(agent))
    if agent.mcp_servers:
        raise ValueError(f"agent {agent.name} has MCP servers: let the tool service run them (docs/tools.md)")
    if isinstance(agent.model, Model) and not isinstance(agent.model, DurableModel):
        agent.model = DurableModel(agent.model, name_of(agent.model), settings.calls)
    alone = _prepare_tools(agent, settings, seen)
    agent.input_guardrails = [as_unit(each) for each in agent.input_guardrails]
    agent.output_guardrails = [as_unit(each) for each in agent.output_guardrails]
    setattr(agent, _SETTINGS, getattr(agent, _SETTINGS, settings))
    for handoff in agent.handoffs:
        if isinstance(handoff, Handoff):
            handoff.on_invoke_handoff = _prepared_later(handoff.on_invoke_handoff, settings)
            alone.append(True)
        if (target := target_of(handoff)) is not None:
            alone.append(_prepare(target, settings, seen))
    return any(alone)


def _prepare_tools(agent: Agent[Any], settings: _Settings, seen: set[int]) -> list[bool]:
    """Makes the tools of an agent durable. Returns for each whether it runs in the function itself."""
    declared: dict[str, _Declared] = getattr(agent, IS_DURABLE, {})
    tools, alone = list(agent.tools), []
    for index, tool in enumerate(tools):
        if not isinstance(tool, FunctionTool):
            _check_provider_runs(agent, tool)
            continue
        effect, key, compensation = stated = _declared(tool, settings, seen)
        if declared.setdefault(tool.name, stated) != stated:
            raise ValueError(
                f"agent {agent.name} is part of two durable functions, one with the effect {declared[tool.name]} of its"
                f" tool {tool.name}, the other with {stated}: declare the same effect in both, or give each function an"
                " agent of its own"
            )
        if not isinstance(tool.on_invoke_tool, DurableInvocation) or not hasattr(agent, IS_DURABLE):
            limit = settings.output_limits.get(tool.name, USUAL_OUTPUT_BYTES)
            tools[index] = durable_tool(tool, effect, settings.tool_timeout_seconds, limit, key, compensation)
        alone.append(effect is None)
    agent.tools = tools
    setattr(agent, IS_DURABLE, declared)
    return alone


def _check_provider_runs(agent: Agent[Any], tool: Any) -> None:
    """Raises ValueError for a tool that the provider does not run, or whose approvals Tenure cannot ask for."""
    if not isinstance(tool, _HOSTED):
        raise ValueError(  # noqa: TRY004  the type is allowed elsewhere
            f"agent {agent.name} has the tool {tool.name}, whose effects Tenure cannot record: use a function"
        )
    if not isinstance(tool, HostedMCPTool) or tool.on_approval_request is not None:
        return
    if tool.tool_config.get("require_approval") != "never":
        raise ValueError(
            f"agent {agent.name} has a hosted MCP server whose calls need approvals that Tenure cannot ask for: set "
            "require_approval to never, or give on_approval_request"
        )


class _Declared(NamedTuple):
    """What is declared of a tool."""

    effect: EffectClass | None
    key: EffectKey | None = None
    compensation: Compensation | None = None

    def __str__(self) -> str:
        return " and ".join([f"{self.effect}", *(f"{each}" for each in self[1:] if each is not None)])


def _declared(tool: FunctionTool, settings: _Settings, seen: set[int]) -> _Declared:
    """Returns what is declared of a tool; a clone's tools keep theirs. Raises ValueError for a tool without calls."""
    effect, kept = _effect_of(tool, settings, seen), tool.on_invoke_tool
    before = _Declared(None, kept.effect_key, kept.compensation) if isinstance(kept, DurableInvocation) else _NOTHING
    key = settings.effect_keys.get(tool.name, before.key)
    compensation = settings.compensations.get(tool.name, before.compensation)
    if effect is None and (key or compensation):
        what = "no effect key" if key else "no compensation"
        raise ValueError(f"tool {tool.name} has effect=None, so no calls of its own, and so {what}")
    return _Declared(effect, key, compensation)


_NOTHING: Final = _Declared(None)


def _undo_tools(agent: Agent[Any], context: FromInput | None, given: Any) -> list[OwnTool]:
    """Returns the tools of the agent, and of those that it hands over to, that compensations name.

    Raises ValueError for a compensation whose tool is not a recorded tool of these agents, is two of them, or has
    other arguments.
    """
    invocations = [tool.on_invoke_tool for each in reachable(agent) for tool in functions(each)]
    recorded = [each for each in invocations if isinstance(each, DurableInvocation) and each.effect]
    known = {each.original.name: each for each in recorded}
    declared = [each.compensation for each in recorded if each.compensation and each.compensation.own_tool]
    wanted = {each.tool for each in declared}
    if missing := sorted(wanted - known.keys()):
        what = f"a compensation calls {missing[0]}, which is not a recorded tool of the agent"
        raise ValueError(f"agent {agent.name}: {what}")
    for each in recorded:
        if each.original.name in wanted and each.original is not known[each.original.name].original:
            raise two_tools_of(agent.name, each.original.name)
    for compensation in declared:
        check_arguments(agent.name, compensation, known[compensation.tool].original.params_json_schema)
    return [known[name].undo_tool(context, given) for name in sorted(wanted)]


def _effect_of(tool: FunctionTool, settings: _Settings, seen: set[int]) -> EffectClass | None:
    """Returns the declared effect class of a tool; a clone's tools keep theirs. Prepares the agent that it may be."""
    inner = getattr(tool, "_agent_instance", None)
    if inner is not None:
        _prepare(inner, settings, seen)
    if tool.name in settings.effects:
        return settings.effects[tool.name]
    if isinstance(tool.on_invoke_tool, DurableInvocation):
        return tool.on_invoke_tool.effect
    return None if inner is not None else EffectClass.UNSAFE


def _prepared_later(
    invoke: Callable[[Any, str], Awaitable[Any]], settings: _Settings
) -> Callable[[Any, str], Awaitable[Any]]:
    """Prepares the agent of a handoff when it is known."""
    if hasattr(invoke, _SETTINGS):
        return invoke

    async def prepared(context: Any, arguments: str) -> Any:
        agent = await invoke(context, arguments)
        _prepare(agent, settings, set())
        return agent

    setattr(prepared, _SETTINGS, settings)
    return prepared
