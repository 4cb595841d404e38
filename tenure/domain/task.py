"""Defines the spec of a task, its limits and its policy, with all defaults.

No other module defines a default: the conversion from protos (tenure/wire/task.py) fills them in from here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Final

from tenure.domain.agents import AgentPin
from tenure.domain.model_parameters import NO_PARAMETERS, ModelParameters
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import Reason
from tenure.domain.timeouts import Timeouts
from tenure.domain.waits import Escalations

DEFAULT_LOOP: Final = "messages"
CONTROL_LOOP: Final = "control"
REPLAY_LOOP: Final = "replay"
"""The loop of `tenure tasks replay`. A worker offers it alone, with the record of one task."""
UNDO_LOOP: Final = "tenure.undo"
"""The loop of an undo. Every worker offers it, except one of the loop `replay`."""
_UNDO_KIND: Final = "undo"
BUILT_IN_LOOPS: Final = frozenset({DEFAULT_LOOP, CONTROL_LOOP})
"""The loops of this project: their tools are those of the tool service. Another loop may have tools of its own."""
DEFAULT_QUEUE: Final = "default"
DEFAULT_MODEL: Final = "claude-opus-4-8"
"""The default model of a worker, and of a development stack's ledger. Any other ledger configures its own."""

DEFAULT_MAX_USD: Final = 10.0
"""The cap in money of a task that sets none, if its model has a price."""

DEFAULT_MAX_TOKENS: Final = 2_000_000
DEFAULT_MAX_STEPS: Final = 200
DEFAULT_TIMEOUT_SECONDS: Final = 24 * 3600.0
MAX_TIMEOUT_SECONDS: Final = 24 * 3600.0
DEFAULT_RESULT_CORRECTIONS: Final = 3
DEFAULT_MAX_DEPTH: Final = 3
DEFAULT_MAX_FAN_OUT: Final = 8
DEFAULT_MAX_LIVING: Final = 100
MAX_FAN_OUT: Final = 64
MAX_LEASE_TTL_SECONDS: Final = 300.0
"""Also of a task's renewal interval, and of its grace after a broken stream."""
MIN_RENEW_INTERVAL_SECONDS: Final = 0.2
MAX_START_DELAY_SECONDS: Final = 366 * 24 * 3600.0


class Priority(IntEnum):
    """The priority tier of a task. The proto uses the same numbers, and the database sorts by them."""

    HIGH = 1
    NORMAL = 2
    LOW = 3


class SourceKind(StrEnum):
    """The kind of source that submitted a task."""

    CONVERSATION = "CONVERSATION"
    CONTROL = "CONTROL"
    SCHEDULER = "SCHEDULER"
    MANUAL = "MANUAL"


class LeaseLostPolicy(StrEnum):
    """The reaction to the loss of a worker's lease."""

    RESUME = "RESUME"
    TIME_OUT = "TIME_OUT"


class InDoubtPolicy(StrEnum):
    """The reaction to an UNSAFE call in doubt."""

    WAIT_FOR_PERSON = "WAIT_FOR_PERSON"
    TELL_MODEL = "TELL_MODEL"


class BudgetPolicy(StrEnum):
    """The reaction to a cap of the budget that leaves too little for the next model call."""

    END = "END"
    ASK = "ASK"


class NoProgressPolicy(StrEnum):
    """The reaction to an agent whose steps repeat the same calls with the same outcomes.

    END and ASK tell the model first; TELL does nothing more, and IGNORE nothing at all.
    """

    END = "END"
    ASK = "ASK"
    TELL = "TELL"
    IGNORE = "IGNORE"


class FailurePolicy(StrEnum):
    """What happens to the effects of a task that ends without success."""

    KEEP = "KEEP"
    UNDO = "UNDO"


class MoneyCap(StrEnum):
    """The origin of a task's cap in money, or the reason why the task has none."""

    SUBMITTED = "SUBMITTED"
    DEFAULT = "DEFAULT"
    NONE_UNPRICED = "NONE_UNPRICED"
    NONE_SET = "NONE_SET"
    NONE_SUBMITTED = "NONE_SUBMITTED"


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """The agent that works on the goal.

    `tools` None: all tools of the tenant; empty: none. `model` "", `max_output_tokens` 0 and `context_window_tokens` 0:
    the worker's default. Calls of `approve_tools` wait for a person's approval.
    """

    loop: str = DEFAULT_LOOP
    model: str = ""
    system: str = ""
    tools: tuple[str, ...] | None = None
    max_output_tokens: int = 0
    approve_tools: tuple[str, ...] = ()
    context_window_tokens: int = 0
    parameters: ModelParameters = NO_PARAMETERS


