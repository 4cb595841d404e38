"""States: one entry for each move, only moves of the table, one end, and nothing begun after it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Final

from checker.check import Check
from checker.history import LedgerEntry, Method, TaskHistory
from checker.reading import (
    TIME_GRAIN_SECONDS,
    claim,
    drives_functions,
    drives_itself,
    ended_for_good,
    ends,
    leaves,
    name,
    of_kind,
    own,
    place,
    requeues,
    settled_by_waits,
)
from tenure.domain.entries import (
    AssistantMessage,
    AttemptLost,
    Body,
    CancelRequest,
    ControlStep,
    ModelAttempt,
    Submitted,
    ToolIntent,
    ToolOutcome,
    Transition,
    WaitResolution,
)
from tenure.domain.states import MOVES, TERMINAL, WAITING, TaskState
from tenure.domain.tools import CallState
from tenure.domain.waits import Wait

# The one append-only sequence of each task: gap-free, steps that only grow, a snapshot that agrees with it.


def sequences_have_no_gap(task: TaskHistory) -> Iterator[str]:
    """I7."""
    expected = 1
    for entry in task.entries:
        if entry.sequence < expected:
            yield f"there are two entries {entry.sequence}"
        elif entry.sequence > expected:
            missing = f"{expected}" if entry.sequence == expected + 1 else f"{expected} to {entry.sequence - 1}"
            yield f"entry {entry.sequence} follows {expected - 1}: {missing} is missing"
        expected = entry.sequence + 1
    if task.entries and not isinstance(task.entries[0].body, Submitted):
        yield f"the first entry is a {name(task.entries[0].body)}, not the goal"


def the_row_ends_where_the_ledger_ends(task: TaskHistory) -> Iterator[str]:
    """I7, of the snapshot."""
    if task.row is None:
        if task.entries:
            yield f"there are {len(task.entries)} entries and no such task"
        return
    last = task.entries[-1].sequence if task.entries else 0
    if task.row.sequence != last:
        yield f"the task's row ends at sequence {task.row.sequence}, its ledger at {last}"


def steps_only_grow(task: TaskHistory) -> Iterator[str]:
    """I8. Other loops count their steps as they like, as long as the ledger takes them."""
    step = 0
    for entry in task.entries if drives_itself(task) or drives_functions(task) else ():
        if entry.step and not step <= entry.step <= step + 1:
            yield f"{place(entry)} is of step {entry.step}, after step {step}"
        step = max(step, entry.step)


def the_row_is_at_the_newest_step(task: TaskHistory) -> Iterator[str]:
    """I8, of the snapshot."""
    newest = max((entry.step for entry in task.entries), default=0)
    if task.row is not None and task.row.step != newest:
        yield f"the task's row is at step {task.row.step}, its newest entry at {newest}"


_SEQUENCES_CHECKS: Final = (
    Check("I7", "sequences are 1, 2, 3 … without gap or repeat", ("entries",), sequences_have_no_gap),
    Check("I7", "the row ends where its ledger ends", ("tasks", "entries"), the_row_ends_where_the_ledger_ends),
    Check("I8", "steps go up by one or stay", ("entries",), steps_only_grow),
    Check("I8", "the row is at the newest step", ("tasks", "entries"), the_row_is_at_the_newest_step),
)

_RESTLESS: Final = frozenset({TaskState.QUEUED, TaskState.RUNNING})


def moves_are_allowed(task: TaskHistory) -> Iterator[str]:
    """I20."""
    state: TaskState | None = None
    requeued = {entry.sequence + 1 for entry in requeues(task.entries)}
    for entry, move in of_kind(task.entries, Transition):
        if move.from_state is not state:
            yield f"{place(entry)} moves from {move.from_state or 'nowhere'}, but the task was {state or 'new'}"
        allowed = {TaskState.QUEUED} if state is None else MOVES[state]
        if move.to_state not in allowed:
            yield f"{place(entry)} moves from {state or 'nowhere'} to {move.to_state}, which is no move of the table"
        elif state in TERMINAL and entry.sequence not in requeued:
            yield f"{place(entry)} moves out of {state}, and no operator had asked for it"
        state = move.to_state


def the_row_is_in_the_newest_state(task: TaskHistory) -> Iterator[str]:
    """I20, of the snapshot."""
    newest = next(reversed(list(of_kind(task.entries, Transition))), None)
    if task.row is not None and newest is not None and task.row.state is not newest[1].to_state:
        yield f"the task's row says {task.row.state}, {place(newest[0])} says {newest[1].to_state}"


def the_end_is_the_end(task: TaskHistory) -> Iterator[str]:
    """I21. After the end of an attempt comes an operator's requeue, with the number of the next one, or nothing."""
    end: LedgerEntry | None = None
    attempt = 1
    over = {entry.sequence for entry in ends(task.entries)}
    requeue_sequences = {entry.sequence for entry in requeues(task.entries)}
    for entry in task.entries:
        if end is not None and entry.sequence in requeue_sequences and entry.attempt == attempt + 1:
            end, attempt = None, entry.attempt
        if end is not None:
            yield f"{place(entry)} follows the end of the task at {place(end)}"
        elif entry.attempt != attempt:
            yield f"{place(entry)} is of attempt {entry.attempt}, and attempt {attempt} goes on"
        if entry.sequence in over:
            end = entry


