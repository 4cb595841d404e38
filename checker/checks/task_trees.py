"""Sub-agents: born of one call each, under names that it gives; their parent goes on when they have ended, once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from checker.check import Check, SumCheck, Violation
from checker.history import LedgerEntry, TaskHistory
from checker.reading import (
    FORK_HEAD,
    TIME_GRAIN_SECONDS,
    ended_for_good,
    ends,
    intents,
    leaves,
    of_kind,
    own,
    place,
)
from tenure.domain.entries import (
    AssistantMessage,
    Compaction,
    ControlStep,
    Forked,
    ModelAttempt,
    ResultRejected,
    SpawnedBy,
    SubAgentsSpawned,
    Submitted,
    ToolIntent,
    ToolOutcome,
    ToolsDefined,
    Transition,
    UserMessage,
    WaitResolution,
)
from tenure.domain.states import TERMINAL, WAITING, TaskState
from tenure.domain.sub_agents import SPAWN_SUB_AGENTS, read_spawn, sub_agent_id
from tenure.domain.tool_arguments import InvalidArguments
from tenure.domain.waits import WaitAnswerKind, WaitKind

# Forks: a history that was taken over from another task, and nothing of it counts as this task's own doing.

_COPIED: Final = (
    ToolsDefined,
    ModelAttempt,
    AssistantMessage,
    ToolIntent,
    ToolOutcome,
    UserMessage,
    WaitResolution,
    ControlStep,
    ResultRejected,
    Compaction,
)
_HASH_BYTES: Final = 8


def forks_begin_with_their_copy(task: TaskHistory) -> Iterator[str]:
    """I36, of the fork's ledger alone."""
    for entry, forked in of_kind(task.entries, Forked):
        if entry.sequence != FORK_HEAD:
            yield f"{place(entry)} says that the task is a fork; only entry {FORK_HEAD} does"
            continue
        end = FORK_HEAD + forked.copied_entries
        for copied in task.entries[FORK_HEAD:end]:
            if copied.epoch or copied.claim_id:
                yield f"{place(copied)} was copied, and has a claim of this task"
            if copied.body is not None and not isinstance(copied.body, _COPIED):
                yield f"{place(copied)} was copied, and is no part of a conversation"
        begin = task.entries[end].body if len(task.entries) > end else None
        if not isinstance(begin, Transition) or (begin.from_state, begin.to_state) != (None, TaskState.QUEUED):
            message = f"{place(entry)} says that {forked.copied_entries} entries were copied"
            yield f"{message}; the task does not begin after them"


class _Copies:
    """I36, of both ledgers. Kept: a short hash for each entry."""

    def __init__(self) -> None:
        self._hashes: dict[str, bytes] = {}
        self._forks: dict[str, Forked] = {}

    def add(self, task: TaskHistory) -> None:
        self._hashes[task.task_id] = b"".join(entry.body_hash[:_HASH_BYTES] for entry in task.entries)
        for _, forked in of_kind(task.entries[FORK_HEAD - 1 : FORK_HEAD], Forked):
            self._forks[task.task_id] = forked

    def violations(self) -> Iterator[Violation]:
        for task_id, forked in self._forks.items():
            theirs = self._hashes.get(forked.task_id)
            if theirs is None:  # it was not collected
                continue
            remaining = iter(_parts(theirs)[: forked.sequence])
            copied = _parts(self._hashes[task_id])[FORK_HEAD : FORK_HEAD + forked.copied_entries]
            if not all(body in remaining for body in copied):
                message = f"its copied entries are not those of task {forked.task_id} up to {forked.sequence}"
                yield Violation("I36", task_id, message)


def _parts(hashes: bytes) -> list[bytes]:
    return [hashes[start : start + _HASH_BYTES] for start in range(0, len(hashes), _HASH_BYTES)]


_FORKS_CHECKS: Final = (
    Check("I36", "forks begin with their copy", ("entries",), forks_begin_with_their_copy),
    SumCheck("I36", "what forks copied is the other task's", ("entries",), _Copies),
)


def sub_agents_are_those_of_their_call(task: TaskHistory) -> Iterator[str]:
    """I38, of the parent's ledger: one birth for each call, of an open call, under the names that follow from it."""
    outcomes = {outcome.call_id: entry for entry, outcome in of_kind(own(task.entries), ToolOutcome)}
    born: dict[str, LedgerEntry] = {}
    for entry, spawned in of_kind(own(task.entries), SubAgentsSpawned):
        call_id = spawned.call_id
        if call_id in born:
            yield f"{place(entry)} spawns for call {call_id} again, after {place(born[call_id])}"
        born.setdefault(call_id, entry)
        if call_id in outcomes and outcomes[call_id].sequence < entry.sequence:
            yield f"{place(entry)} spawns for call {call_id}, which {place(outcomes[call_id])} had closed"
        goals = _goals(task, call_id)
        names = tuple(sub_agent_id(task.task_id, call_id, index) for index in range(len(goals)))
        if not goals:
            yield f"{place(entry)} spawns, and there is no call {call_id} that asks for sub-agents"
        elif spawned.task_ids != names:
            yield f"{place(entry)} spawns others than call {call_id} names"