@dataclass(frozen=True, slots=True)
class ControlWork:
    """A control function, which runs instead of an agent. `input_json` "" means null."""

    function: str
    input_json: str = ""


@dataclass(frozen=True, slots=True)
class UndoCall:
    """A call that undoes the effect of the call `call_id` of another task, which was a call of `undone_tool`.

    `own_tool`: its tool is an own tool of a worker.
    """

    call_id: str
    undone_tool: str
    tool: str
    arguments_json: str
    own_tool: bool = False


@dataclass(frozen=True, slots=True)
class UndoWork:
    """An undo of effects of the task `task_id`. `go_on`: also after a call that failed.

    `function`: the control function of that task, whose workers have the own tools of the calls; "": no call needs one.
    `input_json`: the input of that task, if there is a function.
    """

    task_id: str
    calls: tuple[UndoCall, ...]
    go_on: bool = False
    function: str = ""
    input_json: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a task. `max_nano_usd` 0: no cap in money. `money_cap` None: `resolve_submit` has not run
    yet. `no_money_cap`: the submit declines the default cap.
    """

    max_tokens: int = DEFAULT_MAX_TOKENS
    max_steps: int = DEFAULT_MAX_STEPS
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    max_nano_usd: int = 0
    money_cap: MoneyCap | None = None
    no_money_cap: bool = False


@dataclass(frozen=True, slots=True)
class SubAgentLimits:
    """Limits on the tree of a root: `max_depth` levels below the root, `max_fan_out` sub-agents of one call, and
    `max_living` tasks that have not ended.
    """

    max_depth: int = DEFAULT_MAX_DEPTH
    max_fan_out: int = DEFAULT_MAX_FAN_OUT
    max_living: int = DEFAULT_MAX_LIVING


@dataclass(frozen=True, slots=True)
class TaskPolicy:
    """A task's reactions to lost leases, calls in doubt, failures, invalid results, timeouts, caps of its budget, steps
    without progress, and an end without success.

    `lease_ttl_seconds`: how long a worker that sends no renewals keeps the task; 0: as long as its session.
    `renew_interval_seconds`: how often its worker renews; 0: as the coordinators set it. `reconnect_grace_seconds`: how
    long the task stays with a worker whose stream broke; None: as the coordinators set it.
    `approvers`: the groups ("group:" and a name) and members who alone may answer its waits; none: everyone.
    """

    on_lease_lost: LeaseLostPolicy = LeaseLostPolicy.RESUME
    on_in_doubt: InDoubtPolicy = InDoubtPolicy.WAIT_FOR_PERSON
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    max_result_corrections: int = DEFAULT_RESULT_CORRECTIONS
    timeouts: Timeouts = field(default_factory=Timeouts)
    sub_agents: SubAgentLimits = SubAgentLimits()
    escalations: Escalations = Escalations()
    on_budget: BudgetPolicy = BudgetPolicy.END
    lease_ttl_seconds: float = 0.0
    approvers: tuple[str, ...] = ()
    on_no_progress: NoProgressPolicy = NoProgressPolicy.END
    on_failure: FailurePolicy = FailurePolicy.KEEP
    renew_interval_seconds: float = 0.0
    reconnect_grace_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of a submit or of a message: its path in the workspace or the message's directory, and its bytes."""

    path: str
    content: bytes


MOST_LIVE: Final = 100
"""The limit of Source.at_most."""
MAX_DEBOUNCE_SECONDS: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a task. `exclusive`: at most one task of this source is live at a time.

    `at_most`: so many are live at a time, and the task waits in line for that; 0: it does not wait. `debounce_seconds`:
    the task begins at the earliest after this time, and a later one with a debounce replaces it while it waits in line.

    A tenant has at most one task with this kind, `source_id` and `source_run_id`, unless `source_run_id` is "".
    """

    kind: SourceKind = SourceKind.MANUAL
    source_id: str = ""
    source_run_id: str = ""
    exclusive: bool = False
    at_most: int = 0
    debounce_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """Everything that the submit of a task fixes. `result_schema_json` "": any text is a valid result.

    `start_time`: no worker starts the task earlier; None: at once. `agent_pin`: the revision of its agent; None: the
    agent has no revisions. `undo`: what the task undoes; None: it is not an undo.
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
    agent_pin: AgentPin | None = None
    undo: UndoWork | None = None

    @property
    def dispatch_loop(self) -> str:
        """The loop that a worker must offer to get the task: the agent's loop, or the one of the control function.

        A replay of code runs only in a worker with its record, whatever code other workers have. An undo that needs own
        tools runs only in a worker that has them.
        """
        if self.undo is not None and self.undo.function:
            return undo_loop(self.undo.function)
        if self.control is None or self.agent.loop == REPLAY_LOOP:
            return self.agent.loop
        pin = self.agent_pin
        return offered_loop(self.control.function, pin.digest if pin is not None and pin.needs_build else "")


