"""Names the execution of a durable function that the running code belongs to.

Adapters use it to route model calls and tools through the function's `Work`. Code inside a step, a model call or a tool
is a *unit*: the unit's result is recorded as a whole, so nothing inside it is recorded again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from tenure.agents.own_calls import OwnCalls
from tenure.control.work import Work


@dataclass(slots=True)
class Execution:
    """One execution of a function. `runs`: the agent runs that it has begun, which names each of them for ever."""

    work: Work
    runs: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held for each request to `work`, which takes one at a time. Waiters are served in the order of their arrival."""
    own_calls: OwnCalls = field(init=False)
    """The tool calls, which are made in parallel."""
    active: dict[str, str] = field(default_factory=dict)
    """The agent that runs now, by the agent run whose tool runs it; "" for the function itself."""

    def __post_init__(self) -> None:
        self.own_calls = OwnCalls(self.work, self.lock)

    def next_run_id(self) -> str:
        """Returns the id of the next agent run: the same in each execution of the task."""
        self.runs += 1
        return f"{self.work.task_id}/run-{self.runs}"

    @contextmanager
    def running(self, agent: str) -> Iterator[None]:
        """Marks the code of an agent run. Raises ConcurrentRuns beside another one.

        The order of the runs' calls identifies the calls, and it would differ in the next execution.
        """
        within = _RUN.get()
        if within in self.active:
            raise ConcurrentRuns(f"agent {agent} began while agent {self.active[within]} ran: run one after the other")
        self.active[within] = agent
        token = _RUN.set(f"{within}/{self.runs}")
        try:
            yield
        finally:
            _RUN.reset(token)
            del self.active[within]


@dataclass(frozen=True, slots=True)
class Unit:
    """The code of one recorded step, model call or tool call."""

    name: str


_RUN: ContextVar[str] = ContextVar("tenure.agents.run", default="")
_INSIDE: ContextVar[Execution | Unit | None] = ContextVar("tenure.agents.inside", default=None)


class ConcurrentRuns(RuntimeError):  # noqa: N818  the name says what is wrong
    """A durable function runs two agents at the same time."""

    retryable = False


class NotRecorded(RuntimeError):  # noqa: N818  the name says what would happen
    """A durable agent runs inside a recorded tool, where its model calls would be neither recorded nor billed."""

    retryable = False


def execution() -> Execution | None:
    """Returns the execution that this code belongs to; None in a unit, and outside of durable functions."""
    inside = _INSIDE.get()
    return inside if isinstance(inside, Execution) else None


def execution_of_agent(agent: str) -> Execution | None:
    """Returns the execution for a run of a durable agent; None outside of durable functions. Raises NotRecorded."""
    inside = _INSIDE.get()
    if isinstance(inside, Unit):
        raise NotRecorded(
            f"agent {agent} runs inside {inside.name}, so its model calls would not be recorded or billed: declare "
            "the tool with effect=None, and it runs in the agent's own function"
        )
    return inside


def current_work() -> Work:
    """Returns the work of the task, for tools with effect=None: its steps, the tool service's tools, and its waits.

    For example `await current_work().call_tool("ask_user", {"question": "Which colour?"})`. Raises RuntimeError in
    other tools, and outside of tasks.
    """
    current = execution()
    if current is None:
        raise RuntimeError("current_work() works only in a task, and there not in recorded tools: declare effect=None")
    return current.work


@contextmanager
def executing(work: Work) -> Iterator[Execution]:
    """Marks the code of a function's execution."""
    made = Execution(work)
    token = _INSIDE.set(made)
    try:
        yield made
    finally:
        _INSIDE.reset(token)


@contextmanager
def unit(name: str) -> Iterator[None]:
    """Marks the code of a unit. `name`: for the message of NotRecorded."""
    token = _INSIDE.set(Unit(name))
    try:
        yield
    finally:
        _INSIDE.reset(token)