def _goals(task: TaskHistory, call_id: str) -> tuple[str, ...]:
    """Of a call that asks for sub-agents, as it was made or as a person changed it."""
    intent = intents(task).get(call_id)
    if intent is None or intent[1].tool != SPAWN_SUB_AGENTS:
        return ()
    given = leaves(task).get(call_id)
    edited = given[1].edited_arguments_json if given is not None else ""
    try:
        return read_spawn(edited or intent[1].arguments_json).goals
    except InvalidArguments:
        return ()


@dataclass(slots=True)
class _Task:
    """What is kept of one. `spawned`: goals by the sub-agents' ids; `calls`: these ids by their calls; `waits_for`: the
    call whose sub-agents it waits for; `woken`: calls that their last sub-agent answered, and when.
    """

    by: SpawnedBy | None = None
    goal: str = ""
    is_over: bool = False
    state: TaskState | None = None
    attempt: int = 1
    ended_at: list[float] = field(default_factory=list)
    spawned: dict[str, str] = field(default_factory=dict)
    calls: dict[str, tuple[str, ...]] = field(default_factory=dict)
    waits_for: str = ""
    open_calls: set[str] = field(default_factory=set)
    woken: dict[str, float] = field(default_factory=dict)


class _Trees:
    """What parents say, and what their sub-agents do."""

    def __init__(self) -> None:
        self._tasks: dict[str, _Task] = {}

    def add(self, task: TaskHistory) -> None:
        goal = next(of_kind(task.entries, Submitted), None)
        if goal is None:
            return
        kept = _Task(goal[1].spawned_by, goal[1].spec.goal, ended_for_good(task.entries) is not None)
        if task.row is not None:
            kept.state, kept.attempt = task.row.state, task.row.attempt
        kept.ended_at = [entry.recorded_at for entry in ends(task.entries)]
        for _, spawned in of_kind(own(task.entries), SubAgentsSpawned):
            kept.spawned |= dict(zip(spawned.task_ids, _goals(task, spawned.call_id), strict=False))
            kept.calls[spawned.call_id] = spawned.task_ids
        kept.open_calls = set(intents(task)) - {one.call_id for _, one in of_kind(task.entries, ToolOutcome)}
        for _, move in of_kind(task.entries, Transition):
            wait = move.wait if move.to_state in WAITING else None
            kept.waits_for = wait.call_id if wait is not None and wait.kind is WaitKind.SUB_AGENTS else ""
        for entry, answer in of_kind(own(task.entries), WaitResolution):
            if answer.answer_kind is WaitAnswerKind.SUB_AGENTS:
                kept.woken[answer.call_id] = entry.recorded_at
        if kept.by is not None or kept.spawned:
            self._tasks[task.task_id] = kept

    def pairs(self) -> Iterator[tuple[str, _Task, SpawnedBy, _Task]]:
        """Each sub-agent with its parent, where both were collected."""
        for task_id, child in self._tasks.items():
            if child.by is not None and (parent := self._tasks.get(child.by.task_id)) is not None:
                yield task_id, child, child.by, parent


class _Born(_Trees):
    """I38, of both ledgers."""

    def violations(self) -> Iterator[Violation]:
        for task_id, child, by, parent in self.pairs():
            if task_id not in parent.spawned:
                yield Violation("I38", task_id, f"its parent {by.task_id} has no entry that spawned it")
            elif parent.spawned[task_id] != child.goal:
                yield Violation("I38", task_id, f"its goal is not that of call {by.call_id} of {by.task_id}")


class _Woken(_Trees):
    """I39, while things go on: nobody is woken for the last of them before it has ended."""

    def violations(self) -> Iterator[Violation]:
        for task_id, child, by, parent in self.pairs():
            woken_at = parent.woken.get(by.call_id)
            if woken_at is not None and not any(at <= woken_at + TIME_GRAIN_SECONDS for at in child.ended_at):
                message = f"its parent {by.task_id} went on as if it had ended (call {by.call_id})"
                yield Violation("I39", task_id, message)


class _Left(_Trees):
    """I39, at rest: whom nobody waits for is stopped. What an operator requeued lives by the operator's will."""

    def violations(self) -> Iterator[Violation]:
        for task_id, child, by, parent in self.pairs():
            lives = child.state is not None and child.state not in TERMINAL and child.attempt == 1
            if lives and (parent.is_over or by.call_id not in parent.open_calls):
                yield Violation("I39", task_id, f"it lives on, and call {by.call_id} of {by.task_id} is over")
        for task_id, parent in self._tasks.items():
            if parent.waits_for and all(state in TERMINAL for state in self._states(task_id, parent.waits_for)):
                message = f"it still waits for call {parent.waits_for}, whose sub-agents have all ended"
                yield Violation("I39", task_id, message)

    def _states(self, parent_id: str, call_id: str) -> Iterator[TaskState | None]:
        """Of what a call spawned; None where it was not collected."""
        for task_id in self._tasks[parent_id].calls.get(call_id, ()):
            yield self._tasks[task_id].state if task_id in self._tasks else None


_SUB_AGENTS_CHECKS: Final = (
    Check("I38", "sub-agents are those of their call", ("entries",), sub_agents_are_those_of_their_call),
    SumCheck("I38", "sub-agents and parents know each other", ("entries",), _Born),
    SumCheck("I39", "a parent goes on after its last sub-agent", ("entries",), _Woken),
    SumCheck("I39", "nobody is left behind", ("entries", "tasks", "settled"), _Left),
)


CHECKS: Final = (
    *_FORKS_CHECKS,
    *_SUB_AGENTS_CHECKS,
)
