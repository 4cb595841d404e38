"""Tokens set aside and used: never more than the cap, and nothing set aside that nobody will settle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tenure.audit.check import Check
from tenure.audit.history import LedgerEntry
from tenure.audit.reading import of_kind, own, place
from tenure.audit.task_history import TaskHistory
from tenure.domain.budget import TokenUsage
from tenure.domain.entries import (
    AssistantMessage,
    AttemptLost,
    Body,
    ModelAttempt,
    ModelFailure,
    OperatorRequest,
    Requeue,
    Submitted,
    Transition,
    WaitResolution,
)
from tenure.domain.states import TaskState


@dataclass(slots=True)
class Tally:
    """A task's use of tokens up to some entry."""

    used: TokenUsage = field(default_factory=TokenUsage)
    reserved: int = 0

    def add(self, entry: LedgerEntry) -> None:
        """Takes the next entry in."""
        match entry.body:
            case ModelAttempt() as attempt:
                self.reserved = attempt.reserved_tokens
            case AssistantMessage() | ModelFailure() | AttemptLost() as settled:
                self.used += settled.usage
                self.reserved = 0
            case _:
                pass


def tally(task: TaskHistory) -> Tally:
    """What a task's entries come to."""
    sum_of = Tally()
    for entry in own(task.entries):
        sum_of.add(entry)
    return sum_of


def raise_of(body: Body | None) -> int:
    """The tokens by which a fact raises the cap of its task's root."""
    match body:
        case OperatorRequest(act=Requeue(extra_tokens=tokens)) | WaitResolution(extra_budget_tokens=tokens):
            return tokens
        case _:
            return 0


def attempts_are_settled_once(task: TaskHistory) -> Iterator[str]:
    """I17: one attempt is open at a time, each has a number of its own, and whoever stops running leaves none open."""
    open_at: tuple[LedgerEntry, ModelAttempt] | None = None
    newest = (0, 0)
    for entry in own(task.entries):
        match entry.body:
            case ModelAttempt() as attempt:
                if open_at is not None:
                    yield f"{place(entry)} opens a model attempt while that of {place(open_at[0])} is open"
                number = (entry.step, attempt.attempt_number)
                if number <= newest:
                    yield f"{place(entry)} is step {number[0]} attempt {number[1]}, not after {newest[0]}/{newest[1]}"
                open_at, newest = (entry, attempt), max(newest, number)
            case AssistantMessage() | ModelFailure() | AttemptLost() as settled:
                if open_at is None:
                    yield f"{place(entry)} settles a model attempt, and none was open"
                elif (entry.step, settled.attempt_number) != (open_at[0].step, open_at[1].attempt_number):
                    yield f"{place(entry)} settles another model attempt than the open one of {place(open_at[0])}"
                open_at = None
            case Transition(to_state=to_state) if to_state is not TaskState.RUNNING and open_at is not None:
                yield f"{place(entry)} moves to {to_state}, and the model attempt of {place(open_at[0])} stays open"
            case _:
                pass


def caps_hold(task: TaskHistory) -> Iterator[str]:
    """I17, at every reserve. A bill beyond our upper bound may pass the cap; nothing is set aside then."""
    goal = next(of_kind(task.entries, Submitted), None)
    if goal is None:
        return
    cap = goal[1].spec.limits.max_tokens
    sum_of = Tally()
    for entry in own(task.entries):
        sum_of.add(entry)
        cap += raise_of(entry.body)
        if not isinstance(entry.body, ModelAttempt):
            continue
        total = sum_of.used.total + sum_of.reserved
        if total > cap:
            yield f"{place(entry)} sets {sum_of.reserved} tokens aside with {sum_of.used.total} used: {total} of {cap}"
        if sum_of.reserved < entry.body.input_tokens + entry.body.max_output_tokens:
            yield f"{place(entry)} sets less aside than its input and output may come to"


def the_row_has_used_what_its_entries_say(task: TaskHistory) -> Iterator[str]:
    """I17, of the snapshot. It was read before the bills: what was reported meanwhile is not in it."""
    told = tally(task).used
    possible = {told}
    for correction in [bill.correction for bill in task.bills if bill.estimate is not None][:MOST_CORRECTIONS]:
        possible |= {some + correction for some in possible}
    if task.row is not None and task.row.usage not in possible:
        yield f"the task's row has used {_usage(task.row.usage)}, its entries {_usage(told)}"


def _usage(usage: TokenUsage) -> str:
    cached = f" + {usage.cache_creation_input_tokens} written to and {usage.cache_read_input_tokens} read from a cache"
    return f"{usage.input_tokens} in, {usage.output_tokens} out" + (
        cached if usage.cache_creation_input_tokens or usage.cache_read_input_tokens else ""
    )


MOST_CORRECTIONS: Final = 10
"""So many are told apart, each counted in the row or not. A task has rarely one."""

CHECKS: Final = (
    Check("I17", "model attempts are opened and settled once each", ("entries",), attempts_are_settled_once),
    Check("I17", "nothing is set aside beyond the cap", ("entries",), caps_hold),
    Check("I17", "the row's use is its entries'", ("tasks", "entries"), the_row_has_used_what_its_entries_say),
)
