"""Agents and functions in Python, as durable tasks that your own workers run.

    from tenure.agents import Agent, Effect, Worker

    agent = Agent("support", model="anthropic:claude-sonnet-5", instructions="Answer the customer.")

    @agent.tool_plain(effect=Effect.KEYED)
    async def refund(order: str, cents: int) -> str: ...

    Worker([agent]).run()

docs/agents.md is the guide. A name is imported at its first use: only `Agent` and `durable` need Pydantic AI.

calls.py          tool_call: the call that a tool runs for, with its idempotency key
execution.py      the execution of a function that code runs in; current_work
conversation.py   users' messages to the agent of a task
prompts.py        the prompt and the dependencies of a run, from the task
approvals.py      asks a person about calls of inline tools, and of tools that ask while they run
shared_state.py   finds changes of the value that the tools of a run share
effects.py        the effect class that a program gives a tool
own_calls.py      the tool calls of one answer of a model as one step: in parallel
output_report.py  the report of a model call while it runs: its usage, stated or estimated
vendor_clients.py by_runner: lets a client of a vendor's library make its model calls by the model runner
whole_streams.py  tells a streamed answer that was cut off from a whole one
failures.py       failures of model requests, as the ledger has them
undo_tools.py     own tools that undo effects: names and arguments
functions.py      @function, and what a worker runs: DurableFunction
worker.py         Worker: a whole worker process with your agents and functions
dev_stack.py      finds the stack of `tenure dev` that runs here
pydantic_ai/      agents of Pydantic AI
openai_agents/    agents of the OpenAI Agents SDK
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from tenure.server_packages import extra_packages

if TYPE_CHECKING:
    from tenure.agents.calls import tool_call
    from tenure.agents.execution import current_work
    from tenure.agents.functions import DurableFunction, function
    from tenure.agents.pydantic_ai.agent import Agent, durable
    from tenure.agents.vendor_clients import by_runner
    from tenure.agents.worker import Worker
    from tenure.control.failures import TryAgain
    from tenure.control.own_tools import EffectUnknown, compensate_with
    from tenure.control.work import Work
    from tenure.domain.effect_keys import EffectKey, EffectScope, OnRepeat
    from tenure.domain.tools import EffectClass as Effect

_PLACES: Final = {
    "Agent": ("tenure.agents.pydantic_ai.agent", "Agent"),
    "DurableFunction": ("tenure.agents.functions", "DurableFunction"),
    "Effect": ("tenure.domain.tools", "EffectClass"),
    "EffectKey": ("tenure.domain.effect_keys", "EffectKey"),
    "EffectScope": ("tenure.domain.effect_keys", "EffectScope"),
    "EffectUnknown": ("tenure.control.own_tools", "EffectUnknown"),
    "OnRepeat": ("tenure.domain.effect_keys", "OnRepeat"),
    "TryAgain": ("tenure.control.failures", "TryAgain"),
    "Work": ("tenure.control.work", "Work"),
    "Worker": ("tenure.agents.worker", "Worker"),
    "by_runner": ("tenure.agents.vendor_clients", "by_runner"),
    "compensate_with": ("tenure.control.own_tools", "compensate_with"),
    "current_work": ("tenure.agents.execution", "current_work"),
    "durable": ("tenure.agents.pydantic_ai.agent", "durable"),
    "function": ("tenure.agents.functions", "function"),
    "tool_call": ("tenure.agents.calls", "tool_call"),
}

__all__ = (
    "Agent",
    "DurableFunction",
    "Effect",
    "EffectKey",
    "EffectScope",
    "EffectUnknown",
    "OnRepeat",
    "TryAgain",
    "Work",
    "Worker",
    "by_runner",
    "compensate_with",
    "current_work",
    "durable",
    "function",
    "tool_call",
)


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use. Raises MissingExtra without `tenure[agents]`."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[name]
    with extra_packages(f"tenure.agents.{name}", extra="agents"):
        value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value
