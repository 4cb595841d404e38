"""verify(history): what must always be true, and was not.

    violations = verify(history)            # [] is what one hopes for
    report = examine(history)               # the same, and which checks were run, not run, and why

A check whose sources were not collected is not run, and the report says so: silence is no proof. A long history is
examined task by task: `Examination` keeps a few words of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from checker.check import Check, Sum, SumCheck, Violation
from checker.checks import CHECKS
from checker.history import (
    FLAGS,
    History,
    TaskHistory,
    collected_in,
    split,
)

__all__ = ["CheckRun", "Examination", "Report", "Violation", "examine", "verify"]

MOST_OF_A_CHECK: Final = 20
"""Violations told of one check in one task: a ledger with a hole in it would be told a thousand times."""
_UNSET: Final = {
    "settled": "nobody waited until every task stood still",
    "healthy": "faults were injected, times say nothing",
}


@dataclass(frozen=True, slots=True)
class CheckRun:
    """A check, and why it was not run: "" when it was. `missing`: the sources and flags that it would have needed."""

    invariant: str
    says: str
    why_not: str = ""
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, and what was looked at. `unread`: entries of kinds that this version does not know."""

    violations: tuple[Violation, ...]
    runs: tuple[CheckRun, ...]
    tasks: int = 0
    entries: int = 0
    calls: int = 0
    unread: int = 0

    @property
    def not_run(self) -> tuple[CheckRun, ...]:
        """Checks that could not be run."""
        return tuple(run for run in self.runs if run.why_not)


@dataclass(slots=True)
class Examination:
    """Examines task by task: `add` each one, in any order, then `report`. `checks`: those to be made."""

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
        """How many so far."""
        return self._counts[0]

    def add(self, task: TaskHistory) -> list[Violation]:
        """What is wrong with one task, seen alone."""
        assert task.collected == self.collected, "one examination has one set of sources"
        violations = [
            Violation(check.invariant, task.task_id, message)
            for check in self._alone
            for message in _some(check.find(task))
        ]
        for each in self._sums:
            each.add(task)
        unread = sum(1 for entry in task.entries if entry.body is None)
        for index, count in enumerate((task.row is not None, len(task.entries), len(task.calls), unread)):
            self._counts[index] += count
        self._violations += violations
        return violations

    def report(self) -> Report:
        """All that was found, with what does not add up across tasks."""
        across = [violation for each in self._sums for violation in each.violations()]
        once = dict.fromkeys((*self._violations, *across))
        violations = sorted(once, key=lambda violation: (violation.task_id, int(violation.invariant[1:])))
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
    """Runs every check that the collected sources allow. Pure; O(n log n) in the records."""
    examination = Examination(collected_in(history))
    for task in split(history):
        examination.add(task)
    return examination.report()


def verify(history: History) -> list[Violation]:
    """All violations, by task and then by number. Pure; O(n log n) in the records."""
    return list(examine(history).violations)


def _some(messages: Iterable[str]) -> Iterator[str]:
    given = iter(messages)
    yield from islice(given, MOST_OF_A_CHECK)
    if rest := sum(1 for _ in given):
        yield f"… and {rest} more like these"
