"""Judges the tasks of a run by the ledger, the effects and the checker: nothing lost, and nothing done twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.figures import Section, at_most
from bench.scale_ledger import LedgerView, repeated_lines
from checker.collect import collect_tasks, read_effects, read_model_calls
from checker.verify import examine
from devstack import Stack
from tenure.client import Client
from tenure.domain.states import TaskState


@dataclass(frozen=True, slots=True)
class Verdict:
    """`violations`: of the checker's invariants. `checks`: how many of them ran."""

    tasks: int
    lost: int
    repeated_effects: int
    repeated_answers: int
    violations: int
    checks: int

    def add_to(self, section: Section) -> None:
        """Adds the figures, all of which must be 0."""
        section.add("tasks", self.tasks, "")
        section.add("tasks lost or failed", self.lost, "", bound=at_most(0))
        section.add("effects repeated", self.repeated_effects, "", bound=at_most(0))
        section.add("steps answered twice", self.repeated_answers, "", bound=at_most(0))
        note = f"{self.checks} checks of the checker"
        section.add("invariants violated", self.violations, "", bound=at_most(0), note=note)


async def judge_run(
    stack: Stack, client: Client, view: LedgerView, task_ids: Sequence[str], states: Counter[TaskState | None]
) -> Verdict:
    """Reads all that is known of the tasks, without the history of etcd, and checks it."""
    known, layout = set(task_ids), stack.layout
    history = replace(
        await collect_tasks(client, task_ids),
        effects=tuple(one for one in read_effects(layout.records) if one.task_id in known),
        model_calls=tuple(one for one in read_model_calls(layout.model_log) if one.task_id in known),
        settled=True,
    )
    report = examine(history)
    return Verdict(
        tasks=len(task_ids),
        lost=states.total() - states[TaskState.SUCCEEDED],
        repeated_effects=repeated_lines(layout.records),
        repeated_answers=await view.answered_twice(),
        violations=len(report.violations),
        checks=len(report.runs) - len(report.not_run),
    )
