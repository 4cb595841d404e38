"""Decides about sub-agents: the spawn of a call, the spec of each sub-agent, and the outcome of the call.

The ledger creates sub-agents in the transaction of their call's intent, under ids derived from the call, so a successor
of the parent's worker finds them. They use the budget of the root, under their own caps. A sub-agent never has more
than its parent: not more tools, not fewer approvals, not a later deadline.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID, uuid5

from tenure.domain.budget import MAX_TOKENS, Budget
from tenure.domain.states import TERMINAL, TaskState
from tenure.domain.task import BUILT_IN_LOOPS, DEFAULT_LOOP, MAX_FAN_OUT, MAX_TIMEOUT_SECONDS, REPLAY_LOOP, TaskSpec
from tenure.domain.tool_arguments import Arguments
from tenure.domain.tools import Outcome, OutcomeStatus, unknown_tool_text, unknown_tools
from tenure.domain.waits import WaitKind, default_timeout_seconds

SPAWN_SUB_AGENTS: Final = "spawn_sub_agents"

MAX_GOAL_CHARACTERS: Final = 64_000
MAX_TOOLS: Final = 128
MIN_TIMEOUT_SECONDS: Final = 1.0
MAX_RESULT_BYTES: Final = 64 * 1024
"""The limit for all results of a call together, like that of any tool's output."""
MAX_REPORTED_CHARACTERS: Final = 500

STOPPED: Final = Outcome(
    OutcomeStatus.CANCELLED, "The sub-agents of this call were stopped or never started, because the task ended first."
)


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """The arguments of a call. `tools` None: the parent's. `max_tokens` 0: an equal share of the parent's rest."""

    goals: tuple[str, ...]
    tools: tuple[str, ...] | None
    max_tokens: int
    deadline_seconds: float


@dataclass(frozen=True, slots=True)
class Parent:
    """The parent task, read under its lock.

    `budgets`: those of its root and its own. `living`: the number of live tasks of its tree, the root included.
    `tools_defined`: the recorded names of its tools; None: its loop records none.
    """

    task_id: str
    spec: TaskSpec
    depth: int
    budgets: tuple[Budget, ...]
    living: int
    is_to_end: bool = False
    tools_defined: tuple[str, ...] | None = None

    @property
    def tokens_left(self) -> int:
        """The tokens that sub-agents may get: not reserved by others, and not more than the parent may use itself."""
        free = [budget.free_tokens for budget in self.budgets]
        return min((tokens for tokens in free if tokens is not None), default=MAX_TOKENS)

    @property
    def nano_usd_left(self) -> int | None:
        """The money that sub-agents may get, in nano-dollars. None: no cap in money."""
        free = [budget.free_nano_usd for budget in self.budgets]
        return min((nano_usd for nano_usd in free if nano_usd is not None), default=None)


@dataclass(frozen=True, slots=True)
class Share:
    """The caps and tools of each sub-agent. `max_nano_usd` 0: no cap in money."""

    max_tokens: int
    tools: tuple[str, ...] | None
    max_nano_usd: int = 0


@dataclass(frozen=True, slots=True)
class SubAgent:
    """The state and result of a sub-agent, for the outcome of its call."""

    task_id: str
    state: TaskState
    reason: str = ""
    message: str = ""
    result: str = ""

    @property
    def has_ended(self) -> bool:
        return self.state in TERMINAL


def read_spawn(arguments_json: str) -> SpawnRequest:
    """Parses the arguments of a spawning call. Raises InvalidArguments."""
    given = Arguments(arguments_json)
    spawn = SpawnRequest(
        goals=given.texts("goals", MAX_FAN_OUT, MAX_GOAL_CHARACTERS),
        tools=given.names("tools", MAX_TOOLS),
        max_tokens=given.count("max_tokens", MAX_TOKENS),
        deadline_seconds=given.seconds("deadline_seconds", default_timeout_seconds(WaitKind.SUB_AGENTS)),
    )
    given.refuse_rest()
    return spawn


def spawns_at_once(spec: TaskSpec, tool: str) -> bool:
    """Whether the intent itself spawns: the tool is allowed and needs no approval first. A replay spawns nothing."""
    if spec.agent.loop == REPLAY_LOOP:  # the record has the outcome of the call
        return False
    allowed = spec.agent.tools is None or SPAWN_SUB_AGENTS in spec.agent.tools
    return tool == SPAWN_SUB_AGENTS and allowed and SPAWN_SUB_AGENTS not in spec.agent.approve_tools


def sub_agent_id(parent_task_id: str, call_id: str, index: int) -> str:
    """Returns the id of a sub-agent. It is derived from the call, so that no call spawns twice."""
    return str(uuid5(UUID(parent_task_id), f"{call_id}/{index}"))


def passed_request_id(parent_task_id: str, sequence: int) -> str:
    """Returns the request id of a message that a sub-agent gets from its parent, where it is this entry."""
    return f"{parent_task_id}/{sequence}"