DIGEST_CHARACTERS: Final = 16
"""How much of a revision's digest a loop has: with the function's name, no other revision has the same."""


def offered_loop(function: str, digest: str = "") -> str:
    """Returns the loop name under which workers offer a control function, or one revision of it.

    The loop carries the function's name, so that only workers with that function get its tasks. With the digest of a
    revision, only workers with the code of that revision get them.
    """
    revision = f"@{digest[:DIGEST_CHARACTERS]}" if digest else ""
    return f"{CONTROL_LOOP}.{function}{revision}"


def undo_loop(function: str) -> str:
    """Returns the loop name under which workers offer undos that need the own tools of a control function."""
    return f"{_UNDO_KIND}.{function}"


def is_undo_loop(loop: str) -> bool:
    """Whether the tasks of a loop are undos."""
    return loop == UNDO_LOOP or loop.partition(".")[0] == _UNDO_KIND


def plain_loop(loop: str) -> str:
    """Returns the name of a loop without the revision."""
    return loop.partition("@")[0]


def offered_function(loop: str) -> str:
    """Returns the control function whose code a loop name needs, or "" for a loop that needs none."""
    kind, _, function = plain_loop(loop).partition(".")
    return function if kind in {CONTROL_LOOP, _UNDO_KIND} else ""


def result_text(result: str, reason: str) -> str:
    """Returns a task's result as people read it: what a function returned is JSON, and a text in it has no quotes."""
    if reason != Reason.FUNCTION_RETURNED or not result.startswith('"'):
        return result
    try:
        return str(json.loads(result))
    except ValueError:
        return result


# The model and the cap in money of a new task.
# A cap in money needs a known price: a task whose submit sets a cap fails with MODEL_UNPRICED at its first model call
# without one. A default cap applies only to calls with a price (decide_reserve), and a task without a cap records why.


@dataclass(frozen=True, slots=True)
class CapDefaults:
    """The installation's defaults. `model` "": the worker chooses the model. `max_nano_usd` 0: no default cap."""

    model: str = ""
    max_nano_usd: int = 0


def resolve_submit(spec: TaskSpec, defaults: CapDefaults, has_price: Callable[[str], bool]) -> TaskSpec:
    """Returns the resolved spec of a new task. Ignores the submit's `money_cap`: only this function decides it.

    A submit may call its cap a default one, so that it holds for calls with a price only.
    """
    limits = spec.limits
    is_default = limits.money_cap is MoneyCap.DEFAULT and limits.max_nano_usd > 0
    limits = replace(limits, money_cap=MoneyCap.DEFAULT if is_default else None)
    return _resolve(spec, limits, defaults, has_price)


def resolve_fork(spec: TaskSpec, defaults: CapDefaults, has_price: Callable[[str], bool]) -> TaskSpec:
    """Returns the resolved spec of a fork. A recorded default cap is dropped if the fork's model has no price."""
    return _resolve(spec, spec.limits, defaults, has_price)


def _resolve(spec: TaskSpec, limits: Limits, defaults: CapDefaults, has_price: Callable[[str], bool]) -> TaskSpec:
    model = spec.agent.model or defaults.model
    agent = spec.agent if spec.agent.model else replace(spec.agent, model=model)
    limits = _resolve_limits(limits, defaults, has_price=bool(model) and has_price(model))
    return replace(spec, agent=agent, limits=limits)


def _resolve_limits(limits: Limits, defaults: CapDefaults, *, has_price: bool) -> Limits:
    if limits.no_money_cap:
        return replace(limits, max_nano_usd=0, money_cap=MoneyCap.NONE_SUBMITTED)
    is_default = limits.money_cap is MoneyCap.DEFAULT
    if limits.max_nano_usd and (has_price or not is_default):
        return replace(limits, money_cap=MoneyCap.DEFAULT if is_default else MoneyCap.SUBMITTED)
    if not has_price:
        return replace(limits, max_nano_usd=0, money_cap=MoneyCap.NONE_UNPRICED)
    if not defaults.max_nano_usd:
        return replace(limits, max_nano_usd=0, money_cap=MoneyCap.NONE_SET)
    return replace(limits, max_nano_usd=defaults.max_nano_usd, money_cap=MoneyCap.DEFAULT)
