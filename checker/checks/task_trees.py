"""Checks of task trees: forks and their copies (I36), sub-agents and their parents (I38, I39)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from checker.check import Check, SumCheck, Violation
from checker.history import LedgerEntry, TaskHistory
from checker.reading import FORK_HEAD, TIME_GRAIN_SECONDS, approvals, ended_for_good, ends, intents, of_kind, own, place
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

# Forks: the ledger begins with a copy of another task's history, which does not count as this task's own work.

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
    """I36, for the fork's ledger alone."""
    for entry, forked in of_kind(task.entries, Forked):
        if entry.sequence != FORK_HEAD:
            yield f"{place(entry)} says that the task is a fork, but only entry {FORK_HEAD} may"
            continue
        end = FORK_HEAD + forked.copied_entries
        for copied in task.entries[FORK_HEAD:end]:
            if copied.epoch or copied.claim_id:
                yield f"{place(copied)} was copied, but has a claim"
            if copied.body is not None and not isinstance(copied.body, _COPIED):
                yield f"{place(copied)} was copied, but is not part of a conversation"
        begin = task.entries[end].body if len(task.entries) > end else None
        if not isinstance(begin, Transition) or (begin.from_state, begin.to_state) != (None, TaskState.QUEUED):
            message = f"{place(entry)} says that {forked.copied_entries} entries were copied"
            yield f"{message}, but the task does not begin after them"


class _Copies:
    """I36, for both ledgers. Keeps a short hash of each entry."""

    def __init__(self) -> None:
        self._hashes: dict[str, bytes] = {}
        self._forks: dict[str, Forked] = {}

    def add(self, task: TaskHistory) -> None:
        self._hashes[task.task_id] = b"".join(entry.body_hash[:_HASH_BYTES] for entry in task.entries)
        for _, forked in of_kind(task.entries[FORK_HEAD - 1 : FORK_HEAD], Forked):
            self._forks[task.task_id] = forked

    def violations(self) -> Iterator[Violation]:
        for task_id, forked in self._forks.items():
            source = self._hashes.get(forked.task_id)
            if source is None:  # it was not collected
                continue
            remaining = iter(_split_hashes(source)[: forked.sequence])
            copied = _split_hashes(self._hashes[task_id])[FORK_HEAD : FORK_HEAD + forked.copied_entries]
            if not all(body in remaining for body in copied):
                message = f"its copied entries are not those of task {forked.task_id} up to sequence {forked.sequence}"
                yield Violation("I36", task_id, message)


def _split_hashes(hashes: bytes) -> list[bytes]:
    return [hashes[start : start + _HASH_BYTES] for start in range(0, len(hashes), _HASH_BYTES)]


_FORKS_CHECKS: Final = (
    Check("I36", "forks begin with their copy", ("entries",), forks_begin_with_their_copy),
    SumCheck("I36", "copied entries are those of the source task", ("entries",), _Copies),
)


def sub_agents_are_those_of_their_call(task: TaskHistory) -> Iterator[str]:
    """I38, for the parent's ledger: an open call spawns once, and its sub-agents have the ids that follow from it."""
    outcomes = {outcome.call_id: entry for entry, outcome in of_kind(own(task.entries), ToolOutcome)}
    spawned_by: dict[str, LedgerEntry] = {}
    for entry, spawned in of_kind(own(task.entries), SubAgentsSpawned):
        call_id = spawned.call_id
        if call_id in spawned_by:
            yield f"{place(entry)} spawns for call {call_id} again, after {place(spawned_by[call_id])}"
        spawned_by.setdefault(call_id, entry)
        if call_id in outcomes and outcomes[call_id].sequence < entry.sequence:
            yield f"{place(entry)} spawns for call {call_id}, which has the outcome {place(outcomes[call_id])}"
        goals = _goals(task, call_id)
        task_ids = tuple(sub_agent_id(task.task_id, call_id, index) for index in range(len(goals)))
        if not goals:
            yield f"{place(entry)} spawns sub-agents, but no call {call_id} asks for them"
        elif spawned.task_ids != task_ids:
            yield f"{place(entry)} spawns other sub-agents than call {call_id} asks for"


def _goals(task: TaskHistory, call_id: str) -> tuple[str, ...]:
    """Returns the goals of a call that asks for sub-agents, with a person's edits of its arguments. () otherwise."""
    intent = intents(task).get(call_id)
    if intent is None or intent[1].tool != SPAWN_SUB_AGENTS:
        return ()
    approval = approvals(task).get(call_id)
    edited = approval[1].edited_arguments_json if approval is not None else ""
    try:
        return read_spawn(edited or intent[1].arguments_json).goals
    except InvalidArguments:
        return ()


