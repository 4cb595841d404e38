"""Undo: which effects of a task can be undone, the task that undoes them, and the course of that task.

An effect is a call of a tool that is not PURE. Its tool declares the compensation: the call that undoes it. The plan is
made from the ledger of the task and from the undos before it, and fixes the arguments of each compensation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from tenure.domain.argument_mapping import mapped_arguments, parsed
from tenure.domain.effects_of_task import EffectCall, Present, compensation_of
from tenure.domain.entries import ToolIntent, Transition
from tenure.domain.errors import WrongState
from tenure.domain.fold import ResumePoint
from tenure.domain.next_action import ExecuteTools, calls_to_make
from tenure.domain.repeated_effects import ALREADY_HAPPENED, EffectFact, fact_of_outcome
from tenure.domain.states import TERMINAL, Reason, TaskState
from tenure.domain.task import (
    UNDO_LOOP,
    AgentSpec,
    FailurePolicy,
    InDoubtPolicy,
    Limits,
    NoProgressPolicy,
    Priority,
    Source,
    TaskPolicy,
    TaskSpec,
    UndoCall,
    UndoWork,
)
from tenure.domain.texts import one_line
from tenure.domain.tools import (
    Compensation,
    Outcome,
    OutcomeStatus,
    call_id,
)

MAX_CALLS: Final = 500
"""The most effects of one undo."""

MAX_BYTES: Final = 1024 * 1024
"""The most bytes of the arguments of one undo: they are part of the spec of its task."""

_NOT_MADE: Final = frozenset({OutcomeStatus.SUCCEEDED, OutcomeStatus.IN_DOUBT})
"""How a call without effect ends if another call has its effect key. All other ends without effect are failures."""
_MAX_SHOWN: Final = 500
_MAX_ARGUMENTS: Final = 200


class UndoVerdict(StrEnum):
    """Whether an effect can be undone."""

    CAN_BE_UNDONE = "CAN_BE_UNDONE"
    NO_COMPENSATION = "NO_COMPENSATION"
    NO_VALUE = "NO_VALUE"
    NO_TOOL = "NO_TOOL"
    FAILED = "FAILED"
    NO_EFFECT = "NO_EFFECT"
    IN_DOUBT = "IN_DOUBT"
    OPEN = "OPEN"
    BEING_UNDONE = "BEING_UNDONE"
    UNDONE = "UNDONE"
    UNDO_IN_DOUBT = "UNDO_IN_DOUBT"


@dataclass(frozen=True, slots=True)
class TaskEffect:
    """An effect of a task, as the list of an undo shows it. `why`: why it cannot be undone."""

    call_id: str
    tool: str
    arguments_json: str
    verdict: UndoVerdict
    why: str = ""
    undo_tool: str = ""
    undo_arguments_json: str = ""
    undo_task_id: str = ""
    declaration_changed: bool = False
    undo_by_own_tool: bool = False


class EarlierUndo(NamedTuple):
    """The newest undo that has or had an effect.

    `state` None: the undo was pruned. `outcome` None: it has not made the call. `may_run_again`: whether the tool of
    its call may be called twice. `tool`, `arguments_json`: of its call.
    """

    task_id: str
    state: TaskState | None
    outcome: Outcome | None = None
    may_run_again: bool = False
    tool: str = ""
    arguments_json: str = ""


# The plan.


def plan_undo(
    calls: Iterable[EffectCall],
    earlier: Mapping[str, EarlierUndo],
    present: Present | None,
    allowed: Collection[str] | None = None,
) -> tuple[TaskEffect, ...]:
    """Returns the effects with their verdicts, in the order of the calls.

    `earlier`: the undos of the calls, by call. `present` None: unknown. `allowed`: the tools that the task itself may
    call; None: all. Its worker wrote the declarations of the ledger, so these cannot reach further.
    """
    return tuple(_judged(call, earlier.get(call.intent.call_id), present, allowed) for call in calls)


def _judged(
    call: EffectCall, before: EarlierUndo | None, present: Present | None, allowed: Collection[str] | None
) -> TaskEffect:
    intent = call.intent
    pinned, compensation = call.tool.compensation, compensation_of(call.tool, present)
    effect = TaskEffect(
        intent.call_id,
        intent.tool,
        intent.arguments_json,
        UndoVerdict.CAN_BE_UNDONE,
        undo_tool="" if compensation is None else compensation.tool,
        undo_task_id="" if before is None else before.task_id,
        declaration_changed=compensation != pinned,
        undo_by_own_tool=compensation is not None and compensation.own_tool,
    )
    verdict, why = _of_outcome(call.outcome)
    if verdict is UndoVerdict.CAN_BE_UNDONE and before is not None:
        verdict, why = _of_earlier(before)
    if verdict is not UndoVerdict.CAN_BE_UNDONE:
        return replace(effect, verdict=verdict, why=why)
    if compensation is None:
        return replace(effect, verdict=UndoVerdict.NO_COMPENSATION, why=f"{intent.tool} declares no compensation")
    if why := _why_no_tool(compensation, present, None if intent.tool in (present or ()) else allowed):
        return replace(effect, verdict=UndoVerdict.NO_TOOL, why=why)
    try:
        arguments_json = _arguments(compensation, call)
    except LookupError as missing:
        return replace(effect, verdict=UndoVerdict.NO_VALUE, why=f"{compensation.tool}: {missing.args[0]}")
    if before is not None and not _is_same_call(before, compensation.tool, arguments_json):
        why = f"it is not known whether the undo {before.task_id} took effect, and it called {before.tool} otherwise"
        return replace(effect, verdict=UndoVerdict.UNDO_IN_DOUBT, why=why)
    return replace(effect, undo_arguments_json=arguments_json)


def _why_no_tool(compensation: Compensation, present: Present | None, allowed: Collection[str] | None) -> str:
    """Returns why the undo cannot call the tool, or "". Which own tools the workers have is not known here."""
    name = compensation.tool
    if present is not None and name not in present and not compensation.own_tool:
        return f"the tool service has no tool {name} now"
    if allowed is not None and name not in allowed:
        return f"the task itself may not call {name}, which only its own ledger declares"
    return ""


def _arguments(compensation: Compensation, call: EffectCall) -> str:
    assert call.outcome is not None, "the call succeeded"
    mapping, arguments = parsed(compensation.arguments_json or "{}"), parsed(call.intent.arguments_json or "{}")
    if not isinstance(mapping, Mapping):  # its worker wrote it
        raise LookupError("its declaration is not a mapping of arguments")  # noqa: TRY004  as other mappings
    document = {"arguments": arguments}
    if not call.outcome.truncated:
        document["outcome"] = parsed(call.outcome.content)
    outcome, whole = document.get("outcome"), {name: each for name, each in mapping.items() if each == "/outcome"}
    # The outcome of an agent's tool may be a text, whose parts are those of the JSON that it may be.
    parts = {**document, "outcome": parsed(outcome)} if isinstance(outcome, str) else document
    made = mapped_arguments(mapping, parts) | mapped_arguments(whole, document)
    return json.dumps(made, ensure_ascii=False, separators=(",", ":"))


def _of_outcome(outcome: Outcome | None) -> tuple[UndoVerdict, str]:
    if outcome is None:
        return UndoVerdict.OPEN, "the call has no outcome yet"
    fact = fact_of_outcome(outcome)
    if fact is EffectFact.HAPPENED:
        return UndoVerdict.CAN_BE_UNDONE, ""
    if fact is EffectFact.UNKNOWN:
        return UndoVerdict.IN_DOUBT, f"it is not known whether the call took effect ({outcome.status})"
    if outcome.status in _NOT_MADE:
        return UndoVerdict.NO_EFFECT, "nothing to undo: the call was not made, because another one has its effect key"
    return UndoVerdict.FAILED, f"nothing to undo: the call ended as {outcome.status}"


def _of_earlier(before: EarlierUndo) -> tuple[UndoVerdict, str]:
    """Returns whether an effect that an undo had can be undone again. An undo that has ended never runs again."""
    if before.state is None:
        return UndoVerdict.UNDO_IN_DOUBT, f"the undo {before.task_id} had it and was pruned: its end is not known"
    fact = EffectFact.NONE if before.outcome is None else fact_of_outcome(before.outcome)
    if fact is EffectFact.HAPPENED:
        return UndoVerdict.UNDONE, f"the undo {before.task_id} has undone it"
    if before.state not in TERMINAL:
        return UndoVerdict.BEING_UNDONE, f"the undo {before.task_id} has it and has not ended"
    if before.outcome is not None and _was_made_before(before.outcome):
        why = f"the undo {before.task_id} did nothing, because another call had made its compensation"
        return UndoVerdict.UNDO_IN_DOUBT, f"{why}: find out whether that call undid this effect"
    if fact is EffectFact.NONE or before.may_run_again:
        return UndoVerdict.CAN_BE_UNDONE, ""
    return UndoVerdict.UNDO_IN_DOUBT, f"it is not known whether the undo {before.task_id} took effect"


def _is_same_call(before: EarlierUndo, tool: str, arguments_json: str) -> bool:
    """Whether the other side recognises the new call as a repeat of the earlier one, or no repeat needs it."""
    may_have_happened = before.outcome is not None and fact_of_outcome(before.outcome) is EffectFact.UNKNOWN
    return not may_have_happened or (before.tool, before.arguments_json) == (tool, arguments_json)


def undone_calls(earlier: Mapping[str, EarlierUndo]) -> frozenset[str]:
    """Returns the calls that are undone."""
    return frozenset(name for name, before in earlier.items() if _of_earlier(before)[0] is UndoVerdict.UNDONE)


def _was_made_before(compensation: Outcome) -> bool:
    """Whether a compensation was not made because another call has its effect key. Did that one undo this effect?"""
    is_without_effect = not compensation.is_error and fact_of_outcome(compensation) is EffectFact.NONE
    return is_without_effect or compensation.detail == ALREADY_HAPPENED


def plan_digest(effects: Iterable[TaskEffect]) -> str:
    """Returns the digest of what an undo would do, by which a caller undoes what it saw."""
    wanted = [[each.call_id, each.undo_tool, each.undo_arguments_json] for each in undoable(effects)]
    return hashlib.sha256(json.dumps(wanted).encode()).hexdigest()


def undoable(effects: Iterable[TaskEffect]) -> Iterator[TaskEffect]:
    """Yields the effects that an undo undoes."""
    return (each for each in effects if each.verdict is UndoVerdict.CAN_BE_UNDONE)


def obstacle_of(state: TaskState, since_step: int) -> str:
    """Returns why the effects of a task in this state cannot be undone now, or "".

    A task that waits for a person does nothing meanwhile; one that runs could go on with what is being undone.
    """
    if state in TERMINAL or (since_step and state is TaskState.WAITING_USER):
        return ""
    return (
        f"the task is {state}: cancel it first, or let it end; a task that waits for a person can be undone from a "
        "step on (since_step)"
    )


def refuse_plan(effects: Sequence[TaskEffect], digest: str, *, is_whole: bool = True) -> WrongState | None:
    """Returns why these effects are not undone. `digest`: of the plan that the caller saw; "": any. `is_whole`: these
    are all effects that can be undone.
    """
    wanted = list(undoable(effects))
    if digest and digest != plan_digest(effects):
        message = "the effects that can be undone are no longer those of the list: read it again (PlanUndo)"
        return WrongState(message, reason="PLAN_CHANGED", metadata={"plan_digest": plan_digest(effects)})
    if not wanted:
        return WrongState("no effect of the task can be undone: see PlanUndo for the reasons", reason="NOTHING_TO_UNDO")
    return None if is_whole and newest_that_fit(effects) == tuple(effects) else too_large()


def newest_that_fit(effects: Sequence[TaskEffect]) -> tuple[TaskEffect, ...]:
    """Returns the effects without those that can be undone, but are too many or too large for one undo."""
    kept: list[TaskEffect] = []
    calls = size = 0
    for each in effects:
        is_wanted = each.verdict is UndoVerdict.CAN_BE_UNDONE
        calls, size = calls + is_wanted, size + is_wanted * len(each.undo_arguments_json.encode())
        if not is_wanted or (calls <= MAX_CALLS and size <= MAX_BYTES):
            kept.append(each)
    return tuple(kept)


def too_large() -> WrongState:
    """Returns the error for a task with too many effects for one undo."""
    message = f"one undo takes at most {MAX_CALLS} effects, and {MAX_BYTES // 1024} KiB of arguments"
    return WrongState(f"{message}: undo the newest ones first (since_step)", reason="UNDO_TOO_LARGE")


def note_of_undone(calls: Iterable[tuple[str, str, str]], more: int = 0) -> str:
    """Returns the message in which the agent of a fork reads which calls of its history were undone.

    `calls`: id, tool and arguments of each. `more`: how many others were.
    """
    shown = [f"- call {name}: {tool} {one_line(arguments, _MAX_ARGUMENTS)}" for name, tool, arguments in calls]
    if more:
        shown.append(f"- and {more} more")
    head = "The effects of these calls have been undone, or are being undone. Do not count on them:"
    return "\n".join([head, *shown])


# The task of an undo.


def spec_of_undo(
    source: TaskSpec,
    task_id: str,
    effects: Iterable[TaskEffect],
    queue: str,
    priority: Priority,
    *,
    go_on: bool,
    is_whole: bool = True,
) -> TaskSpec:
    """Returns the spec of the task that undoes the effects. `queue` and `priority`: those that offer the source now.
    `is_whole`: these are all effects that can be undone.

    It may call only its compensations. Approvals of the source and its approvers hold for it too. If one of them is an
    own tool, a worker with the function of the source must run it.
    """
    calls = tuple(
        UndoCall(each.call_id, each.tool, each.undo_tool, each.undo_arguments_json, each.undo_by_own_tool)
        for each in undoable(effects)
    )
    needs_code = source.control is not None and any(call.own_tool for call in calls)
    code = (source.control.function, source.control.input_json) if source.control and needs_code else ()
    tools = tuple(sorted({call.tool for call in calls}))
    policy = TaskPolicy(
        on_in_doubt=InDoubtPolicy.WAIT_FOR_PERSON,
        escalations=source.policy.escalations,
        approvers=source.policy.approvers,
        on_no_progress=NoProgressPolicy.IGNORE,
        on_failure=FailurePolicy.KEEP,
    )
    approve_tools = tuple(name for name in source.agent.approve_tools if name in tools)
    goal = f"Undo the effects of task {task_id}"
    if not is_whole:
        goal = f"Undo the newest {len(calls)} effects of task {task_id}. Then undo the task again: it has others"
    return TaskSpec(
        goal=goal,
        agent=AgentSpec(loop=UNDO_LOOP, tools=tools, approve_tools=approve_tools),
        limits=Limits(max_steps=len(calls)),
        policy=policy,
        priority=priority,
        queue=queue,
        labels=source.labels,
        source=Source(source.source.kind, source.source.source_id),
        undo=UndoWork(task_id, calls, go_on, *code),
    )


def next_compensation(point: ResumePoint, own_approvals: Sequence[str] = ()) -> ToolIntent | ExecuteTools | Transition:
    """Returns what the task of an undo does next: a new call, the calls to run, or its end.

    `own_approvals`: the worker's own tools whose calls need an approval.
    """
    assert point.spec is not None, "the first entry of every ledger is the spec"
    work = point.spec.undo
    if work is None:
        return Transition(TaskState.FAILED, Reason.UNDO_INCOMPLETE, "the task has no undo: it was not made by UndoTask")
    for step, call in enumerate(work.calls, 1):
        made, name = point.intents.get(call_id(step, 0)), call_id(step, 0)
        if made is None:
            return ToolIntent(name, "", call.tool, call.arguments_json, f"{work.task_id}/{call.call_id}")
        if name not in point.outcomes:
            return calls_to_make(point, own_approvals)
        if point.outcomes[name].is_error and not work.go_on:
            break
    return _end(work, point.outcomes)


def outcomes_of_undo(work: UndoWork, outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """Returns what the undo of each call came to, by the undone call. `outcomes`: of the undo's own calls."""
    own = {call.call_id: outcomes.get(call_id(step, 0)) for step, call in enumerate(work.calls, 1)}
    return {undone: outcome for undone, outcome in own.items() if outcome is not None}


