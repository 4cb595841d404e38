"""Checks of undos: each effect is undone at most once, by the calls that the ledger fixed (I45)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from checker.check import Check, SumCheck, Violation
from checker.history import TaskHistory
from checker.reading import of_kind, own, place
from tenure.domain.entries import Submitted, ToolIntent, ToolOutcome
from tenure.domain.task import UndoWork


def calls_of_undos_are_those_of_their_plan(task: TaskHistory) -> Iterator[str]:
    """I45, for the ledger of an undo alone: its calls are those of its plan, in their order, one at a time."""
    work, made, settled = _work(task), 0, 0
    if work is None:
        return
    for entry in own(task.entries):
        settled += isinstance(entry.body, ToolOutcome)
        if not isinstance(entry.body, ToolIntent):
            continue
        planned = work.calls[made] if made < len(work.calls) else None
        made += 1
        if settled < made - 1:
            yield f"{place(entry)} is made before the call before it has an outcome"
        if planned is None or entry.body.tool != planned.tool:
            yield f"{place(entry)} calls {entry.body.tool}, which the plan of the undo does not have there"
        elif entry.body.undoes != f"{work.task_id}/{planned.call_id}":
            yield f"{place(entry)} undoes {entry.body.undoes}, and the plan has {planned.call_id} there"


def _work(task: TaskHistory) -> UndoWork | None:
    submitted = next(of_kind(task.entries, Submitted), None)
    return None if submitted is None else submitted[1].spec.undo


class _Undone:
    """The undos that succeeded, by the undone call."""

    def __init__(self) -> None:
        self._by: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, task: TaskHistory) -> None:
        undoes = {intent.call_id: intent.undoes for _, intent in of_kind(own(task.entries), ToolIntent)}
        for _, settled in of_kind(own(task.entries), ToolOutcome):
            if (undone := undoes.get(settled.call_id)) and not settled.outcome.is_error:
                self._by[undone].append(task.task_id)

    def violations(self) -> Iterator[Violation]:
        for undone, undos in self._by.items():
            if len(undos) > 1:
                yield Violation("I45", undone.partition("/")[0], f"its call {undone} is undone by {', '.join(undos)}")


CHECKS: Final = (
    Check("I45", "calls of undos are those of their plan", ("entries",), calls_of_undos_are_those_of_their_plan),
    SumCheck("I45", "a call is undone once", ("entries",), _Undone),
)
