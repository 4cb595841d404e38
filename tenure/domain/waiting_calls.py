"""Turns calls into waits: questions to a person, events, sub-agents, and calls that need a person's approval. A task at
a cap of its budget waits without a call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from tenure.domain.budget import Denied
from tenure.domain.entries import ToolIntent, ToolOutcome, Transition
from tenure.domain.states import TaskState
from tenure.domain.sub_agents import SPAWN_SUB_AGENTS, read_spawn
from tenure.domain.task import BudgetPolicy
from tenure.domain.tool_arguments import Arguments, InvalidArguments, unfit
from tenure.domain.tools import Outcome
from tenure.domain.waits import (
    DEFAULT_OPTIONS,
    MAX_APPROVED_ARGUMENT_BYTES,
    MAX_CONTEXT_CHARACTERS,
    MAX_QUESTION_CHARACTERS,
    MAX_REFERENCE_CHARACTERS,
    TOOL_DECISIONS,
    WAIT_RULES,
    UndecidedCall,
    Wait,
    WaitDeadlinePolicy,
    WaitKind,
    default_timeout_seconds,
)

REQUEST_APPROVAL: Final = "request_approval"
ASK_USER: Final = "ask_user"
WAIT_EXTERNAL: Final = "wait_external"
MAX_WAITING_CALLS: Final = 64

WAITING_TOOLS: Final = {
    REQUEST_APPROVAL: WaitKind.APPROVAL,
    ASK_USER: WaitKind.QUESTION,
    WAIT_EXTERNAL: WaitKind.EVENT,
    SPAWN_SUB_AGENTS: WaitKind.SUB_AGENTS,
}
"""The tool service never runs calls of these tools: the loop commits a wait instead."""


def asks(
    intent: ToolIntent, *, tools: Collection[str], approve_tools: Collection[str], allowed: Collection[str]
) -> bool:
    """Whether the call begins a wait. `tools`: the task's tools; `allowed`: the ids of approved calls."""
    if intent.tool in WAITING_TOOLS and intent.tool in tools:
        return True
    return needs_approval(intent, approve_tools, allowed)


def needs_approval(intent: ToolIntent, approve_tools: Collection[str], allowed: Collection[str]) -> bool:
    """Whether the call needs an approval first. A call that asks a person, or only waits, needs none."""
    only_waits = intent.tool in WAITING_TOOLS and intent.tool != SPAWN_SUB_AGENTS
    return intent.tool in approve_tools and intent.call_id not in allowed and not only_waits


def wait_of(
    intent: ToolIntent,
    approve_tools: Collection[str] = (),
    allowed: Collection[str] = (),
    reasons: Mapping[str, str] = MappingProxyType({}),
) -> Wait | Outcome:
    """Returns the wait of a call, or the call's outcome if its arguments are invalid. `reasons`: see `first_wait`."""
    kind = WAITING_TOOLS.get(intent.tool)
    if kind is None or needs_approval(intent, approve_tools, allowed):
        return _wait_for_approval(intent, reasons.get(intent.call_id, ""))
    try:
        if kind is WaitKind.SUB_AGENTS:
            return _wait_for_sub_agents(intent)
        return _wait(kind, intent.call_id, Arguments(intent.arguments_json))
    except InvalidArguments as why:
        return unfit(f"The arguments do not fit {intent.tool}: {why}.")


def first_wait(
    asks: Sequence[ToolIntent],
    approve_tools: Collection[str],
    allowed: Collection[str],
    reasons: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Wait | None, list[ToolOutcome]]:
    """Returns the wait of the first call that can begin one, and the outcomes of those before it.

    Calls that need approval wait together, as far as their arguments fit into one wait. `reasons`: for each call among
    them about which a rule of the tenant asks, the text of the rule.
    """
    outcomes: list[ToolOutcome] = []
    for index, ask in enumerate(asks):
        wait = wait_of(ask, approve_tools, allowed, reasons)
        if isinstance(wait, Outcome):
            outcomes.append(ToolOutcome(ask.call_id, wait))
        elif wait.kind is not WaitKind.TOOL_APPROVAL:
            return wait, outcomes
        else:
            siblings = [
                one
                for one in asks[index + 1 :]
                if one.call_id in reasons or needs_approval(one, approve_tools, allowed)
            ]
            return _with_siblings(wait, siblings, reasons), outcomes
    return None, outcomes


