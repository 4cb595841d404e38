"""How checks read a ledger, and how they speak of what they found there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from tenure.audit.history import LedgerEntry
from tenure.audit.task_history import TaskHistory
from tenure.domain.entries import (
    Body,
    Forked,
    GrantBudget,
    OperatorRequest,
    Requeue,
    Submitted,
    ToolIntent,
    ToolOutcome,
    Transition,
    WaitResolution,
)
from tenure.domain.epochs import Fence, describe_epoch
from tenure.domain.states import TERMINAL, WAITING, TaskState
from tenure.domain.sub_agents import SPAWN_SUB_AGENTS
from tenure.domain.task import DEFAULT_LOOP
from tenure.domain.waits import leaves_call_open

B = TypeVar("B")

FORK_HEAD: Final = 2
"""The entry that says that a task is a fork, and how many after it were copied."""

TIME_GRAIN_SECONDS: Final = 0.001
"""Times of one database are compared to this: they went through floats."""


def of_kind(entries: Iterable[LedgerEntry], kind: type[B]) -> Iterator[tuple[LedgerEntry, B]]:
    """The entries of one kind, with their bodies."""
    for entry in entries:
        if isinstance(entry.body, kind):
            yield entry, entry.body


def own(entries: Iterable[LedgerEntry]) -> tuple[LedgerEntry, ...]:
    """A task's entries, in order, without those that a fork copied: they were made, run and billed in another task."""
    all_of_them = tuple(entries)
    second = all_of_them[FORK_HEAD - 1].body if len(all_of_them) >= FORK_HEAD else None
    if not isinstance(second, Forked):
        return all_of_them
    return all_of_them[:FORK_HEAD] + all_of_them[FORK_HEAD + second.copied_entries :]


def opens(entries: Iterable[LedgerEntry]) -> Iterator[LedgerEntry]:
    """The entries by which claims took the task over."""
    return (entry for entry, move in of_kind(entries, Transition) if move.to_state is TaskState.RUNNING)


def ends(entries: Iterable[LedgerEntry]) -> Iterator[LedgerEntry]:
    """The entries by which the task ended; there should be one of each attempt."""
    return (entry for entry, move in of_kind(entries, Transition) if move.to_state in TERMINAL)


def requeues(entries: Iterable[LedgerEntry]) -> Iterator[LedgerEntry]:
    """The entries by which operators asked for the next attempt; a grant does if it had ended for want of it."""
    state: TaskState | None = None
    for entry in entries:
        match entry.body:
            case Transition(to_state=to_state):
                state = to_state
            case OperatorRequest(act=Requeue()):
                yield entry
            case OperatorRequest(act=GrantBudget()) if state is TaskState.COST_EXCEEDED:
                yield entry
            case _:
                pass


def ended_for_good(entries: Iterable[LedgerEntry]) -> LedgerEntry | None:
    """The end, if no later attempt was begun."""
    newest = next(reversed(list(of_kind(entries, Transition))), None)
    return newest[0] if newest is not None and newest[1].to_state in TERMINAL else None


def intents(task: TaskHistory) -> dict[str, tuple[LedgerEntry, ToolIntent]]:
    """The first intent of each call."""
    found: dict[str, tuple[LedgerEntry, ToolIntent]] = {}
    for entry, intent in of_kind(own(task.entries), ToolIntent):
        found.setdefault(intent.call_id, (entry, intent))
    return found


def settled_by_waits(task: TaskHistory) -> Iterator[tuple[LedgerEntry, str]]:
    """The outcomes that came without a claim, of calls for which the task waited, or that were refused to spawn: the
    ledger's own.
    """
    waiting, spawns = "", set[str]()
    for entry in own(task.entries):
        match entry.body:
            case Transition(to_state=to_state, wait=wait):
                waiting = wait.call_id if wait is not None and to_state in WAITING else ""
            case ToolIntent(tool=tool, call_id=call_id) if tool == SPAWN_SUB_AGENTS:
                spawns.add(call_id)
            case ToolOutcome(call_id=call_id) if not entry.epoch and (call_id == waiting or call_id in spawns):
                yield entry, call_id
            case _:
                pass


def leaves(task: TaskHistory) -> dict[str, tuple[LedgerEntry, WaitResolution]]:
    """The answers by which a person gave leave to a call."""
    return {
        answer.call_id: (entry, answer)
        for entry, answer in of_kind(own(task.entries), WaitResolution)
        if leaves_call_open(answer.wait_kind, answer.answer_kind, answer.answer)
    }


def drives_itself(task: TaskHistory) -> bool:
    """Whether our own loop drives the task: another loop may order its facts as it likes."""
    goal = next(of_kind(task.entries, Submitted), None)
    return goal is None or goal[1].spec.agent.loop == DEFAULT_LOOP


def drives_functions(task: TaskHistory) -> bool:
    """Whether our own loop runs a function of control work."""
    goal = next(of_kind(task.entries, Submitted), None)
    return goal is not None and goal[1].spec.control is not None


def place(entry: LedgerEntry) -> str:
    """Where to look."""
    return f"entry {entry.sequence} ({name(entry.body)})"


def name(body: Body | None) -> str:
    """A body's kind, as `tenure entries` calls it."""
    words = type(body).__name__ if body is not None else "OfUnknownKind"
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in words).lstrip("_")


def claim(fence: Fence) -> str:
    """Which claim."""
    return f"epoch {describe_epoch(fence.epoch)} (claim {fence.claim_id or '-'})"
