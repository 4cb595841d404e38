"""What a task is, as the rules see it. Defaults stand here and nowhere else; wire.py fills them in."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Final

from tenure.domain.retry import RetryPolicy
from tenure.domain.timeouts import Timeouts

DEFAULT_LOOP: Final = "messages"
CONTROL_LOOP: Final = "control"
BUILT_IN_LOOPS: Final = frozenset({DEFAULT_LOOP, CONTROL_LOOP})
"""The loops of this project: their tools are those of the tool service. Another loop may have tools of its own."""
DEFAULT_QUEUE: Final = "default"
DEFAULT_MODEL: Final = "claude-opus-4-8"
"""Of a worker, and of a development stack's ledger; another ledger names its own."""

DEFAULT_MAX_USD: Final = 10.0
"""The cap in money of a task that sets none, where its model has a price."""

DEFAULT_MAX_TOKENS: Final = 2_000_000
DEFAULT_MAX_STEPS: Final = 200
DEFAULT_TIMEOUT_SECONDS: Final = 24 * 3600.0
MAX_TIMEOUT_SECONDS: Final = 24 * 3600.0
DEFAULT_RESULT_CORRECTIONS: Final = 3
DEFAULT_MAX_DEPTH: Final = 3
DEFAULT_MAX_FAN_OUT: Final = 8
DEFAULT_MAX_LIVING: Final = 100
MOST_DEPTH: Final = 8
MOST_FAN_OUT: Final = 64
MOST_LIVING: Final = 1000
MAX_START_DELAY_SECONDS: Final = 366 * 24 * 3600.0


class Priority(IntEnum):
    """Which tasks go first. The numbers are those of the wire and of the database's order."""

    HIGH = 1
    NORMAL = 2
    LOW = 3


class SourceKind(StrEnum):
    """What kind of thing submitted a task."""

    CONVERSATION = "CONVERSATION"
    CONTROL = "CONTROL"
    SCHEDULER = "SCHEDULER"
    MANUAL = "MANUAL"


class LeaseLostPolicy(StrEnum):
    """What to do when the worker loses its lease."""

    RESUME = "RESUME"
    TIME_OUT = "TIME_OUT"


class InDoubtPolicy(StrEnum):
    """What to do when nobody knows whether an UNSAFE call happened."""

    WAIT_FOR_PERSON = "WAIT_FOR_PERSON"
    TELL_MODEL = "TELL_MODEL"


class MoneyCap(StrEnum):
    """Where a task's cap in money comes from, or why it has none."""

    SUBMITTED = "SUBMITTED"
    DEFAULT = "DEFAULT"
    NONE_UNPRICED = "NONE_UNPRICED"
    NONE_SET = "NONE_SET"
    NONE_SUBMITTED = "NONE_SUBMITTED"


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """The agent that carries the goal out.

    `tools` None: all of the tenant's; empty: none. `model` "", `max_output_tokens` 0 and `context_window_tokens` 0: the
    worker's default. Calls of `approve_tools` wait for a person's leave.
    """

    loop: str = DEFAULT_LOOP
    model: str = ""
    system: str = ""
    tools: tuple[str, ...] | None = None
    max_output_tokens: int = 0
    approve_tools: tuple[str, ...] = ()
    context_window_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ControlWork:
    """A function to run instead of an agent. `input_json` "": null."""

    function: str
    input_json: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the task may use up. `max_nano_usd` 0: no cap in money. `money_cap` None: nobody has decided it yet.
    `no_money_cap`: no default cap is wanted.
    """

    max_tokens: int = DEFAULT_MAX_TOKENS
    max_steps: int = DEFAULT_MAX_STEPS
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    max_nano_usd: int = 0
    money_cap: MoneyCap | None = None
    no_money_cap: bool = False


@dataclass(frozen=True, slots=True)
class SubAgentLimits:
    """How far a tree of agents may grow: levels below the root, sub-agents of one call, tasks that have not ended."""

    max_depth: int = DEFAULT_MAX_DEPTH
    max_fan_out: int = DEFAULT_MAX_FAN_OUT
    max_living: int = DEFAULT_MAX_LIVING


@dataclass(frozen=True, slots=True)
class TaskPolicy:
    """What to do when things go wrong."""

    on_lease_lost: LeaseLostPolicy = LeaseLostPolicy.RESUME
    on_in_doubt: InDoubtPolicy = InDoubtPolicy.WAIT_FOR_PERSON
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    max_result_corrections: int = DEFAULT_RESULT_CORRECTIONS
    timeouts: Timeouts = field(default_factory=Timeouts)
    sub_agents: SubAgentLimits = SubAgentLimits()


@dataclass(frozen=True, slots=True)
class Source:
    """Who asked for the task. `exclusive`: one such task lives at a time."""

    kind: SourceKind = SourceKind.MANUAL
    source_id: str = ""
    source_run_id: str = ""
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """All that is fixed when a task is submitted. `result_schema_json` "": the result is any text.

    `start_time`: not to be started before; None: at once.
    """

    goal: str
    agent: AgentSpec = field(default_factory=AgentSpec)
    limits: Limits = field(default_factory=Limits)
    policy: TaskPolicy = field(default_factory=TaskPolicy)
    priority: Priority = Priority.NORMAL
    queue: str = DEFAULT_QUEUE
    labels: tuple[tuple[str, str], ...] = ()
    source: Source = field(default_factory=Source)
    control: ControlWork | None = None
    result_schema_json: str = ""
    start_time: datetime | None = None

    @property
    def dispatch_loop(self) -> str:
        """What a worker has to offer to be given the task: a loop, or the function."""
        return self.agent.loop if self.control is None else offered_loop(self.control.function)


def offered_loop(function: str) -> str:
    """How workers offer a function of control work: by its name, so that only who has it is given its tasks."""
    return f"{CONTROL_LOOP}.{function}"


def offered_function(loop: str) -> str:
    """The function that a loop stands for; empty: it is one of agents."""
    kind, _, function = loop.partition(".")
    return function if kind == CONTROL_LOOP else ""
