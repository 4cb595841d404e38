"""Checks of one task's ledger: sequences and steps, transitions, conversations, and waits (I7, I8, I16, I20 to I23,
I30, I32, I37, I41).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from typing import Final

from checker.check import Check
from checker.history import LedgerEntry, Method, TaskHistory
from checker.reading import (
    TIME_GRAIN_SECONDS,
    approvals,
    claim,
    drives_functions,
    drives_itself,
    ended_for_good,
    ends,
    name,
    of_kind,
    own,
    place,
    requeues,
    settled_by_waits,
)
from tenure.domain.budget import BudgetWarning
from tenure.domain.entries import (
    AssistantMessage,
    AttemptLost,
    Body,
    CancelRequest,
    ControlStep,
    ModelAttempt,
    OperatorRequest,
    Submitted,
    ToolIntent,
    ToolOutcome,
    Transition,
    WaitEscalated,
    WaitResolution,
)
from tenure.domain.outputs import RECORD_OUTPUT, TaskOutput
from tenure.domain.states import MOVES, TERMINAL, WAITING, Reason, TaskState
from tenure.domain.tools import CallState
from tenure.domain.waits import APPROVE, BeginWait, Wait, WaitAnswerKind, WaitKind

# Sequences and steps, and the task row that must agree with them.


def sequences_have_no_gap(task: TaskHistory) -> Iterator[str]:
    """I7."""
    expected = 1
    for entry in task.entries:
        if entry.sequence < expected:
            yield f"there are two entries with sequence {entry.sequence}"
        elif entry.sequence > expected:
            missing = f"{expected}" if entry.sequence == expected + 1 else f"{expected} to {entry.sequence - 1}"
            yield f"entry {entry.sequence} follows {expected - 1}: {missing} is missing"
        expected = entry.sequence + 1
    if task.entries and not isinstance(task.entries[0].body, Submitted):
        yield f"the first entry is {name(task.entries[0].body)}, not submitted"


def the_row_has_the_last_sequence(task: TaskHistory) -> Iterator[str]:
    """I7, for the task row."""
    if task.row is None:
        if task.entries:
            yield f"there are {len(task.entries)} entries, but no task row"
        return
    last = task.entries[-1].sequence if task.entries else 0
    if task.row.sequence != last:
        yield f"the task row has sequence {task.row.sequence}, the last entry {last}"


def steps_never_decrease(task: TaskHistory) -> Iterator[str]:
    """I8. Loops outside of Tenure's worker may number their steps freely, within the rules of the ledger."""
    step = 0
    for entry in task.entries if drives_itself(task) or drives_functions(task) else ():
        if entry.step and not step <= entry.step <= step + 1:
            yield f"{place(entry)} belongs to step {entry.step}, after step {step}"
        step = max(step, entry.step)


def the_row_has_the_newest_step(task: TaskHistory) -> Iterator[str]:
    """I8, for the task row."""
    newest = max((entry.step for entry in task.entries), default=0)
    if task.row is not None and task.row.step != newest:
        yield f"the task row has step {task.row.step}, the newest entry {newest}"


_SEQUENCES_CHECKS: Final = (
    Check("I7", "sequences are 1, 2, 3 … without gap or repeat", ("entries",), sequences_have_no_gap),
    Check("I7", "the task row has the last sequence", ("tasks", "entries"), the_row_has_the_last_sequence),
    Check("I8", "steps increase by one or stay", ("entries",), steps_never_decrease),
    Check("I8", "the task row has the newest step", ("tasks", "entries"), the_row_has_the_newest_step),
)

_NOT_SETTLED: Final = frozenset({TaskState.QUEUED, TaskState.RUNNING})


def transitions_are_allowed(task: TaskHistory) -> Iterator[str]:
    """I20."""
    state: TaskState | None = None
    requeued = {entry.sequence + 1 for entry in requeues(task.entries)}
    for entry, transition in of_kind(task.entries, Transition):
        if transition.from_state is not state:
            yield f"{place(entry)} moves from {transition.from_state or 'nowhere'}, but the task was {state or 'new'}"
        allowed = {TaskState.QUEUED} if state is None else MOVES[state]
        if transition.to_state not in allowed:
            yield (
                f"{place(entry)} moves from {state or 'nowhere'} to {transition.to_state}, "
                "which is not in the table of transitions"
            )
        elif state in TERMINAL and entry.sequence not in requeued:
            yield f"{place(entry)} moves out of {state} without an operator's request"
        state = transition.to_state


