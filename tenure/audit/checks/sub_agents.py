"""Sub-agents: born of one call each, under names that it gives; their parent goes on when they have ended, once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tenure.audit.check import Check, SumCheck
from tenure.audit.history import LedgerEntry
from tenure.audit.reading import TIME_GRAIN_SECONDS, ended_for_good, ends, intents, leaves, of_kind, own, place
from tenure.audit.task_history import TaskHistory
from tenure.audit.violation import Violation
from tenure.domain.arguments import Unfit
from tenure.domain.entries import Submitted, ToolOutcome, Transition, WaitResolution
from tenure.domain.spawned import SpawnedBy, SubAgentsSpawned
from tenure.domain.states import TERMINAL, WAITING, TaskState
from tenure.domain.sub_agents import SPAWN_SUB_AGENTS, read_spawn, sub_agent_id
from tenure.domain.waits import WaitAnswerKind, WaitKind


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
    found = intents(task).get(call_id)
    if found is None or found[1].tool != SPAWN_SUB_AGENTS:
        return ()
    given = leaves(task).get(call_id)
    edited = given[1].edited_arguments_json if given is not None else ""
    try:
        return read_spawn(edited or found[1].arguments_json).goals
    except Unfit:
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


class _Families:
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


class _Born(_Families):
    """I38, of both ledgers."""

    def violations(self) -> Iterator[Violation]:
        for task_id, child, by, parent in self.pairs():
            if task_id not in parent.spawned:
                yield Violation("I38", task_id, f"its parent {by.task_id} has no entry that spawned it")
            elif parent.spawned[task_id] != child.goal:
                yield Violation("I38", task_id, f"its goal is not that of call {by.call_id} of {by.task_id}")


class _Woken(_Families):
    """I39, while things go on: nobody is woken for the last of them before it has ended."""

    def violations(self) -> Iterator[Violation]:
        for task_id, child, by, parent in self.pairs():
            woken_at = parent.woken.get(by.call_id)
            if woken_at is not None and not any(at <= woken_at + TIME_GRAIN_SECONDS for at in child.ended_at):
                told = f"its parent {by.task_id} went on as if it had ended (call {by.call_id})"
                yield Violation("I39", task_id, told)


class _Left(_Families):
    """I39, at rest: whom nobody waits for is stopped. What an operator requeued lives by the operator's will."""

    def violations(self) -> Iterator[Violation]:
        for task_id, child, by, parent in self.pairs():
            lives = child.state is not None and child.state not in TERMINAL and child.attempt == 1
            if lives and (parent.is_over or by.call_id not in parent.open_calls):
                yield Violation("I39", task_id, f"it lives on, and call {by.call_id} of {by.task_id} is over")
        for task_id, parent in self._tasks.items():
            if parent.waits_for and all(state in TERMINAL for state in self._states(task_id, parent.waits_for)):
                told = f"it still waits for call {parent.waits_for}, whose sub-agents have all ended"
                yield Violation("I39", task_id, told)

    def _states(self, parent_id: str, call_id: str) -> Iterator[TaskState | None]:
        """Of what a call spawned; None where it was not collected."""
        for task_id in self._tasks[parent_id].calls.get(call_id, ()):
            yield self._tasks[task_id].state if task_id in self._tasks else None


CHECKS: Final = (
    Check("I38", "sub-agents are those of their call", ("entries",), sub_agents_are_those_of_their_call),
    SumCheck("I38", "sub-agents and parents know each other", ("entries",), _Born),
    SumCheck("I39", "a parent goes on after its last sub-agent", ("entries",), _Woken),
    SumCheck("I39", "nobody is left behind", ("entries", "tasks", "settled"), _Left),
)
