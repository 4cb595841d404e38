"""What the model reads: every call answered once before it is asked again, and no work done twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from tenure.audit.check import Check
from tenure.audit.history import LedgerEntry
from tenure.audit.reading import claim, drives_functions, drives_itself, of_kind, own, place
from tenure.audit.task_history import TaskHistory
from tenure.domain.entries import (
    AssistantMessage,
    AttemptLost,
    ControlStep,
    ModelAttempt,
    ToolIntent,
    ToolOutcome,
    Transition,
)
from tenure.domain.states import TERMINAL, TaskState


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
        told = [f"call {use} of the answer has no intent" for use in self.unwritten.elements()]
        return "; ".join([*told, *(f"call {call_id} has no outcome" for call_id in self.open)])


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


CHECKS: Final = (
    Check("I16", "every call is answered once before the model goes on", ("entries",), conversations_are_whole),
    Check("I16", "no task ends with an open call", ("entries",), ended_tasks_have_no_open_call),
    Check("I32", "a step is answered once", ("entries",), steps_are_answered_once),
    Check("I32", "a function's step is made once", ("entries",), steps_of_functions_are_made_once),
    Check("I32", "a claim loses one model call at most", ("entries",), a_claim_loses_one_call_at_most),
)