def results_stay(task: TaskHistory) -> Iterator[str]:
    """I22: the row has the result of the end."""
    end = ended_for_good(task.entries)
    if end is None or task.row is None or not isinstance(end.body, Transition):
        return
    if task.row.result != end.body.result:
        yield f"the task's row has another result than {place(end)}"


def ended_tasks_look_the_same_to_all(task: TaskHistory) -> Iterator[str]:
    """I22, as clients saw it: who read an end read the one that stands, or that of an attempt before."""
    before = {
        (move.to_state, move.result)
        for entry, move in of_kind(ends(task.entries), Transition)
        if task.row is not None and entry.attempt < task.row.attempt
    }
    for read in task.operations:
        if read.method is Method.COMMIT or task.row is None or read.state not in TERMINAL:
            continue
        if any(read.state is state and read.result in {None, result} for state, result in before):
            continue
        if read.state is not task.row.state:
            yield f"{read.client} read that the task had ended as {read.state}; it is {task.row.state}"
        elif read.result is not None and read.result != task.row.result:
            yield f"{read.client} read another result of the ended task than it has now"


def nothing_is_asked_after_a_cancel(task: TaskHistory) -> Iterator[str]:
    """I23: once the end was asked for, the model is not, in this attempt."""
    for entry, cancel in _after_cancels(task, ModelAttempt):
        yield f"{place(entry)} asks the model after {place(cancel)} had asked for the end"


def cancelled_tasks_do_not_succeed(task: TaskHistory) -> Iterator[str]:
    """I23: the request was acknowledged, so it wins over whatever the owner commits afterwards."""
    for entry, cancel in _after_cancels(task, Transition):
        if isinstance(entry.body, Transition) and entry.body.to_state is TaskState.SUCCEEDED:
            yield f"{place(entry)} says that the task succeeded, after {place(cancel)} had asked for the end"


def _after_cancels(task: TaskHistory, kind: type[Body]) -> Iterator[tuple[LedgerEntry, LedgerEntry]]:
    """The entries of a kind that follow the first cancel of their attempt, with that cancel."""
    cancels: dict[int, LedgerEntry] = {}
    for cancel, _ in of_kind(task.entries, CancelRequest):
        cancels.setdefault(cancel.attempt, cancel)
    for entry, _ in of_kind(task.entries, kind) if cancels else ():
        first = cancels.get(entry.attempt)
        if first is not None and entry.sequence > first.sequence:
            yield entry, first


def nothing_begins_after_the_end(task: TaskHistory) -> Iterator[str]:
    """I23: after the end was committed no call is taken and none begins, until another attempt does."""
    slack = task.clock_slack_seconds + TIME_GRAIN_SECONDS
    begun = [entry.recorded_at for entry in requeues(task.entries)]
    for end in ends(task.entries):
        latest = end.recorded_at + slack
        until = min((moment - slack for moment in begun if moment >= end.recorded_at), default=math.inf)
        for call in task.calls:
            if latest < call.accepted_at < until:
                yield f"call {call.call_id} ({call.tool}) was taken after the end of the task ({place(end)})"
            elif call.started_at is not None and latest < call.started_at < until:
                yield f"call {call.call_id} ({call.tool}) was started after the end of the task ({place(end)})"
            elif call.state is CallState.ACCEPTED and end == ended_for_good(task.entries):
                yield f"call {call.call_id} ({call.tool}) may still begin, though the task has ended ({place(end)})"