def the_row_has_the_newest_state(task: TaskHistory) -> Iterator[str]:
    """I20, for the task row."""
    newest = next(reversed(list(of_kind(task.entries, Transition))), None)
    if task.row is not None and newest is not None and task.row.state is not newest[1].to_state:
        yield f"the task row has state {task.row.state}, {place(newest[0])} has {newest[1].to_state}"


def nothing_follows_the_end(task: TaskHistory) -> Iterator[str]:
    """I21. Only an operator's requeue, with the number of the next attempt, follows the end of an attempt."""
    end: LedgerEntry | None = None
    attempt = 1
    end_sequences = {entry.sequence for entry in ends(task.entries)}
    requeue_sequences = {entry.sequence for entry in requeues(task.entries)}
    for entry in task.entries:
        if end is not None and entry.sequence in requeue_sequences and entry.attempt == attempt + 1:
            end, attempt = None, entry.attempt
        if end is not None:
            yield f"{place(entry)} follows the end of the task at {place(end)}"
        elif entry.attempt != attempt:
            yield f"{place(entry)} belongs to attempt {entry.attempt}, but attempt {attempt} has not ended"
        if entry.sequence in end_sequences:
            end = entry


def the_row_has_the_result(task: TaskHistory) -> Iterator[str]:
    """I22: the task row has the result of the transition that ended the task."""
    end = ended_for_good(task.entries)
    if end is None or task.row is None or not isinstance(end.body, Transition):
        return
    if task.row.result != end.body.result:
        yield f"the task row has another result than {place(end)}"


def the_row_has_the_outputs(task: TaskHistory) -> Iterator[str]:
    """I41: the task row lists the outputs of its own calls of record_output, each as the last close-out found it."""
    if task.row is None:
        return
    entries = own(task.entries)
    calls = {intent.call_id for _, intent in of_kind(entries, ToolIntent) if intent.tool == RECORD_OUTPUT}
    expected: dict[str, TaskOutput] = {}
    for entry in entries:
        match entry.body:
            case ToolOutcome(call_id, outcome) if call_id in calls and outcome.output and not outcome.is_error:
                expected[call_id] = replace(outcome.output, call_id=call_id)
            case Transition(to_state=TaskState.SUCCEEDED, outputs=outputs):
                for output in outputs:
                    known = expected.get(output.call_id)
                    if known is not None and (known.kind, known.uri) == (output.kind, output.uri):
                        expected[output.call_id] = output
    listed = {output.call_id: output for output in task.row.outputs}
    for call_id in sorted({**expected, **listed}):
        if expected.get(call_id) != listed.get(call_id):
            yield f"the task lists {listed.get(call_id)} for call {call_id}, its entries say {expected.get(call_id)}"


def clients_read_the_final_state(task: TaskHistory) -> Iterator[str]:
    """I22, for clients: a terminal state that a client read is the final one, or that of an earlier attempt."""
    before = {
        (transition.to_state, transition.result)
        for entry, transition in of_kind(ends(task.entries), Transition)
        if task.row is not None and entry.attempt < task.row.attempt
    }
    for read in task.operations:
        if read.method is Method.COMMIT or task.row is None or read.state not in TERMINAL:
            continue
        if any(read.state is state and read.result in {None, result} for state, result in before):
            continue
        if read.state is not task.row.state:
            yield f"{read.client} read that the task had ended as {read.state}, but the task is {task.row.state}"
        elif read.result is not None and read.result != task.row.result:
            yield f"{read.client} read another result than the task row has now, after the task had ended"


def no_model_call_follows_a_cancel(task: TaskHistory) -> Iterator[str]:
    """I23: no model call begins after a cancel request of the same attempt."""
    for entry, cancel in _after_cancels(task, ModelAttempt):
        yield f"{place(entry)} begins a model call after {place(cancel)}"