def _with_siblings(wait: Wait, siblings: Iterable[ToolIntent], reasons: Mapping[str, str]) -> Wait:
    calls, left_bytes = list(wait.all_calls), MAX_APPROVED_ARGUMENT_BYTES - len(wait.arguments_json.encode())
    for ask in siblings:
        left_bytes -= len(ask.arguments_json.encode())
        if left_bytes < 0 or len(calls) == MAX_WAITING_CALLS:
            break
        calls.append(UndecidedCall(ask.call_id, ask.tool, ask.arguments_json))
    if len(calls) == 1:
        return wait
    tools = ", ".join(dict.fromkeys(call.tool for call in calls))
    question = f"May these {len(calls)} calls of {tools} be made?"
    why = "\n".join(f"{call.call_id}: {reasons[call.call_id]}" for call in calls if call.call_id in reasons)
    context = why[:MAX_CONTEXT_CHARACTERS]
    return replace(wait, calls=tuple(calls), question=question[:MAX_QUESTION_CHARACTERS], context=context)


def move_to_wait(wait: Wait) -> Transition:
    """Returns the transition that begins the wait."""
    to_state = TaskState.WAITING_USER if wait.is_for_person else TaskState.WAITING_EXTERNAL
    message = wait.question or f"waits for the event {wait.correlation_id}"
    if wait.kind is WaitKind.SUB_AGENTS:
        message = "waits for its sub-agents"
    return Transition(to_state, WAIT_RULES[wait.kind].reason, message, wait=wait)


def leave_at_cap(denied: Denied, policy: BudgetPolicy, partial_result: str) -> Transition:
    """Returns the transition of a task whose reservation is denied for good: its end, or a wait for budget."""
    if denied.request is None or policy is not BudgetPolicy.ASK:
        return Transition(denied.ends_as, denied.reason, denied.message, partial_result)
    wait = Wait(
        kind=WaitKind.BUDGET,
        call_id="",
        question=f"May the task use more budget? {denied.message}."[:MAX_QUESTION_CHARACTERS],
        options=DEFAULT_OPTIONS,
        context=partial_result[:MAX_CONTEXT_CHARACTERS],
        timeout_seconds=default_timeout_seconds(WaitKind.BUDGET),
        budget_request=denied.request,
    )
    return move_to_wait(wait)


def _wait_for_approval(intent: ToolIntent, why: str = "") -> Wait | Outcome:
    if len(intent.arguments_json.encode()) > MAX_APPROVED_ARGUMENT_BYTES:
        return unfit(f"A call that needs approval may have at most {MAX_APPROVED_ARGUMENT_BYTES} bytes of arguments.")
    return Wait(
        kind=WaitKind.TOOL_APPROVAL,
        call_id=intent.call_id,
        question=f"May {intent.tool} be called?",
        options=TOOL_DECISIONS,
        context=why[:MAX_CONTEXT_CHARACTERS],
        tool=intent.tool,
        arguments_json=intent.arguments_json,
        timeout_seconds=default_timeout_seconds(WaitKind.TOOL_APPROVAL),
    )


def _wait_for_sub_agents(intent: ToolIntent) -> Wait:
    """The ledger created the sub-agents with the intent, and adds their ids."""
    return Wait(
        kind=WaitKind.SUB_AGENTS,
        call_id=intent.call_id,
        at_deadline=WaitDeadlinePolicy.GO_ON,
        timeout_seconds=read_spawn(intent.arguments_json).deadline_seconds,
    )


def _wait(kind: WaitKind, call_id: str, given: Arguments) -> Wait:
    wait = Wait(
        kind=kind,
        call_id=call_id,
        question=given.text("question", MAX_QUESTION_CHARACTERS, required=kind is not WaitKind.EVENT),
        options=given.options() if kind is WaitKind.APPROVAL else (),
        context=given.text("context", MAX_CONTEXT_CHARACTERS),
        reference=given.text("reference", MAX_REFERENCE_CHARACTERS),
        correlation_id=given.text("correlation_id", 200, required=True) if kind is WaitKind.EVENT else "",
        at_deadline=given.policy(),
        timeout_seconds=given.seconds("timeout_seconds", default_timeout_seconds(kind)),
    )
    given.refuse_rest()
    return wait
