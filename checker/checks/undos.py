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
from tenure.domain.tools import Outcome


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


def undone_calls(task: TaskHistory) -> Iterator[str]:
    """Yields the calls whose compensations the task made, as "<task_id>/<call_id>"."""
    undoes = {intent.call_id: intent.undoes for _, intent in of_kind(own(task.entries), ToolIntent)}
    for _, settled in of_kind(own(task.entries), ToolOutcome):
        if (undone := undoes.get(settled.call_id)) and not (settled.outcome.is_error or _did_nothing(settled.outcome)):
            yield undone


def _did_nothing(outcome: Outcome) -> bool:
    """Whether a call was not made, because another one had made its effect."""
    return outcome.no_effect or outcome.detail == "ALREADY_HAPPENED"


class _Undone:
    """The undos that succeeded, by the undone call, and the successful calls that did nothing."""

    def __init__(self) -> None:
        self._by: defaultdict[str, list[str]] = defaultdict(list)
        self._did_nothing: set[str] = set()

    def add(self, task: TaskHistory) -> None:
        for undone in undone_calls(task):
            self._by[undone].append(task.task_id)
        for _, settled in of_kind(own(task.entries), ToolOutcome):
            if not settled.outcome.is_error and _did_nothing(settled.outcome):
                self._did_nothing.add(f"{task.task_id}/{settled.call_id}")

    def violations(self) -> Iterator[Violation]:
        for undone in self._by.keys() & self._did_nothing:
            yield Violation("I45", undone.partition("/")[0], f"its call {undone} did nothing, and was undone")
        for undone, undos in self._by.items():
            if len(undos) > 1:
                yield Violation("I45", undone.partition("/")[0], f"its call {undone} is undone by {', '.join(undos)}")


CHECKS: Final = (
    Check("I45", "calls of undos are those of their plan", ("entries",), calls_of_undos_are_those_of_their_plan),
    SumCheck("I45", "a call is undone once", ("entries",), _Undone),
)