def cancelled_tasks_do_not_succeed(task: TaskHistory) -> Iterator[str]:
    """I23: the cancel request was acknowledged, so it wins over any later commit of the owner."""
    for entry, cancel in _after_cancels(task, Transition):
        if isinstance(entry.body, Transition) and entry.body.to_state is TaskState.SUCCEEDED:
            yield f"{place(entry)} says that the task succeeded, after {place(cancel)}"


def _after_cancels(task: TaskHistory, kind: type[Body]) -> Iterator[tuple[LedgerEntry, LedgerEntry]]:
    """Yields the entries of a kind that follow the first cancel request of their attempt, with that request."""
    cancels: dict[int, LedgerEntry] = {}
    for cancel, _ in of_kind(task.entries, CancelRequest):
        cancels.setdefault(cancel.attempt, cancel)
    for entry, _ in of_kind(task.entries, kind) if cancels else ():
        first = cancels.get(entry.attempt)
        if first is not None and entry.sequence > first.sequence:
            yield entry, first


def no_tool_call_follows_the_end(task: TaskHistory) -> Iterator[str]:
    """I23: after a committed end no tool call is accepted or started until the next attempt begins."""
    slack = task.clock_slack_seconds + TIME_GRAIN_SECONDS
    requeued_at = [entry.recorded_at for entry in requeues(task.entries)]
    for end in ends(task.entries):
        latest = end.recorded_at + slack
        until = min((moment - slack for moment in requeued_at if moment >= end.recorded_at), default=math.inf)
        for call in task.calls:
            if latest < call.accepted_at < until:
                yield f"call {call.call_id} ({call.tool}) was accepted after the end of the task ({place(end)})"
            elif call.started_at is not None and latest < call.started_at < until:
                yield f"call {call.call_id} ({call.tool}) was started after the end of the task ({place(end)})"
            elif call.state is CallState.ACCEPTED and end == ended_for_good(task.entries):
                yield f"call {call.call_id} ({call.tool}) may still start although the task has ended ({place(end)})"


def tasks_settle(task: TaskHistory) -> Iterator[str]:
    """I30."""
    if task.row is not None and task.row.state in _NOT_SETTLED:
        yield f"the task is still {task.row.state} at sequence {task.row.sequence}, long after the last fault"


def claims_of_ended_tasks_are_gone(task: TaskHistory) -> Iterator[str]:
    """I30, for claims: no claim of an ended task remains."""
    for grant in task.grants:
        if grant.deleted_revision is None and task.row is not None and task.row.state in TERMINAL:
            yield f"{claim(grant.fence)} is still in etcd although the task has ended"


_TRANSITIONS_CHECKS: Final = (
    Check("I20", "transitions are in the table", ("entries",), transitions_are_allowed),
    Check("I20", "the task row has the newest state", ("tasks", "entries"), the_row_has_the_newest_state),
    Check("I21", "nothing follows the end", ("entries",), nothing_follows_the_end),
    Check("I22", "the task row has the final result", ("tasks", "entries"), the_row_has_the_result),
    Check("I41", "the task lists its outputs", ("tasks", "entries"), the_row_has_the_outputs),
    Check("I22", "clients read the final state and result", ("tasks", "operations"), clients_read_the_final_state),
    Check("I23", "no model call begins after a cancel request", ("entries",), no_model_call_follows_a_cancel),
    Check("I23", "a cancelled task does not succeed", ("entries",), cancelled_tasks_do_not_succeed),
    Check("I23", "no tool call begins after the end", ("entries", "calls"), no_tool_call_follows_the_end),
    Check("I30", "tasks end or wait", ("tasks", "settled"), tasks_settle),
    Check("I30", "claims of ended tasks are gone", ("tasks", "grants", "settled"), claims_of_ended_tasks_are_gone),
)


# Conversations: every call has one outcome before the next model call, and no work is repeated.


class _AnswerCalls:
    """The calls of an answer: by tool_use id while they have no intent, by call id while they have no outcome."""

    def __init__(self) -> None:
        self.without_intent: Counter[str] = Counter()
        self.open: dict[str, str] = {}

    def answer(self, message: AssistantMessage) -> None:
        tool_use_ids = (block.get("id", "") for block in message.content if block.get("type") == "tool_use")
        self.without_intent = Counter(tool_use_ids)

    def missing(self) -> str:
        """Returns what is missing before the next model call, or ""."""
        lines = [f"call {use} of the answer has no intent" for use in self.without_intent.elements()]
        return "; ".join([*lines, *(f"call {call_id} has no outcome" for call_id in self.open)])


