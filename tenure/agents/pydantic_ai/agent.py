"""Agents of Pydantic AI as durable functions: `Agent`, and `durable` for an agent that exists already."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import cache, partial, wraps
from typing import Any, Final, TypeVar, overload

import pydantic_ai
from pydantic_ai import DeferredToolRequests
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model, infer_model
from pydantic_ai.output import OutputDataT, OutputSpec
from pydantic_ai.tools import AgentDepsT
from pydantic_core import to_jsonable_python

from tenure.agents.conversation import answer_messages
from tenure.agents.effects import effect_classes
from tenure.agents.execution import executing, execution_of, execution_of_undeclared
from tenure.agents.failures import UnfinishedRun
from tenure.agents.functions import DurableFunction, UndoTool, all_undo_tools
from tenure.agents.prompts import FromInput, made_from, prompt_of
from tenure.agents.pydantic_ai.content import describe
from tenure.agents.pydantic_ai.durability import DurableSettings, ReadsMessages, TenureDurability
from tenure.agents.pydantic_ai.model_calls import model_named
from tenure.agents.pydantic_ai.tool_calls import metadata_of
from tenure.agents.pydantic_ai.undo_tools import own_undo_tools
from tenure.control.own_tools import DEFAULT_TIMEOUT_SECONDS, OwnTool, checked_limits
from tenure.control.work import Work
from tenure.domain.models import DEFAULT_MAX_OUTPUT_TOKENS
from tenure.domain.tools import EffectClass

ToolFunction = TypeVar("ToolFunction", bound=Callable[..., Any])

_NO_EFFECTS: Final[Mapping[str, EffectClass | None]] = {}
_USUAL_LIMITS: Final[Mapping[str, int]] = {}
_log: Final = logging.getLogger(__name__)
_DURABILITY: Final = "_tenure_durability"
"""The attribute of a durable agent with its capability."""


def durable(
    agent: pydantic_ai.Agent[Any, Any],
    *,
    name: str = "",
    effects: Mapping[str, EffectClass | None] = _NO_EFFECTS,
    deps: FromInput | None = None,
    max_output_tokens: int = DEFAULT_MAX_OUTPUT_TOKENS,
    tool_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    output_limits: Mapping[str, int] = _USUAL_LIMITS,
    version: str = "",
    stream: bool = True,
    undo_tools: Sequence[UndoTool] = (),
) -> DurableFunction:
    """Makes an agent's runs in durable functions durable, and returns the function that runs it as a task.

    name: by which tasks ask for it; the agent's own by default. effects: the effect class of each tool by name; UNSAFE
    for the others. None: the tool runs in the function itself, so agents that it runs are durable too, if they are
    made so. deps: makes the dependencies of the agent from the task's input. max_output_tokens: of a model call whose
    settings name no `max_tokens`. tool_timeout_seconds: of a tool without a timeout of its own. output_limits: how
    many bytes of a tool's result the model reads, by name; 65,536 by default. version: of the code; another version is
    another revision, also if the agent says the same of itself (docs/versions.md). stream: False for a server that
    cannot stream its answers. undo_tools: the agents that its inline tools run, and own tools, with which compensations
    are made besides its own (docs/undo.md).

    The agent is changed in place: code that runs it within a task needs no change, and elsewhere it runs as before.
    Raises ValueError for an agent without a name, and for one that is durable already.
    """
    name = name or agent.name or ""
    if not name:
        raise ValueError("the agent has no name, which tasks find it by: write durable(agent, name='support')")
    if _DURABILITY in vars(agent):
        raise ValueError(f"the agent {name} is durable already")
    settings = DurableSettings(
        effects=effect_classes(effects),
        output_limits=checked_limits(output_limits),
        max_output_tokens=max_output_tokens,
        tool_timeout_seconds=tool_timeout_seconds,
        stream=stream,
    )
    vars(agent)[_DURABILITY] = TenureDurability(name, settings)
    _install()

    async def run(work: Work, given: Any) -> Any:
        with executing(work) as current:
            made = {} if deps is None else {"deps": await made_from(deps, given)}

            async def run_once(prompt: str, history: list[ModelMessage] | None) -> tuple[Any, list[ModelMessage]]:
                reading = [ReadsMessages(current)]
                result = await agent.run(prompt, message_history=history, capabilities=reading, **made)
                if isinstance(result.output, DeferredToolRequests):
                    calls = ", ".join(call.tool_name for call in result.output.calls)
                    raise UnfinishedRun(f"agent {name} called the external tools {calls}: a task cannot answer them")
                return result.output, result.all_messages()

            answer = await answer_messages(current, prompt_of(name, work, given), run_once)
        return to_jsonable_python(answer)

    def undoing(given: Any) -> list[OwnTool]:
        return all_undo_tools(name, [*own_undo_tools(agent, name, settings, deps, given), *undo_tools], given)

    content = describe(agent, name, settings, version)
    return DurableFunction(name, run, content, partial(_import_model, agent), undo_tools=undoing)


def _import_model(agent: pydantic_ai.Agent[Any, Any]) -> None:
    """Imports the library of the agent's model. It takes seconds, and in a run all tasks of the worker wait for it."""
    if isinstance(agent.model, str):
        try:
            _infer_once(agent.model)
        except Exception as error:  # noqa: BLE001  its tasks report it, unless their runs name another model
            _log.info("the model of an agent is not usable", extra={"agent": agent.name, "error": str(error)})


