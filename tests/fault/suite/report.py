"""The report of a run, and the files that are kept of a seed that failed."""

from __future__ import annotations

import json
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from tenure.runtime.failpoints import FAILPOINTS
from tests.fault.suite.evidence import Marks
from tests.fault.suite.schedule import Schedule
from tests.fault.suite.trial import Verdict

MAX_TOLD: Final = 12
MAX_SHOWN: Final = 400


@dataclass(slots=True)
class Summary:
    """The sums over all seeds of a run."""

    seeds: int = 0
    failed: list[int] = field(default_factory=list)
    injected: Counter[str] = field(default_factory=Counter)
    hit: Counter[str] = field(default_factory=Counter)
    not_checked: set[str] = field(default_factory=set)
    figures: Counter[str] = field(default_factory=Counter)
    violations: int = 0
    rested_after_seconds: list[float] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        self.seeds += 1
        self.injected += verdict.injected
        self.hit += verdict.hit
        self.not_checked |= verdict.not_checked
        self.figures += verdict.figures
        self.violations += len(verdict.violations)
        self.rested_after_seconds.append(verdict.rested_after_seconds)
        if verdict.violations:
            self.failed.append(verdict.schedule.seed)

    def add_broken(self, seed: int) -> None:
        """A seed without a verdict."""
        self.seeds += 1
        self.failed.append(seed)

    def lines(self) -> Iterator[str]:
        rest = sorted(self.rested_after_seconds) or [0.0]
        yield f"{self.seeds} seeds, {sum(self.injected.values())} faults, {self.violations} violations"
        yield f"at rest after the faults: median {rest[len(rest) // 2]:.1f} s, longest {rest[-1]:.1f} s"
        yield from (f"  {count:6d}  {name}" for name, count in sorted(self.figures.items()))
        yield "faults by kind"
        yield from (f"  {count:6d}  {name}" for name, count in sorted(self.injected.items()))
        yield f"died at {len(self.hit)} of {len(FAILPOINTS)} failpoints"
        yield from (f"  {count:6d}  {name}" for name, count in sorted(self.hit.items()))
        if self.not_checked:
            yield "not checked"
            yield from (f"  {one}" for one in sorted(self.not_checked))
        if self.failed:
            yield f"FAILED: {', '.join(f'make faults SEED={seed}' for seed in self.failed)}"


def lines_of(verdict: Verdict) -> Iterator[str]:
    """A line for a seed that passed; for one that failed, also its faults and what was broken."""
    schedule, figures = verdict.schedule, verdict.figures
    yield (
        f"seed {schedule.seed} {schedule.mode}: {figures['tasks']} tasks, {sum(verdict.injected.values())} faults, "
        f"{figures['takeovers']} takeovers, {figures['effects']} effects, {figures['refusals']} refusals; "
        f"at rest after {verdict.rested_after_seconds:.1f} s, {verdict.seconds:.0f} s in all, "
        f"slowness {verdict.slowness:.1f}; {len(verdict.violations)} violations"
    )
    if verdict.violations:
        yield from (f"    {fault}" for fault in schedule.faults)
        yield from (f"  ! {str(violation)[:MAX_SHOWN]}" for violation in verdict.violations[:MAX_TOLD])
        yield f"  replay: make faults SEED={schedule.seed}"


def keep(verdict: Verdict, folder: Path, logs: Path, marks: Marks) -> None:
    """The schedule, the violations, the whole history, and what every process logged meanwhile."""
    _keep(verdict.schedule, "\n".join([*lines_of(verdict), "", *map(str, verdict.violations), ""]), folder, logs, marks)
    (folder / "history.json").write_text(json.dumps(asdict(verdict.history), default=_plain, indent=1))


def keep_broken(schedule: Schedule, error: Exception, folder: Path, logs: Path, marks: Marks) -> None:
    """The same of a seed that did not come to its verdict."""
    _keep(schedule, "".join(traceback.format_exception(error)), folder, logs, marks)


def _keep(schedule: Schedule, report: str, folder: Path, logs: Path, marks: Marks) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.txt").write_text(report)
    (folder / "schedule.txt").write_text("\n".join([*map(str, schedule.faults), *map(str, schedule.tasks), ""]))
    for path in logs.glob("*.log"):
        (folder / path.name).write_text("".join(marks.since(path)))


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