@dataclass(slots=True)
class _Task:
    """The kept values of one task.

    `spawned_by`: its parent's call. `spawned`: the goals of its sub-agents by task id. `calls`: the task ids of its
    sub-agents by call id. `waits_for`: the call whose sub-agents it waits for. `woken`: the calls that their last
    sub-agent answered, with the time.
    """

    spawned_by: SpawnedBy | None = None
    goal: str = ""
    has_ended: bool = False
    state: TaskState | None = None
    attempt: int = 1
    ended_at: list[float] = field(default_factory=list)
    spawned: dict[str, str] = field(default_factory=dict)
    calls: dict[str, tuple[str, ...]] = field(default_factory=dict)
    waits_for: str = ""
    open_calls: set[str] = field(default_factory=set)
    woken: dict[str, float] = field(default_factory=dict)


class _Trees:
    """The tasks that have a parent or sub-agents."""

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
        kept.open_calls = set(intents(task)) - {outcome.call_id for _, outcome in of_kind(task.entries, ToolOutcome)}
        for _, transition in of_kind(task.entries, Transition):
            wait = transition.wait if transition.to_state in WAITING else None
            kept.waits_for = wait.call_id if wait is not None and wait.kind is WaitKind.SUB_AGENTS else ""
        for entry, answer in of_kind(own(task.entries), WaitResolution):
            if answer.answer_kind is WaitAnswerKind.SUB_AGENTS:
                kept.woken[answer.call_id] = entry.recorded_at
        if kept.spawned_by is not None or kept.spawned:
            self._tasks[task.task_id] = kept

    def pairs(self) -> Iterator[tuple[str, _Task, SpawnedBy, _Task]]:
        """Yields each sub-agent with its parent, if both were collected."""
        for task_id, child in self._tasks.items():
            if child.spawned_by is not None and (parent := self._tasks.get(child.spawned_by.task_id)) is not None:
                yield task_id, child, child.spawned_by, parent


class _ParentLinks(_Trees):
    """I38, for both ledgers."""

    def violations(self) -> Iterator[Violation]:
        for task_id, child, by, parent in self.pairs():
            if task_id not in parent.spawned:
                yield Violation("I38", task_id, f"its parent {by.task_id} has no entry that spawned it")
            elif parent.spawned[task_id] != child.goal:
                yield Violation("I38", task_id, f"its goal is not that of call {by.call_id} of {by.task_id}")


class _Wakeups(_Trees):
    """I39, at any time: no parent continues before its last sub-agent has ended."""

    def violations(self) -> Iterator[Violation]:
        for task_id, child, by, parent in self.pairs():
            woken_at = parent.woken.get(by.call_id)
            if woken_at is not None and not any(at <= woken_at + TIME_GRAIN_SECONDS for at in child.ended_at):
                message = f"its parent {by.task_id} continued before this sub-agent had ended (call {by.call_id})"
                yield Violation("I39", task_id, message)


class _Orphans(_Trees):
    """I39, when all tasks have settled: no sub-agent runs whose call is over, except one that an operator requeued."""

    def violations(self) -> Iterator[Violation]:
        for task_id, child, by, parent in self.pairs():
            lives = child.state is not None and child.state not in TERMINAL and child.attempt == 1
            if lives and (parent.has_ended or by.call_id not in parent.open_calls):
                yield Violation(
                    "I39", task_id, f"it has not ended, but call {by.call_id} of its parent {by.task_id} is over"
                )
        for task_id, parent in self._tasks.items():
            if parent.waits_for and all(state in TERMINAL for state in self._states(task_id, parent.waits_for)):
                message = f"it still waits for call {parent.waits_for}, whose sub-agents have all ended"
                yield Violation("I39", task_id, message)

    def _states(self, parent_id: str, call_id: str) -> Iterator[TaskState | None]:
        """Yields the states of a call's sub-agents, None for a task that was not collected."""
        for task_id in self._tasks[parent_id].calls.get(call_id, ()):
            yield self._tasks[task_id].state if task_id in self._tasks else None


_SUB_AGENTS_CHECKS: Final = (
    Check("I38", "sub-agents are those of their call", ("entries",), sub_agents_are_those_of_their_call),
    SumCheck("I38", "sub-agents and parents name each other", ("entries",), _ParentLinks),
    SumCheck("I39", "a parent continues after its last sub-agent ended", ("entries",), _Wakeups),
    SumCheck("I39", "no sub-agent outlives its call", ("entries", "tasks", "settled"), _Orphans),
)


CHECKS: Final = (
    *_FORKS_CHECKS,
    *_SUB_AGENTS_CHECKS,
)
