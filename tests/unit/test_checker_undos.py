"""The checker and undos: an effect that was undone twice, and an undo that makes other calls than those of its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from checker.check import Check
from checker.checks.undos import CHECKS
from checker.history import LedgerEntry, TaskHistory
from tenure.domain.entries import Body, Submitted, ToolIntent, ToolOutcome
from tenure.domain.task import AgentSpec, TaskSpec, UndoCall, UndoWork
from tenure.domain.tools import Outcome, OutcomeStatus

SOURCE = "018f0000-0000-7000-8000-000000000001"
OK, FAILED = Outcome(OutcomeStatus.SUCCEEDED, ""), Outcome(OutcomeStatus.FAILED, "")
WORK = UndoWork(SOURCE, (UndoCall("2.0", "pay", "refund", "{}"), UndoCall("1.0", "order", "cancel", "{}")))


def call(step: int, tool: str, undone: str) -> ToolIntent:
    return ToolIntent(f"{step}.0", "", tool, "{}", f"{SOURCE}/{undone}")


def undo(number: int, *bodies: Body) -> TaskHistory:
    spec = TaskSpec("undo", AgentSpec(loop="tenure.undo"), undo=WORK)
    task_id = f"018f0000-0000-7000-8000-00000000001{number}"
    entries = tuple(
        LedgerEntry(task_id=task_id, sequence=sequence, body=body)
        for sequence, body in enumerate((Submitted(spec, "r"), *bodies), 1)
    )
    return TaskHistory(task_id=task_id, collected=frozenset({"entries"}), entries=entries)


def found(*tasks: TaskHistory) -> list[str]:
    messages: list[str] = []
    for check in CHECKS:
        if isinstance(check, Check):
            messages += [message for task in tasks for message in check.find(task)]
        else:
            sums = check.begin()
            for task in tasks:
                sums.add(task)
            messages += [violation.message for violation in sums.violations()]
    return messages


WHOLE = (call(1, "refund", "2.0"), ToolOutcome("1.0", OK), call(2, "cancel", "1.0"), ToolOutcome("2.0", OK))


def test_undo_of_its_plan_is_lawful() -> None:
    assert found(undo(1, *WHOLE)) == []


def test_failed_undo_may_be_followed_by_another() -> None:
    assert found(undo(1, call(1, "refund", "2.0"), ToolOutcome("1.0", FAILED)), undo(2, *WHOLE)) == []


def test_effect_that_was_undone_twice_is_reported() -> None:
    first, second = undo(1, *WHOLE), undo(2, *WHOLE[:2])
    assert found(first, second) == [f"its call {SOURCE}/2.0 is undone by {first.task_id}, {second.task_id}"]


def test_undo_of_a_call_that_did_nothing_is_reported() -> None:
    """Another call made its effect: the undo took back what another task had done."""
    for empty in (Outcome(OutcomeStatus.SUCCEEDED, "", no_effect=True), replace(OK, detail="ALREADY_HAPPENED")):
        intents = ToolIntent("1.0", "", "order", "{}"), ToolIntent("2.0", "", "pay", "{}")
        bodies: tuple[Body, ...] = (
            Submitted(TaskSpec("buy"), "r"),
            *intents,
            ToolOutcome("1.0", OK),
            ToolOutcome("2.0", empty),
        )
        entries = tuple(LedgerEntry(task_id=SOURCE, sequence=at, body=body) for at, body in enumerate(bodies, 1))
        source = TaskHistory(task_id=SOURCE, collected=frozenset({"entries"}), entries=entries)
        assert found(source, undo(1, *WHOLE)) == [f"its call {SOURCE}/2.0 did nothing, and was undone"]


def test_compensation_that_another_call_made_undoes_nothing() -> None:
    not_made = Outcome(OutcomeStatus.SUCCEEDED, "", no_effect=True)
    assert found(undo(1, *WHOLE), undo(2, WHOLE[0], ToolOutcome("1.0", not_made))) == []


@pytest.mark.parametrize(
    ("bodies", "message"),
    [
        ((call(1, "transfer", "2.0"),), "calls transfer"),
        ((call(1, "refund", "1.0"),), "the plan has 2.0 there"),
        ((*WHOLE, call(3, "refund", "2.0")), "which the plan of the undo does not have there"),
        ((call(1, "refund", "2.0"), call(2, "cancel", "1.0")), "before the call before it has an outcome"),
    ],
)
def test_other_calls_than_those_of_the_plan_are_reported(bodies: Sequence[Body], message: str) -> None:
    [reported] = found(undo(1, *bodies))
    assert message in reported