def conversations_are_complete(task: TaskHistory) -> Iterator[str]:
    """I16, for the loop `messages`, which sends its ledger to the model."""
    calls = _AnswerCalls()
    for entry in task.entries if drives_itself(task) else ():
        match entry.body:
            case AssistantMessage() as message:
                calls.answer(message)
            case ToolIntent(call_id=call_id, tool_use_id=use):
                yield from _check_intent(calls, entry, call_id, use)
            case ToolOutcome(call_id=call_id):
                if calls.open.pop(call_id, None) is None:
                    yield f"{place(entry)} is an outcome of call {call_id}, which is not open"
            case ModelAttempt():
                if missing := calls.missing():
                    yield f"{place(entry)} begins the next model call, but {missing}"
            case _:
                pass


def ended_tasks_have_no_open_call(task: TaskHistory) -> Iterator[str]:
    """I16: any close-out has an outcome for each open call."""
    still_open: dict[str, LedgerEntry] = {}
    for entry in task.entries:
        match entry.body:
            case ToolIntent(call_id=call_id):
                still_open[call_id] = entry
            case ToolOutcome(call_id=call_id):
                still_open.pop(call_id, None)
            case Transition(to_state=to_state) if to_state in TERMINAL and still_open:
                yield f"{place(entry)} ended the task as {to_state} without an outcome of call {', '.join(still_open)}"
            case _:
                pass


def steps_are_answered_once(task: TaskHistory) -> Iterator[str]:
    """I32: the model call of a step with a committed answer is never repeated."""
    first: dict[int, LedgerEntry] = {}
    is_own_loop = drives_itself(task) or drives_functions(task)
    for entry, _ in of_kind(own(task.entries), AssistantMessage) if is_own_loop else ():
        if entry.step in first:
            yield f"{place(entry)} answers step {entry.step} again, after {place(first[entry.step])}"
        first.setdefault(entry.step, entry)


def steps_of_functions_are_made_once(task: TaskHistory) -> Iterator[str]:
    """I32, for control functions: a step that has its result or its calls is never made again."""
    first: dict[int, LedgerEntry] = {}
    for entry in own(task.entries) if drives_functions(task) else ():
        if not isinstance(entry.body, ControlStep | ToolIntent):
            continue
        before = first.setdefault(entry.step, entry)
        if before is not entry and not (isinstance(before.body, ToolIntent) and isinstance(entry.body, ToolIntent)):
            yield f"{place(entry)} makes step {entry.step} again, after {place(before)}"


def answers_of_functions_have_their_result(task: TaskHistory) -> Iterator[str]:
    """I32, for control functions: the step with the result of a model call follows the answer at once."""
    entries = own(task.entries) if drives_functions(task) else ()
    for entry, after in zip_longest(entries, entries[1:]):  # no pair at all without entries
        if not isinstance(entry.body, AssistantMessage):
            continue
        if after is None or after.step != entry.step or not isinstance(after.body, ControlStep):
            yield f"{place(entry)} answers step {entry.step}, but the step with its result does not follow"


def a_claim_loses_at_most_one_model_call(task: TaskHistory) -> Iterator[str]:
    """I32: a takeover costs at most the one model call that was in flight."""
    holder: LedgerEntry | None = None
    lost: list[LedgerEntry] = []
    for entry in task.entries if drives_itself(task) or drives_functions(task) else ():
        match entry.body:
            case AttemptLost():
                lost.append(entry)
            case Transition(to_state=TaskState.RUNNING):
                if len(lost) > 1 and holder is not None:
                    places = ", ".join(map(place, lost))
                    yield f"{claim(holder.fence)} lost {len(lost)} model calls: {places}"
                holder, lost = entry, []
            case _:
                pass


