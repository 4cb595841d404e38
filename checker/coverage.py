"""Counts the rare paths that a run of the fault suite has met (I35).

A suite that never met a rare path has proved nothing about it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from checker.history import (
    Guard,
    History,
    Method,
    OperationResult,
)
from tenure.domain.entries import AttemptLost, ModelFailure, ToolOutcome, Transition
from tenure.domain.states import TaskState
from tenure.domain.tools import CallState, OutcomeStatus

SOMETIMES: Final = (
    "ledger refused a stale claim",
    "tools refused a stale claim",
    "task taken over",
    "claim lost",
    "model call lost",
    "model call failed",
    "call run again",
    "call in doubt",
    "call not run",
    "task cancelled",
    "answer unknown to its client",
    "repeated submit answered",
    "stream resumed",
)
"""The rare paths that `count` finds in histories."""

FAILPOINT: Final = "failpoint "
"""The prefix of a failpoint's name in `Coverage.met`."""


@dataclass(slots=True)
class Coverage:
    """The number of times that each rare path was met. Fill it from histories, metrics, logs and files.

    `+=` adds the numbers of another run.
    """

    met: Counter[str] = field(default_factory=Counter)

    def __iadd__(self, other: Coverage) -> Self:
        self.met.update(other.met)
        return self

    def note(self, name: str, times: int = 1) -> None:
        """Adds to the count of a rare path. 0 times adds nothing."""
        if times > 0:
            self.met[name] += times

    def note_failpoint(self, name: str, times: int = 1) -> None:
        """Adds hits of a failpoint. The evidence is its metric or, if it killed its process, a log line or a file."""
        self.note(FAILPOINT + name, times)

    def note_metrics(self, values: Mapping[str, float], names: Mapping[str, str]) -> None:
        """Adds the counters of a process. `names`: metric name → name of the rare path; other metrics are ignored."""
        for metric, name in names.items():
            self.note(name, int(values.get(metric, 0)))

    def count(self, history: History) -> None:
        """Adds the rare paths of one history."""
        for name, times in _counts(history).items():
            self.note(name, times)

    def missing(self, expected: Iterable[str]) -> list[str]:
        """Returns the expected paths that were never met, in the given order."""
        return [name for name in expected if not self.met[name]]


def failpoints(names: Iterable[str]) -> list[str]:
    """Returns the names of failpoints in the form that `missing` expects."""
    return [FAILPOINT + name for name in names]


def _counts(history: History) -> Counter[str]:
    counts: Counter[str] = Counter()
    for refusal in history.refusals or ():
        guard = "ledger" if refusal.guard is Guard.LEDGER else "tools"
        counts[f"{guard} refused a stale claim"] += 1
    for entry in history.entries or ():
        counts.update(_of_body(entry.body))
    for call in history.calls or ():
        counts["call run again"] += call.call_attempt > 1
        counts["call in doubt"] += call.state is CallState.IN_DOUBT
        counts["call not run"] += call.state is CallState.NOT_RUN
    counts["task taken over"] = sum(max(0, row.claim_count - 1) for row in history.tasks or ())
    answered: Counter[tuple[str, str]] = Counter()
    for operation in history.operations or ():
        counts["answer unknown to its client"] += operation.answer is OperationResult.UNKNOWN
        if operation.method is Method.SUBMIT and operation.answer is OperationResult.OK and operation.request_id:
            answered[operation.tenant, operation.request_id] += 1
    counts["repeated submit answered"] = sum(times - 1 for times in answered.values())
    counts["stream resumed"] = sum(stream.after_sequence > 0 for stream in history.subscriptions or ())
    return counts


def _of_body(body: object) -> list[str]:
    match body:
        case AttemptLost():
            return ["model call lost"]
        case ModelFailure():
            return ["model call failed"]
        case ToolOutcome(outcome=outcome) if outcome.status is OutcomeStatus.IN_DOUBT:
            return ["call in doubt"]
        case Transition(from_state=TaskState.RUNNING, to_state=TaskState.QUEUED):
            return ["claim lost"]
        case Transition(to_state=TaskState.CANCELLED):
            return ["task cancelled"]
        case _:
            return []
