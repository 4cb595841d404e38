"""Names the execution of a durable function that the running code belongs to.

Adapters use it to route model calls and tools through the function's `Work`. Code inside a step, a model call or a tool
is a *unit*: the unit's result is recorded as a whole, so nothing inside it is recorded again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from tenure.agents.own_calls import OwnCalls
from tenure.control.failures import NOT_REPLAYABLE, NotReplayable
from tenure.control.own_tools import OwnTool
from tenure.control.work import Work
from tenure.domain.images import SubmittedFile
from tenure.domain.tools import Outcome

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class Inside:
    """The execution or the unit of the running code. `problem`: its first NotReplayable, also if code caught it."""

    problem: NotReplayable | None = field(default=None, kw_only=True)

    def fail(self, problem: NotReplayable) -> NotReplayable:
        """Notes the problem, which is raised at the end of this code in any case. Returns it for `raise`."""
        self.problem = self.problem or problem
        return problem


@dataclass(slots=True)
class Execution(Inside):
    """One execution of a function. `runs`: the agent runs that it has begun, which names each of them for ever.

    `reads_messages`: the function is an agent, which reads the messages of users. `make_input`: makes the input of the
    newest model request again, with the messages that came since; None: the library has another way.
    """

    _work: Work
    runs: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held for each request to `work`, which takes one at a time. Waiters are served in the order of their arrival."""
    own_calls: OwnCalls = field(init=False)
    """The tool calls, which are made in parallel."""
    unseen: list[SubmittedFile] = field(default_factory=list)
    """The files whose images no model request has had."""
    shown: int = 0
    shown_bytes: int = 0
    refused_images: set[str] = field(default_factory=set)
    """The digests of the images that the model provider refused; later requests have a text in their places."""
    reads_messages: bool = False
    make_input: Callable[[], Awaitable[Any]] | None = None
    active: dict[str, str] = field(default_factory=dict)
    """The agent that runs now, by the agent run whose tool runs it; "" for the function itself."""

    def __post_init__(self) -> None:
        self.unseen += self._work.files
        self.own_calls = OwnCalls(self._work, self.lock)

    @property
    def work(self) -> Work:
        """The work. Raises the problem of this execution, if it has one: nothing more is recorded or paid then."""
        self.check()
        return self._work

    @property
    def replay_model(self) -> str:
        """The model of the agents in a replay; "": their own."""
        return self._work.replay_model

    def check(self) -> None:
        """Raises the problem that this execution met."""
        if self.problem is not None:
            raise self.problem

    async def call_own_tool(self, tool: OwnTool, arguments: Mapping[str, Any]) -> Outcome:
        """Returns the outcome of a call, made together with those of other coroutines. Raises NotReplayable."""
        self.check()
        outcome = await self.own_calls.call(tool, arguments)
        if outcome.detail == NOT_REPLAYABLE:
            raise self.fail(NotReplayable(outcome.content))
        return outcome

    def next_run_id(self) -> str:
        """Returns the id of the next agent run: the same in each execution of the task."""
        self.runs += 1
        return f"{self._work.task_id}/run-{self.runs}"

    @property
    def is_nested(self) -> bool:
        """Whether an agent runs that a tool of another one runs."""
        return len(self.active) > 1

    @property
    def is_interruptible(self) -> bool:
        """Whether a message may stop the next model call: it is one of the agent that reads the message then."""
        return self.reads_messages and not self.is_nested

    @contextmanager
    def running(self, agent: str) -> Iterator[None]:
        """Marks the code of an agent run. Raises NotReplayable beside another one.

        The order of the runs' calls identifies the calls, and it would differ in the next execution.
        """
        within = _RUN.get()
        if within in self.active:
            other = self.active[within]
            raise self.fail(NotReplayable(f"agent {agent} began while agent {other} ran: run one after the other"))
        self.active[within] = agent
        token = _RUN.set(f"{within}/{self.runs}")
        try:
            yield
        finally:
            _RUN.reset(token)
            del self.active[within]


@dataclass(slots=True)
class Unit(Inside):
    """The code of one recorded step, model call or tool call."""

    name: str


_RUN: ContextVar[str] = ContextVar("tenure.agents.run", default="")
_INSIDE: ContextVar[Execution | Unit | None] = ContextVar("tenure.agents.inside", default=None)


def execution() -> Execution | None:
    """Returns the execution that this code belongs to; None in a unit, and outside of durable functions."""
    inside = _INSIDE.get()
    return inside if isinstance(inside, Execution) else None


def execution_of(what: str) -> Execution | None:
    """Returns the execution for a durable agent or tool; None outside of durable functions.

    Raises NotReplayable in a unit, where nothing that `what` calls would be recorded, billed or approved.
    """
    inside = _INSIDE.get()
    if isinstance(inside, Unit):
        raise inside.fail(
            NotReplayable(
                f"{what} runs inside {inside.name}, so its calls would not be recorded, billed or approved: run it in "
                "the function itself, or declare the tool that runs it with effect=None"
            )
        )
    return inside


def execution_of_undeclared(agent: str) -> Execution | None:
    """Returns the execution for an agent that is not declared as durable; None outside of durable functions.

    In a unit the calls of such an agent are neither recorded nor billed: the unit is recorded as a whole.
    """
    inside = _INSIDE.get()
    if isinstance(inside, Unit):
        _warn_of_unbilled(agent, inside.name)
    return execution()


@cache
def _warn_of_unbilled(agent: str, inside: str) -> None:
    _log.warning(
        "the model calls of an agent are neither recorded nor billed, because it runs inside a step or a recorded tool "
        "and is not durable: make it durable, and declare the tool that runs it with effect=None",
        extra={"agent": agent, "inside": inside},
    )


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
    """Marks the code of a function's execution. Raises the problem that the code met, also if it went on."""
    made = Execution(work)
    with _in(made):
        yield made


@contextmanager
def unit(name: str) -> Iterator[None]:
    """Marks the code of a unit. `name`: for messages. Raises the problem that the code met, also if it went on."""
    with _in(Unit(name)):
        yield


@contextmanager
def _in(made: Execution | Unit) -> Iterator[None]:
    token = _INSIDE.set(made)
    try:
        yield
    except Exception as error:
        if made.problem is None or made.problem is error:
            raise
        raise made.problem from error
    finally:
        _INSIDE.reset(token)
    if made.problem is not None:
        raise made.problem
