"""States: one entry for each move, only moves of the table, one end, and nothing begun after it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from tenure.audit.check import Check
from tenure.audit.history import LedgerEntry, Method
from tenure.audit.reading import TIME_GRAIN_SECONDS, claim, ended_for_good, ends, of_kind, place, requeues
from tenure.audit.task_history import TaskHistory
from tenure.domain.entries import Body, CancelRequest, ModelAttempt, Transition
from tenure.domain.states import MOVES, TERMINAL, TaskState
from tenure.domain.tools import CallState

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
    asked = {entry.sequence for entry in requeues(task.entries)}
    for entry in task.entries:
        if end is not None and entry.sequence in asked and entry.attempt == attempt + 1:
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


CHECKS: Final = (
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