def calls_of_runners_survive_their_worker(task: TaskHistory) -> Iterator[str]:
    """I32: a requeue or a drain settles no call of a model runner. An Open may, for a worker that cannot join it."""
    outlives, lost = False, None
    for entry in own(task.entries):
        match entry.body:
            case ModelAttempt() as attempt:
                outlives, lost = attempt.outlives_worker, None
            case AttemptLost():
                lost = entry if outlives else None
            case BudgetWarning():
                pass
            case Transition(from_state=TaskState.RUNNING, to_state=TaskState.QUEUED, reason=reason) if lost is not None:
                if reason != Reason.CLAIM_LOST:
                    yield f"{place(lost)} settles a call of a model runner, and {place(entry)} only requeues the task"
                lost = None
            case _:
                lost = None


def _check_intent(calls: _AnswerCalls, entry: LedgerEntry, call_id: str, tool_use_id: str) -> Iterator[str]:
    if calls.without_intent[tool_use_id] > 0:
        calls.without_intent[tool_use_id] -= 1
    else:
        yield f"{place(entry)} is an intent of call {call_id}, which the last answer does not have"
    calls.open[call_id] = tool_use_id


_CONVERSATION_CHECKS: Final = (
    Check("I16", "every call has one outcome before the next model call", ("entries",), conversations_are_complete),
    Check("I16", "no task ends with an open call", ("entries",), ended_tasks_have_no_open_call),
    Check("I32", "a step is answered once", ("entries",), steps_are_answered_once),
    Check("I32", "a function's step is made once", ("entries",), steps_of_functions_are_made_once),
    Check("I32", "a function's answer has its result", ("entries",), answers_of_functions_have_their_result),
    Check("I32", "a claim loses at most one model call", ("entries",), a_claim_loses_at_most_one_model_call),
    Check("I32", "a model runner's call survives its worker", ("entries",), calls_of_runners_survive_their_worker),
)


# Waits: each is answered once, the tool service never gets the call that waits, and no call runs without its approval.


def waits_are_answered_once(task: TaskHistory) -> Iterator[str]:
    """I37: an answer belongs to the current wait, has no claim, and is the only one for its call."""
    wait: Wait | None = None
    answers: dict[str, LedgerEntry] = {}
    for entry in own(task.entries):
        if isinstance(entry.body, Transition):
            wait, answers = (entry.body.wait if entry.body.to_state in WAITING else None), {}
        if not isinstance(entry.body, WaitResolution):
            continue
        if wait is None or wait.wait_id != entry.body.wait_id:
            yield f"{place(entry)} answers {entry.body.wait_id}, which is not the task's wait"
        elif (answer := answers.get(entry.body.call_id)) is not None:
            yield f"{place(entry)} answers {entry.body.wait_id} again, after {place(answer)}"
        elif entry.body.call_id not in {wait.call_id, *(call.call_id for call in wait.calls)}:
            yield f"{place(entry)} answers {entry.body.wait_id} for {entry.body.call_id}, which does not wait"
        if entry.epoch:
            yield f"{place(entry)} was written under a claim, but no claim holds a waiting task"
        answers[entry.body.call_id] = entry


def waits_are_escalated_in_order(task: TaskHistory) -> Iterator[str]:
    """I37: the steps of a wait are 1, 2, 3 …, without a claim and before the answer."""
    wait: Wait | None = None
    taken = 0
    for entry in own(task.entries):
        if isinstance(entry.body, Transition):
            wait, taken = (entry.body.wait if entry.body.to_state in WAITING else None), 0
        elif isinstance(entry.body, WaitResolution):
            wait = None
        if not isinstance(entry.body, WaitEscalated):
            continue
        if wait is None or wait.wait_id != entry.body.wait_id:
            yield f"{place(entry)} escalates {entry.body.wait_id}, which is not the task's open wait"
        elif entry.body.step_number != taken + 1:
            yield f"{place(entry)} is step {entry.body.step_number} of {wait.wait_id}, after {taken} steps"
        if entry.epoch:
            yield f"{place(entry)} was written under a claim, but no claim holds a waiting task"
        taken += 1


