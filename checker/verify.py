"""Runs the checks on a history.

    violations = verify(history)            # [] for a correct history
    report = examine(history)               # the violations, and which checks were run, not run, and why

A check whose sources were not collected is not run, and the report says so: no violation is not a proof. For a long
history use `Examination`, which takes it task by task and keeps only a few values of each task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from checker.check import Check, Sum, SumCheck, Violation
from checker.checks import CHECKS
from checker.history import FLAGS, History, TaskHistory, collected_in, split

__all__ = ["CheckRun", "Examination", "Report", "Violation", "examine", "verify"]

MAX_OF_A_CHECK: Final = 20
"""The limit of violations of one check in one task: a ledger with a gap would cause thousands."""
_UNSET: Final = {
    "settled": "the run did not wait until all tasks had settled",
    "healthy": "faults were injected, so times of delivery are meaningless",
}


@dataclass(frozen=True, slots=True)
class CheckRun:
    """A check, and the reason why it was not run ("" if it was). `missing`: the missing sources and flags."""

    invariant: str
    says: str
    why_not: str = ""
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The violations, the checks, and the numbers of checked records.

    `unread`: the number of entries of kinds that this version does not know.
    """

    violations: tuple[Violation, ...]
    runs: tuple[CheckRun, ...]
    tasks: int = 0
    entries: int = 0
    calls: int = 0
    unread: int = 0

    @property
    def not_run(self) -> tuple[CheckRun, ...]:
        """The checks that were not run."""
        return tuple(run for run in self.runs if run.why_not)


@dataclass(slots=True)
class Examination:
    """Checks a history task by task: `add` each task in any order, then call `report`."""

    collected: frozenset[str]
    checks: tuple[Check | SumCheck, ...] = CHECKS
    _alone: list[Check] = field(init=False)
    _sums: list[Sum] = field(init=False)
    _violations: list[Violation] = field(default_factory=list)
    _counts: list[int] = field(default_factory=lambda: [0, 0, 0, 0])

    def __post_init__(self) -> None:
        runnable = [check for check in self.checks if self.collected.issuperset(check.needs)]
        self._alone = [check for check in runnable if isinstance(check, Check)]
        self._sums = [check.begin() for check in runnable if isinstance(check, SumCheck)]

    @property
    def tasks(self) -> int:
        """The number of tasks so far."""
        return self._counts[0]

    def add(self, task: TaskHistory) -> list[Violation]:
        """Checks one task and returns its violations, without those across tasks."""
        assert task.collected == self.collected, "all tasks of an examination have the same sources"
        violations = [
            Violation(check.invariant, task.task_id, message)
            for check in self._alone
            for message in _limited(check.find(task))
        ]
        for check_sum in self._sums:
            check_sum.add(task)
        unread = sum(1 for entry in task.entries if entry.body is None)
        for index, count in enumerate((task.row is not None, len(task.entries), len(task.calls), unread)):
            self._counts[index] += count
        self._violations += violations
        return violations

    def report(self) -> Report:
        """Returns all violations, including those across tasks, and the list of checks."""
        across = [violation for check_sum in self._sums for violation in check_sum.violations()]
        unique = dict.fromkeys((*self._violations, *across))
        violations = sorted(unique, key=lambda violation: (violation.task_id, int(violation.invariant[1:])))
        runs = tuple(self._run_of(check) for check in self.checks)
        return Report(tuple(violations), runs, *self._counts)

    def _run_of(self, check: Check | SumCheck) -> CheckRun:
        missing = tuple(name for name in check.needs if name not in self.collected)
        reasons = [_UNSET[name] for name in missing if name in FLAGS]
        sources = [name for name in missing if name not in FLAGS]
        if sources:
            reasons.append(f"not collected: {', '.join(sources)}")
        return CheckRun(check.invariant, check.says, "; ".join(reasons), missing)


def examine(history: History) -> Report:
    """Runs every check whose sources were collected. Pure; O(n log n) in the number of records."""
    examination = Examination(collected_in(history))
    for task in split(history):
        examination.add(task)
    return examination.report()


def verify(history: History) -> list[Violation]:
    """Returns all violations, sorted by task and number. Pure; O(n log n) in the number of records."""
    return list(examine(history).violations)


def _limited(messages: Iterable[str]) -> Iterator[str]:
    remaining = iter(messages)
    yield from islice(remaining, MAX_OF_A_CHECK)
    if rest := sum(1 for _ in remaining):
        yield f"… and {rest} more like these"
