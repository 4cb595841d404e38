"""Runs agents of the SDK durably when a durable function runs one with `Runner.run`, by each way to name its model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from agents import Agent, RunConfig, RunResult, RunResultStreaming
from agents.items import TResponseInputItem
from agents.memory import Session
from agents.models.interface import Model
from agents.run import AgentRunner, get_default_agent_runner, set_default_agent_runner
from agents.run_config import ToolExecutionConfig
from agents.run_internal.model_provider_lifecycle import (
    _close_runner_owned_model_provider,
    _normalize_run_config_for_runner,
)

from tenure.agents.execution import Execution, execution_of, execution_of_undeclared, unit
from tenure.agents.failures import UnfinishedRun
from tenure.agents.openai_agents.models import CallOptions, DurableModel, DurableProvider, name_of
from tenure.agents.openai_agents.one_answer import NEWEST_ANSWER, NewestAnswer
from tenure.control.failures import NotReplayable
from tenure.domain.models import OPENAI

Prepare = Callable[[Agent[Any]], tuple[CallOptions, bool]]
"""Makes an agent durable. Returns the options of its model calls, and whether its tools must run one at a time."""

IS_DURABLE: Final = "_tenure_effects"
"""The attribute of a durable agent with the effect classes of its tools by name."""


class DurableRunner(AgentRunner):
    """The SDK's default runner: durable in durable functions, and the former one elsewhere."""

    def __init__(self, inner: AgentRunner, prepare: Prepare) -> None:
        self._inner, self._prepare = inner, prepare

    async def run(self, starting_agent: Agent[Any], input: Any, **options: Any) -> RunResult:  # noqa: A002
        """Runs the agent. In a durable function its model calls and tools are recorded. Raises UnfinishedRun."""
        current = _execution(starting_agent)
        if current is None:
            return await self._inner.run(starting_agent, input, **options)
        calls, one_tool = self._prepare(starting_agent)
        config, is_owned = _normalize_run_config_for_runner(options.get("run_config"))
        session = options.get("session")
        if session is not None and not isinstance(session, DurableSession):
            options["session"] = DurableSession(current, session)
        options["run_config"] = durable_config(config, calls, one_tool=one_tool, replay_model=current.replay_model)
        try:
            with current.running(starting_agent.name), _newest_answer(options["run_config"]):
                result = await self._inner.run(starting_agent, input, **options)
        finally:
            if is_owned:
                await _close_runner_owned_model_provider(config.model_provider)
        if result.interruptions:
            names = ", ".join(str(each.tool_name or each.name) for each in result.interruptions)
            raise UnfinishedRun(
                f"agent {starting_agent.name} stopped for the approval of {names}, which Tenure cannot ask for: "
                "declare the tool before the worker starts"
            )
        return result

    def run_sync(self, starting_agent: Agent[Any], input: Any, **options: Any) -> RunResult:  # noqa: A002
        """Runs the agent outside of durable functions. Raises NotReplayable within one."""
        self._refuse(starting_agent, "run_sync")
        return self._inner.run_sync(starting_agent, input, **options)

    def run_streamed(self, starting_agent: Agent[Any], input: Any, **options: Any) -> RunResultStreaming:  # noqa: A002
        """Runs the agent outside of durable functions. Raises NotReplayable within one."""
        self._refuse(starting_agent, "run_streamed")
        return self._inner.run_streamed(starting_agent, input, **options)

    @staticmethod
    def _refuse(agent: Agent[Any], method: str) -> None:
        current = _execution(agent)
        if current is not None:
            raise current.fail(
                NotReplayable(f"agent {agent.name} cannot run by {method} in a task: use `await Runner.run(…)`")
            )


def _execution(agent: Agent[Any]) -> Execution | None:
    """Returns the execution to run an agent in. Raises NotReplayable for a durable agent in a recorded tool.

    The calls of an agent that is not durable are part of the recorded tool.
    """
    return execution_of(f"agent {agent.name}") if hasattr(agent, IS_DURABLE) else execution_of_undeclared(agent.name)


def install(prepare: Prepare) -> None:
    """Makes the SDK's default runner durable, once."""
    runner = get_default_agent_runner()
    if not isinstance(runner, DurableRunner):
        set_default_agent_runner(DurableRunner(runner, prepare))


def durable_config(config: RunConfig, calls: CallOptions, *, one_tool: bool, replay_model: str = "") -> RunConfig:
    """Returns the configuration with durable models. `one_tool`: one tool at a time. `replay_model`: of all agents."""
    model, provider, tools = config.model, config.model_provider, config.tool_execution
    if replay_model:
        model = replay_model.removeprefix(f"{OPENAI}:")
    if one_tool:
        tools = replace(tools or ToolExecutionConfig(), max_function_tool_concurrency=1)
    if isinstance(model, Model) and not isinstance(model, DurableModel):
        model = DurableModel(model, name_of(model), calls)
    if not isinstance(provider, DurableProvider):
        provider = DurableProvider(provider, calls)
    before, after = config.input_guardrails, config.output_guardrails
    return replace(
        config,
        model=model,
        model_provider=provider,
        tool_execution=tools,
        input_guardrails=None if before is None else [as_unit(each) for each in before],
        output_guardrails=None if after is None else [as_unit(each) for each in after],
    )


@contextmanager
def _newest_answer(config: RunConfig) -> Iterator[None]:
    """Lets the calls of one answer ask for approvals together, if the SDK does not run them at the same time."""
    tools = config.tool_execution
    is_limited = tools is not None and tools.max_function_tool_concurrency is not None
    token = NEWEST_ANSWER.set(NewestAnswer() if is_limited else None)
    try:
        yield
    finally:
        NEWEST_ANSWER.reset(token)


def as_unit(guardrail: Any) -> Any:
    """Returns a guardrail whose function is not part of the execution: it runs at the same time as the agent."""
    check = guardrail.guardrail_function
    if hasattr(check, "_tenure_unit"):
        return guardrail

    @functools.wraps(check)
    async def checked(*arguments: Any) -> Any:
        with unit(f"the guardrail {guardrail.get_name()}"):
            checked_output = check(*arguments)
            return await checked_output if inspect.isawaitable(checked_output) else checked_output

    vars(checked)["_tenure_unit"] = True
    return replace(guardrail, guardrail_function=checked)


class DurableSession:
    """A session whose reads and writes are steps: a later execution reads the same, and writes nothing again."""

    def __init__(self, current: Execution, session: Session) -> None:
        self._current, self._session = current, session
        self.session_id = session.session_id
        self.session_settings = getattr(session, "session_settings", None)

    async def get_items(self, *arguments: Any, **options: Any) -> list[TResponseInputItem]:
        """Returns the items, as they were at the first execution."""
        items: list[TResponseInputItem] = await self._step("get_items", arguments, options)
        return items

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Adds items once: twice only if the worker dies before this is recorded."""
        await self._step("add_items", (items,), {})

    async def pop_item(self) -> TResponseInputItem | None:
        """Removes the newest item and returns it."""
        item: TResponseInputItem | None = await self._step("pop_item", (), {})
        return item

    async def clear_session(self) -> None:
        """Removes all items."""
        await self._step("clear_session", (), {})

    async def _step(self, method: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        async def body() -> Any:
            return await getattr(self._session, method)(*arguments, **options)

        async with self._current.lock:
            return await self._current.work.step(f"session: {method}", body)