@cache
def _infer_once(model: str) -> None:
    """Agents of one model need its library once: a model reads all root certificates for a client of its own."""
    infer_model(model)


def _install() -> None:
    """Makes the runs of all agents durable that a durable function runs, once. All kinds of runs begin with `iter`."""
    plain = pydantic_ai.Agent.iter
    if hasattr(plain, _DURABILITY):
        return

    @wraps(plain)
    @asynccontextmanager
    async def iter_durably(
        agent: Any, *arguments: Any, capabilities: Sequence[Any] | None = None, **options: Any
    ) -> Any:
        name = agent.name or "agent"
        durability = vars(agent).get(_DURABILITY)
        current = execution_of_undeclared(name) if durability is None else execution_of(f"agent {durability.name}")
        if current is not None:
            durability = durability or TenureDurability(name, DurableSettings(effects=_NO_EFFECTS))
            capabilities = [*(capabilities or ()), durability]
        replay_model = "" if current is None else current.replay_model
        with (
            nullcontext() if current is None else current.running(name),
            agent.override(model=model_named(replay_model)) if replay_model else nullcontext(),
        ):
            async with plain(agent, *arguments, capabilities=capabilities, **options) as run:
                yield run

    setattr(iter_durably, _DURABILITY, True)
    pydantic_ai.Agent.iter = iter_durably  # type: ignore[method-assign, assignment]


class Agent(pydantic_ai.Agent[AgentDepsT, OutputDataT]):
    """A Pydantic AI agent whose runs as tasks are durable.

        agent = Agent("support", model="anthropic:claude-sonnet-5", instructions="Answer the customer.")

        @agent.tool_plain(effect=Effect.KEYED)
        async def refund(order: str, cents: int) -> str: ...

    The arguments are those of `pydantic_ai.Agent` and of `durable`. A tool takes `effect`: whether a call may run again
    when its worker died before its outcome was known. None: the tool runs in the agent's own function. `effect_key`: an
    `EffectKey`, by which calls are the same effect, which happens once. `compensation`: how an undo takes the effect
    back, made by `compensate_with`.
    """

    def __init__(
        self,
        name: str,
        *,
        model: Model | str | None = None,
        output_type: OutputSpec[OutputDataT] = str,  # type: ignore[assignment]  # as Pydantic AI declares it
        deps_type: type[AgentDepsT] = object,  # type: ignore[assignment]
        effects: Mapping[str, EffectClass | None] = _NO_EFFECTS,
        deps: FromInput | None = None,
        max_output_tokens: int = DEFAULT_MAX_OUTPUT_TOKENS,
        tool_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        output_limits: Mapping[str, int] = _USUAL_LIMITS,
        version: str = "",
        stream: bool = True,
        undo_tools: Sequence[UndoTool] = (),
        **options: Any,
    ) -> None:
        options.setdefault("defer_model_check", True)  # the worker may find the model's settings after this
        super().__init__(model, output_type=output_type, deps_type=deps_type, name=name, **options)
        self._durable_function = durable(
            self,
            effects=effects,
            deps=deps,
            max_output_tokens=max_output_tokens,
            tool_timeout_seconds=tool_timeout_seconds,
            output_limits=output_limits,
            version=version,
            stream=stream,
            undo_tools=undo_tools,
        )

    @property
    def durable_function(self) -> DurableFunction:
        """The function that runs the agent as a task."""
        return self._durable_function

    @overload
    def tool(self, func: ToolFunction, /) -> ToolFunction: ...

    @overload
    def tool(
        self, /, *, effect: EffectClass | None = ..., **options: Any
    ) -> Callable[[ToolFunction], ToolFunction]: ...

    def tool(self, func: Any = None, /, *, effect: EffectClass | None = EffectClass.UNSAFE, **options: Any) -> Any:
        """Adds a tool that takes the context, as in Pydantic AI; in a task the context has `idempotency_key`."""
        return self._with_effect(super().tool, func, effect, options)

    @overload
    def tool_plain(self, func: ToolFunction, /) -> ToolFunction: ...

    @overload
    def tool_plain(
        self, /, *, effect: EffectClass | None = ..., **options: Any
    ) -> Callable[[ToolFunction], ToolFunction]: ...

    def tool_plain(
        self, func: Any = None, /, *, effect: EffectClass | None = EffectClass.UNSAFE, **options: Any
    ) -> Any:
        """Adds a tool that takes no context, as in Pydantic AI."""
        return self._with_effect(super().tool_plain, func, effect, options)

    @staticmethod
    def _with_effect(add: Any, func: Any, effect: EffectClass | None, options: dict[str, Any]) -> Any:
        stated = metadata_of(effect, options.pop("effect_key", None), options.pop("compensation", None))
        metadata = {**(options.pop("metadata", None) or {}), **stated}
        decorator = add(metadata=metadata, **options)
        return decorator if func is None else decorator(func)