def tasks_come_to_rest(task: TaskHistory) -> Iterator[str]:
    """I30."""
    if task.row is not None and task.row.state in _RESTLESS:
        yield f"the task is still {task.row.state} at sequence {task.row.sequence}, long after all faults stopped"


def claims_go_with_their_tasks(task: TaskHistory) -> Iterator[str]:
    """I30, of claims: no worker is left holding what is over."""
    for grant in task.grants:
        if grant.deleted_revision is None and task.row is not None and task.row.state in TERMINAL:
            yield f"{claim(grant.fence)} is still in etcd, and the task has ended"


_TRANSITIONS_CHECKS: Final = (
    Check("I20", "moves are those of the table", ("entries",), moves_are_allowed),
    Check("I20", "the row is in the newest state", ("tasks", "entries"), the_row_is_in_the_newest_state),
    Check("I21", "nothing follows the end", ("entries",), the_end_is_the_end),
    Check("I22", "the row has the end's result", ("tasks", "entries"), results_stay),
    Check("I22", "an end that was read stands", ("tasks", "operations"), ended_tasks_look_the_same_to_all),
    Check("I23", "no model call after a cancel", ("entries",), nothing_is_asked_after_a_cancel),
    Check("I23", "a cancelled task does not succeed", ("entries",), cancelled_tasks_do_not_succeed),
    Check("I23", "no tool call after the end", ("entries", "calls"), nothing_begins_after_the_end),
    Check("I30", "tasks come to rest", ("tasks", "settled"), tasks_come_to_rest),
    Check("I30", "claims of ended tasks are gone", ("tasks", "grants", "settled"), claims_go_with_their_tasks),
)


# What the model reads: every call answered once before it is asked again, and no work done twice.


class _Turn:
    """An answer's calls: by the provider's id while they have no intent, by ours while they have no outcome."""

    def __init__(self) -> None:
        self.unwritten: Counter[str] = Counter()
        self.open: dict[str, str] = {}

    def answer(self, message: AssistantMessage) -> None:
        uses = (block.get("id", "") for block in message.content if block.get("type") == "tool_use")
        self.unwritten = Counter(uses)

    def missing(self) -> str:
        """What keeps the conversation from going on."""
        lines = [f"call {use} of the answer has no intent" for use in self.unwritten.elements()]
        return "; ".join([*lines, *(f"call {call_id} has no outcome" for call_id in self.open)])


def conversations_are_whole(task: TaskHistory) -> Iterator[str]:
    """I16, for the loop that sends its ledger to the model as it stands."""
    turn = _Turn()
    for entry in task.entries if drives_itself(task) else ():
        match entry.body:
            case AssistantMessage() as message:
                turn.answer(message)
            case ToolIntent(call_id=call_id, tool_use_id=use):
                yield from _intended(turn, entry, call_id, use)
            case ToolOutcome(call_id=call_id):
                if turn.open.pop(call_id, None) is None:
                    yield f"{place(entry)} is an outcome of call {call_id}, which is not open"
            case ModelAttempt():
                if missing := turn.missing():
                    yield f"{place(entry)} asks the model again, but {missing}"
            case _:
                pass


def ended_tasks_have_no_open_call(task: TaskHistory) -> Iterator[str]:
    """I16: the outcomes of open calls come with the end, whoever brings it."""
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
    """I32: a committed answer is never asked for again."""
    first: dict[int, LedgerEntry] = {}
    for entry, _ in of_kind(own(task.entries), AssistantMessage) if drives_itself(task) else ():
        if entry.step in first:
            yield f"{place(entry)} answers step {entry.step} again, after {place(first[entry.step])}"
        first.setdefault(entry.step, entry)