def _end(work: UndoWork, outcomes: Mapping[str, Outcome]) -> Transition:
    settled = outcomes_of_undo(work, outcomes)
    undone, already, failed = [], [], []
    for call in work.calls:
        outcome = settled.get(call.call_id)
        if outcome is None:
            continue
        if _was_made_before(outcome):
            already.append(_unlike_planned(call, outcome))
        elif outcome.is_error:
            failed.append(_unlike_planned(call, outcome))
        else:
            undone.append(call.call_id)
    left = [call.call_id for call in work.calls if call.call_id not in settled]
    lists = {"undone": undone, "already_happened": already, "failed": failed, "left": left}
    report = json.dumps({"task_id": work.task_id, **lists}, ensure_ascii=False)
    if not (failed or already):
        return Transition(TaskState.SUCCEEDED, Reason.UNDONE, f"{len(undone)} effects are undone", report)
    message = f"{len(undone)} of {len(work.calls)} effects are undone"
    if already:
        message += f"; of {len(already)} another call had made the compensation: find out whether it undid them"
    if failed:
        message += f"; {len(failed)} failed: undo the task again"
    return Transition(TaskState.FAILED, Reason.UNDO_INCOMPLETE, message, report)


def _unlike_planned(call: UndoCall, outcome: Outcome) -> dict[str, Any]:
    what = {"call_id": call.call_id, "tool": call.tool, "status": outcome.status.value}
    return what | {"content": outcome.content[:_MAX_SHOWN]}
