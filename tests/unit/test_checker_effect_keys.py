"""I44 as the checker sees it: effects of several tasks with one effect key."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checker.checks.effect_keys import CHECKS
from checker.history import CallRecord, LedgerEntry, TaskHistory
from tenure.domain.entries import OperatorRequest, ToolIntent, ToolOutcome
from tenure.domain.in_doubt import DidNotHappen, ResolveCall
from tenure.domain.tools import CallState, EffectClass, Outcome, OutcomeStatus

FIRST = CallRecord(
    task_id="one",
    call_id="1.0",
    tool="pay",
    effect_class=EffectClass.UNSAFE,
    state=CallState.FINISHED,
    epoch=1,
    outcome=Outcome(OutcomeStatus.SUCCEEDED, ""),
    idempotency_key="ab-0-0",
)
SECOND = replace(FIRST, task_id="two", call_id="2.0")
RESOLVED = LedgerEntry(
    task_id="two",
    sequence=5,
    body=OperatorRequest("I looked", ResolveCall("2.0", 1, DidNotHappen(runner_is_gone=True))),
)


def violations(second: CallRecord, *entries: LedgerEntry, first: CallRecord = FIRST) -> list[str]:
    (check,) = CHECKS
    total = check.begin()
    tasks: list[tuple[CallRecord, tuple[LedgerEntry, ...]]] = [(first, ()), (second, entries)]
    for call, of_task in tasks:
        total.add(TaskHistory(task_id=call.task_id, collected=frozenset(), entries=of_task, calls=(call,)))
    return [str(violation) for violation in total.violations()]


@pytest.mark.parametrize("key", ["ab-0-0", "ab-0-1"])
def test_two_calls_that_made_one_effect_are_reported(key: str) -> None:
    message = "I44 two: call 2.0 made the effect that call 1.0 of task one made"
    assert violations(replace(SECOND, idempotency_key=key)) == [message]


@pytest.mark.parametrize(
    "second",
    [
        replace(SECOND, idempotency_key="cd-0-0"),
        replace(SECOND, idempotency_key="ab-1-0"),
        replace(SECOND, idempotency_key=""),
        replace(SECOND, idempotency_key="0198aaaa-0000-7000-8000-000000000001/1.0/undo/abc"),
        replace(SECOND, outcome=Outcome(OutcomeStatus.FAILED, "")),
    ],
    ids=["other effect", "other period", "not run", "an undo", "not made"],
)
def test_other_calls_are_not_reported(second: CallRecord) -> None:
    assert violations(second) == []


def test_a_tool_that_honours_the_key_may_make_a_round_twice() -> None:
    keyed = replace(SECOND, effect_class=EffectClass.KEYED)
    assert violations(keyed, first=replace(FIRST, effect_class=EffectClass.KEYED)) == []
    assert violations(replace(keyed, idempotency_key="ab-0-1"), first=replace(FIRST, effect_class=EffectClass.KEYED))


@pytest.mark.parametrize(
    "outcome",
    [
        None,
        Outcome(OutcomeStatus.TIMED_OUT, ""),
        Outcome(OutcomeStatus.FAILED, ""),
        Outcome(OutcomeStatus.INVALID_ARGUMENTS, "", call_attempt=2),
    ],
    ids=["in doubt", "timed out", "failed", "ended without its tool after it had begun"],
)
def test_a_new_round_after_an_unknown_effect_is_reported(outcome: Outcome | None) -> None:
    state = CallState.IN_DOUBT if outcome is None else CallState.FINISHED
    unknown = replace(FIRST, effect_class=EffectClass.KEYED, state=state, outcome=outcome, started_at=1.0)
    second = replace(SECOND, effect_class=EffectClass.KEYED)
    assert violations(second, first=unknown) == []
    assert violations(replace(second, idempotency_key="ab-0-1"), first=unknown)


def test_a_new_round_after_a_proof_is_right() -> None:
    second = replace(SECOND, idempotency_key="ab-0-1")
    refused = replace(FIRST, outcome=Outcome(OutcomeStatus.FAILED, "", no_effect=True), started_at=1.0)
    not_begun = replace(FIRST, outcome=Outcome(OutcomeStatus.INVALID_ARGUMENTS, ""))
    for first in (refused, not_begun, replace(FIRST, state=CallState.NOT_RUN, outcome=None)):
        assert violations(second, first=first) == []


def test_a_person_may_let_an_effect_happen_again() -> None:
    assert violations(replace(SECOND, idempotency_key="ab-0-1"), RESOLVED) == []


def test_effect_that_was_undone_may_be_made_again() -> None:
    again = replace(SECOND, idempotency_key="ab-0-1")
    intent = ToolIntent("9.0", "", "refund", "{}", undoes="one/1.0")
    made = LedgerEntry(task_id="two", sequence=6, body=intent)
    for status, found in ((OutcomeStatus.SUCCEEDED, 0), (OutcomeStatus.FAILED, 1)):
        ended = LedgerEntry(task_id="two", sequence=7, body=ToolOutcome("9.0", Outcome(status, "")))
        assert len(violations(again, made, ended)) == found