def steps_of_functions_are_made_once(task: TaskHistory) -> Iterator[str]:
    """I32, of control work: a step that has its result, or its calls, is that step for ever."""
    first: dict[int, LedgerEntry] = {}
    for entry in own(task.entries) if drives_functions(task) else ():
        if not isinstance(entry.body, ControlStep | ToolIntent):
            continue
        before = first.setdefault(entry.step, entry)
        if before is not entry and not (isinstance(before.body, ToolIntent) and isinstance(entry.body, ToolIntent)):
            yield f"{place(entry)} makes step {entry.step} again, after {place(before)}"


def a_claim_loses_one_call_at_most(task: TaskHistory) -> Iterator[str]:
    """I32: a takeover costs at most the one model call that was in flight."""
    holder: LedgerEntry | None = None
    lost: list[LedgerEntry] = []
    for entry in task.entries if drives_itself(task) else ():
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


def _intended(turn: _Turn, entry: LedgerEntry, call_id: str, use: str) -> Iterator[str]:
    if turn.unwritten[use] > 0:
        turn.unwritten[use] -= 1
    else:
        yield f"{place(entry)} intends call {call_id}, which the last answer does not ask for"
    turn.open[call_id] = use


_CONVERSATION_CHECKS: Final = (
    Check("I16", "every call is answered once before the model goes on", ("entries",), conversations_are_whole),
    Check("I16", "no task ends with an open call", ("entries",), ended_tasks_have_no_open_call),
    Check("I32", "a step is answered once", ("entries",), steps_are_answered_once),
    Check("I32", "a function's step is made once", ("entries",), steps_of_functions_are_made_once),
    Check("I32", "a claim loses one model call at most", ("entries",), a_claim_loses_one_call_at_most),
)


# Waits: each answered once, what they wait for never executed, and no call made without the leave it needs.


def waits_are_answered_once(task: TaskHistory) -> Iterator[str]:
    """I37: an answer is for the present wait, comes from outside of any claim, and the task moves with it."""
    wait: Wait | None = None
    answer: LedgerEntry | None = None
    for entry in own(task.entries):
        if isinstance(entry.body, Transition):
            wait, answer = (entry.body.wait if entry.body.to_state in WAITING else None), None
        if not isinstance(entry.body, WaitResolution):
            continue
        if wait is None or wait.wait_id != entry.body.wait_id:
            yield f"{place(entry)} answers {entry.body.wait_id}, which the task does not wait for"
        elif answer is not None:
            yield f"{place(entry)} answers {entry.body.wait_id} again, after {place(answer)}"
        if entry.epoch:
            yield f"{place(entry)} was written under a claim: nobody holds a task that waits"
        answer = entry


def what_waits_is_not_executed(task: TaskHistory) -> Iterator[str]:
    """I37: the ledger alone says what such a call came to; the tools never hear of it."""
    settled = {call_id: entry for entry, call_id in settled_by_waits(task)}
    for call in task.calls:
        if call.call_id in settled:
            ended = place(settled[call.call_id])
            yield f"call {call.call_id} ({call.tool}) was handed to the tools, but {ended} settled it"


def calls_have_leave(task: TaskHistory) -> Iterator[str]:
    """I37: what needs a person's leave is executed after it was given, and not before."""
    goal = next(of_kind(task.entries, Submitted), None)
    needs = goal[1].spec.agent.approve_tools if goal is not None else ()
    given = leaves(task)
    for call in task.calls:
        if call.tool not in needs:
            continue
        leave = given.get(call.call_id)
        if leave is None:
            yield f"call {call.call_id} ({call.tool}) was made, and nobody gave leave to it"
        elif leave[0].recorded_at > call.accepted_at + task.clock_slack_seconds + TIME_GRAIN_SECONDS:
            yield f"call {call.call_id} ({call.tool}) was made before {place(leave[0])} gave leave to it"


_WAITS_CHECKS: Final = (
    Check("I37", "a wait is answered once", ("entries",), waits_are_answered_once),
    Check("I37", "what waits is not executed", ("calls", "entries"), what_waits_is_not_executed),
    Check("I37", "calls that need leave have it", ("calls", "entries"), calls_have_leave),
)


CHECKS: Final = (
    *_SEQUENCES_CHECKS,
    *_TRANSITIONS_CHECKS,
    *_CONVERSATION_CHECKS,
    *_WAITS_CHECKS,
)