def decide_spawn(spawn_request: SpawnRequest, parent: Parent) -> Share | Outcome:
    """Returns the share of each sub-agent, or the outcome of a refused call: a refused spawn does not fail the task."""
    refusal = _refuse_tree(spawn_request, parent) or _refuse_tools(spawn_request, parent)
    if refusal:
        return Outcome(OutcomeStatus.NOT_ALLOWED, f"No sub-agents were started: {refusal}.")
    count, left = len(spawn_request.goals), parent.tokens_left
    share = spawn_request.max_tokens or left // (count + 1)
    if share < 1 or count * share > left:
        each = f"{count} times {share:,} tokens are more" if share > 0 else f"{count} sub-agents need more"
        message = f"No sub-agents were started: {each} than the remaining {max(0, left):,}."
        return Outcome(OutcomeStatus.NOT_ALLOWED, message)
    money = parent.nano_usd_left
    if money is not None and money // (count + 1) < 1:
        return Outcome(OutcomeStatus.NOT_ALLOWED, "No sub-agents were started: no money is left for them.")
    tools = parent.spec.agent.tools if spawn_request.tools is None else spawn_request.tools
    return Share(share, tools, 0 if money is None else money // (count + 1))


def _refuse_tree(spawn_request: SpawnRequest, parent: Parent) -> str:
    limits, count = parent.spec.policy.sub_agents, len(spawn_request.goals)
    if parent.is_to_end:
        return "the task is about to end"
    if parent.depth >= limits.max_depth:
        return f"agents at depth {parent.depth} may have no sub-agents (the limit is {limits.max_depth})"
    if count > limits.max_fan_out:
        return f"one call may start at most {limits.max_fan_out}, but this one has {count} goals"
    if parent.living + count > limits.max_living:
        return f"{parent.living} tasks of this tree are live, and {count} more would exceed {limits.max_living}"
    return ""


def _refuse_tools(spawn_request: SpawnRequest, parent: Parent) -> str:
    """Refuses tools that the parent does not have, and unknown names. The tools of an own loop are not known here."""
    own = parent.spec.agent.tools
    if spawn_request.tools is None:
        return ""
    if wider := sorted(set(spawn_request.tools) - set(spawn_request.tools if own is None else own)):
        return f"they cannot have tools that you do not have: {', '.join(wider)[:MAX_REPORTED_CHARACTERS]}"
    if parent.tools_defined is None or parent.spec.agent.loop not in BUILT_IN_LOOPS:
        return ""
    unknown = unknown_tools(spawn_request.tools, parent.tools_defined)
    return "; ".join(unknown_tool_text(*one) for one in unknown)[:MAX_REPORTED_CHARACTERS]


def spec_of_sub_agent(parent: TaskSpec, goal: str, share: Share, seconds_left: float) -> TaskSpec:
    """Returns the spec of a sub-agent: the parent's, with its own goal, tools, caps and deadline.

    `seconds_left`: until the parent's deadline.
    """
    timeout_seconds = min(max(seconds_left, MIN_TIMEOUT_SECONDS), MAX_TIMEOUT_SECONDS)
    loop = DEFAULT_LOOP if parent.control is not None else parent.agent.loop
    return replace(
        parent,
        goal=goal,
        agent=replace(parent.agent, tools=share.tools, loop=loop),
        limits=replace(
            parent.limits,
            max_tokens=share.max_tokens,
            max_nano_usd=share.max_nano_usd,
            timeout_seconds=timeout_seconds,
        ),
        source=replace(parent.source, source_run_id="", exclusive=False, at_most=0, debounce_seconds=None),
        control=None,
        result_schema_json="",
        start_time=None,
        agent_pin=parent.agent_pin if parent.control is None else None,
    )


def outcome_of_sub_agents(sub_agents: Sequence[SubAgent]) -> Outcome:
    """Returns the outcome of the call. It succeeds in any case: the parent's model judges the results."""
    if not sub_agents:
        return Outcome(OutcomeStatus.FAILED, "This call has no sub-agents.")
    most_bytes = MAX_RESULT_BYTES // len(sub_agents)
    reports = [_report(one, most_bytes) for one in sub_agents]
    content = json.dumps({"sub_agents": reports}, ensure_ascii=False)
    return Outcome(OutcomeStatus.SUCCEEDED, content, truncated=any("cut_at_bytes" in one for one in reports))


def _report(one: SubAgent, most_bytes: int) -> dict[str, Any]:
    report: dict[str, Any] = {"task_id": one.task_id, "state": one.state.value}
    text = _cut(one.result, most_bytes)
    if one.state is TaskState.SUCCEEDED:
        report["result"] = text
    else:
        report["result"] = _marker(one)
        if text and one.has_ended:
            report["partial_result"] = text
    if len(text) < len(one.result):
        report["cut_at_bytes"] = most_bytes
    return report


def _marker(one: SubAgent) -> str:
    """Returns the marker in place of a result. A live sub-agent has `[timeout]` too, because it is stopped."""
    match one.state:
        case TaskState.COST_EXCEEDED:
            return "[cost_exceeded]"
        case TaskState.CANCELLED:
            return "[cancelled]"
        case TaskState.FAILED:
            why = ": ".join(part for part in (one.reason, one.message) if part)
            return f"[failed: {why[:MAX_REPORTED_CHARACTERS]}]"
        case _:
            return "[timeout]"


def _cut(text: str, most_bytes: int) -> str:
    data = text.encode()
    return text if len(data) <= most_bytes else data[:most_bytes].decode(errors="ignore")
