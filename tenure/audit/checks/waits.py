"""Waits: each answered once, what they wait for never executed, and no call made without the leave it needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tenure.audit.check import Check
from tenure.audit.history import LedgerEntry
from tenure.audit.reading import TIME_GRAIN_SECONDS, leaves, of_kind, own, place, settled_by_waits
from tenure.audit.task_history import TaskHistory
from tenure.domain.entries import Submitted, Transition, WaitResolution
from tenure.domain.states import WAITING
from tenure.domain.waits import Wait


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


CHECKS: Final = (
    Check("I37", "a wait is answered once", ("entries",), waits_are_answered_once),
    Check("I37", "what waits is not executed", ("calls", "entries"), what_waits_is_not_executed),
    Check("I37", "calls that need leave have it", ("calls", "entries"), calls_have_leave),
)
