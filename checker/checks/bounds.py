"""Checks of rules with bounds: the recorded calls never exceed a bound (I46).

The sums are made again from the ledger's intents and the call records, without the counters of the tool service.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, Final

from checker.check import SumCheck, Violation
from checker.history import BoundRecord, CallRecord, TaskHistory
from checker.reading import intents


@dataclass(frozen=True, slots=True)
class _Ran:
    """A call that began, with its arguments."""

    task_id: str
    tenant: str
    call: CallRecord
    arguments: dict[str, Any]

    def at(self, path: str) -> Any:
        """Returns the value at a path of the rule; only arguments, the tool and the task are known here."""
        root, *names = path.split(".")
        value: Any = {"args": self.arguments, "tool": self.call.tool, "task": self.task_id}[root]
        for name in names:
            value = value[name]
        return value


class _WithinBounds:
    """I46. A call that never began is given back, so only calls that began count."""

    def __init__(self) -> None:
        self._bounds: list[BoundRecord] = []
        self._ran: list[_Ran] = []

    def add(self, task: TaskHistory) -> None:
        self._bounds += task.bounds
        known = intents(task)
        for call in task.calls:
            if task.row is not None and call.started_at is not None and call.call_id in known:
                arguments = json.loads(known[call.call_id][1].arguments_json, parse_float=Decimal)
                self._ran.append(_Ran(task.task_id, task.row.tenant, call, arguments))

    def violations(self) -> Iterator[Violation]:
        ran = sorted(self._ran, key=lambda one: one.call.accepted_at)
        for bound in self._bounds:
            yield from _beyond(bound, [one for one in ran if _counts(bound, one)])


def _counts(bound: BoundRecord, one: _Ran) -> bool:
    """Whether the call was accepted while the rule was in force, and the rule fits it."""
    in_force = bound.since < one.call.accepted_at and (bound.until is None or one.call.accepted_at < bound.until)
    return in_force and one.tenant == bound.tenant and fnmatchcase(one.call.tool, bound.tool)


def _beyond(bound: BoundRecord, ran: list[_Ran]) -> Iterator[Violation]:
    """Yields each call beyond the bound, in the order in which the calls were accepted."""
    calls: defaultdict[str, int] = defaultdict(int)
    sums: defaultdict[str, Decimal] = defaultdict(Decimal)
    for one in ran:
        subject = json.dumps(one.at(bound.per), sort_keys=True, default=str) if bound.per else ""
        calls[subject] += 1
        sums[subject] += Decimal(one.at(bound.sum_of)) if bound.sum_of else 0
        counted = f"call {one.call.call_id} is number {calls[subject]}, with {sums[subject]} in total"
        if (bound.count and calls[subject] > bound.count) or (bound.limit and sums[subject] > Decimal(bound.limit)):
            yield Violation("I46", one.task_id, f"{counted}, under the rule {bound}")


CHECKS: Final = (
    SumCheck("I46", "calls stay within the bounds of rules", ("calls", "entries", "bounds"), _WithinBounds),
)