def budget_is_granted_or_the_task_ends(task: TaskHistory) -> Iterator[str]:
    """I37, for a wait for budget: only an approval queues the task, and nothing but an approval lets it go on."""
    waits_for_budget, approved = False, False
    for entry in own(task.entries):
        match entry.body:
            case Transition(to_state=to_state, wait=wait):
                if waits_for_budget and to_state is TaskState.QUEUED and not approved:
                    yield f"{place(entry)} continues a task that waits for budget, but no entry granted any"
                if waits_for_budget and to_state is TaskState.COST_EXCEEDED and approved:
                    yield f"{place(entry)} ends a task at its cap after its request was granted"
                waits_for_budget = (
                    wait is not None and wait.kind is WaitKind.BUDGET and to_state is TaskState.WAITING_USER
                )
                approved = False
                if waits_for_budget and wait is not None and (wait.call_id or wait.budget_request is None):
                    yield f"{place(entry)} waits for budget, but has a call or asks for nothing"
            case WaitResolution(wait_kind=WaitKind.BUDGET) as answer:
                approved = answer.answer_kind is WaitAnswerKind.DECISION and answer.answer == APPROVE
                if not approved and (answer.extra_budget_tokens or answer.extra_budget_nano_usd):
                    yield f"{place(entry)} refuses budget, but raises a cap"
            case _:
                pass


def operators_waits_were_requested(task: TaskHistory) -> Iterator[str]:
    """I37, for operators' waits: each begins after its own request, and no other transition leads there."""
    requested: set[str] = set()
    for entry in own(task.entries):
        match entry.body:
            case OperatorRequest(act=BeginWait(question=question)):
                requested = {question}
            case Transition(wait=wait) if wait is not None and wait.kind is WaitKind.OPERATOR:
                if wait.question not in requested:
                    yield f"{place(entry)} begins an operator's wait that no operator requested"
                requested = set()
            case Transition(from_state=from_state, to_state=TaskState.WAITING_USER) if (
                from_state is not TaskState.RUNNING
            ):
                yield f"{place(entry)} moves a task that no worker held to WAITING_USER, without an operator's request"
            case Transition(from_state=from_state, to_state=TaskState.SUCCEEDED, reason=reason) if (
                from_state is not TaskState.RUNNING and reason != Reason.OPERATOR_CLOSE_OUT
            ):
                yield f"{place(entry)} ends a task that no worker held as SUCCEEDED, without an operator's request"
            case _:
                pass


def waiting_calls_are_not_executed(task: TaskHistory) -> Iterator[str]:
    """I37: only the ledger has the outcome of a call that waits; the tool service never gets the call."""
    settled = {call_id: entry for entry, call_id in settled_by_waits(task)}
    for call in task.calls:
        if call.call_id in settled:
            outcome = place(settled[call.call_id])
            yield f"call {call.call_id} ({call.tool}) was sent to the tool service, but {outcome} settled it"


def calls_are_approved(task: TaskHistory) -> Iterator[str]:
    """I37: a call that needs an approval runs only after the approval."""
    goal = next(of_kind(task.entries, Submitted), None)
    needs = goal[1].spec.agent.approve_tools if goal is not None else ()
    approved = approvals(task)
    for call in task.calls:
        if call.tool not in needs:
            continue
        approval = approved.get(call.call_id)
        if approval is None:
            yield f"call {call.call_id} ({call.tool}) was made without an approval"
        elif approval[0].recorded_at > call.accepted_at + task.clock_slack_seconds + TIME_GRAIN_SECONDS:
            yield f"call {call.call_id} ({call.tool}) was made before {place(approval[0])} approved it"


_WAITS_CHECKS: Final = (
    Check("I37", "a wait is answered once", ("entries",), waits_are_answered_once),
    Check("I37", "a wait is escalated step by step", ("entries",), waits_are_escalated_in_order),
    Check("I37", "a wait for budget ends by a grant or at the cap", ("entries",), budget_is_granted_or_the_task_ends),
    Check("I37", "an operator's wait has a request", ("entries",), operators_waits_were_requested),
    Check("I37", "calls that wait are not executed", ("calls", "entries"), waiting_calls_are_not_executed),
    Check("I37", "calls that need an approval have it", ("calls", "entries"), calls_are_approved),
)


CHECKS: Final = (
    *_SEQUENCES_CHECKS,
    *_TRANSITIONS_CHECKS,
    *_CONVERSATION_CHECKS,
    *_WAITS_CHECKS,
)
