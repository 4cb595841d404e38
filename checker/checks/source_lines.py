"""Checks of sources: no task runs beside more tasks of its source than it allows (I47)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from checker.check import SumCheck, Violation
from checker.history import TaskHistory
from checker.reading import own
from tenure.domain.entries import Submitted, Transition
from tenure.domain.states import TERMINAL, TaskState
from tenure.domain.task import Source


@dataclass(frozen=True, slots=True, order=True)
class _Run:
    """An attempt of a task, from its first claim to its end. `allowed`: how many may be live, with this one."""

    begun_at: float
    ended_at: float
    task_id: str
    allowed: int
    exclusive: bool


class _AtMost:
    """I47. An exclusive task counts only others like it; one that waits in line counts both."""

    def __init__(self) -> None:
        self._runs: defaultdict[tuple[str, str, str], list[_Run]] = defaultdict(list)

    def add(self, task: TaskHistory) -> None:
        source = _source(task)
        if task.row is not None and (source.exclusive or source.at_most):
            self._runs[task.row.tenant, source.kind.value, source.source_id] += _runs(task, source)

    def violations(self) -> Iterator[Violation]:
        for (_, kind, source_id), runs in self._runs.items():
            live: list[_Run] = []
            for run in sorted(runs):
                live = [other for other in live if other.ended_at > run.begun_at]
                beside = [other.task_id for other in live if other.exclusive or not run.exclusive]
                if len(beside) >= run.allowed:
                    begun = f"it begins while {', '.join(beside)} of {kind}/{source_id} run"
                    yield Violation("I47", run.task_id, f"{begun}, and allows {run.allowed} at once")
                live.append(run)


def _source(task: TaskHistory) -> Source:
    first = task.entries[0].body if task.entries else None
    return first.spec.source if isinstance(first, Submitted) else Source()


def _runs(task: TaskHistory, source: Source) -> Iterator[_Run]:
    begun_at: float | None = None
    for entry in own(task.entries):
        if not isinstance(entry.body, Transition):
            continue
        if entry.body.to_state is TaskState.RUNNING and begun_at is None:
            begun_at = entry.recorded_at
        if entry.body.to_state in TERMINAL and begun_at is not None:
            yield _Run(begun_at, entry.recorded_at, task.task_id, source.at_most or 1, source.exclusive)
            begun_at = None
    if begun_at is not None:
        yield _Run(begun_at, float("inf"), task.task_id, source.at_most or 1, source.exclusive)


CHECKS: Final = (SumCheck("I47", "a source has no more live tasks than it allows", ("tasks", "entries"), _AtMost),)
