"""Calls in doubt: whose word is taken, and what it does."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.domain.errors import WrongState
from tenure.domain.in_doubt import (
    ABANDONED,
    RUNNER_NOT_GONE,
    Abandon,
    CallInDoubt,
    DidNotHappen,
    Happened,
    Resolution,
    ResolveCall,
    RunAgain,
    SettledByResolution,
    apply_resolution,
    decide_resolution,
    is_unsettled,
    outcome_in_doubt,
)
from tenure.domain.states import TERMINAL, Reason, TaskState
from tenure.domain.tools import OutcomeStatus

FIRST, SECOND = CallInDoubt("1.0", 1), CallInDoubt("1.1", 3)
WORD = ResolveCall("1.0", 1, Happened())


def decided(
    fields: Any = WORD,
    *waited_for: Any,
    state: Any = TaskState.WAITING_USER,
    reason: Any = Reason.TOOL_IN_DOUBT,
    open_calls: Any = ("1.0",),
) -> Any:
    return decide_resolution(state, reason, open_calls, waited_for, fields)


def resolution_of(decision: Any, call_attempt: int = 1) -> Any:
    return Resolution(call_attempt, decision, "I looked", "olga")


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_resolution_after_the_end_is_refused(state: Any) -> None:
    refusal = decided(WORD, FIRST, state=state)
    assert isinstance(refusal, WrongState)
    assert (refusal.reason, refusal.metadata["state"]) == ("WRONG_STATE", state)


def test_each_call_needs_its_own_resolution() -> None:
    assert decided(WORD, FIRST, SECOND) == (SECOND,)
    assert decided(ResolveCall("1.1", 3, Abandon()), SECOND) == ()


@pytest.mark.parametrize("waited_for", [(), (CallInDoubt("1.0", 0),)])
def test_unnamed_attempt_matches_any_attempt(waited_for: Any) -> None:
    assert decided(ResolveCall("1.0", 5, Abandon()), *waited_for) == ()


@pytest.mark.parametrize(
    ("expected", "changes", "reason"),
    [
        (WORD, {"state": TaskState.QUEUED}, "NOT_IN_DOUBT"),
        (WORD, {"state": TaskState.RUNNING}, "NOT_IN_DOUBT"),
        (WORD, {"reason": Reason.APPROVAL_REQUESTED}, "NOT_IN_DOUBT"),
        (ResolveCall("2.0", 1, Abandon()), {}, "NOT_IN_DOUBT"),
        (ResolveCall("1.0", 2, Abandon()), {}, "OTHER_ATTEMPT"),
    ],
)
def test_resolution_of_another_call_is_refused(expected: Any, changes: Any, reason: str) -> None:
    refusal = decided(expected, FIRST, **changes)
    assert isinstance(refusal, WrongState)
    assert refusal.reason == reason


def test_happened_ends_the_call() -> None:
    taken = apply_resolution(resolution_of(Happened("paid")), 1, runner_gone=False)
    assert isinstance(taken, SettledByResolution)
    assert (taken.outcome.status, taken.outcome.content, taken.outcome.call_attempt) == (
        OutcomeStatus.SUCCEEDED,
        "paid",
        2,
    )
    untold = apply_resolution(resolution_of(Happened()), 1, runner_gone=False)
    assert isinstance(untold, SettledByResolution)
    assert untold.outcome.content == "olga found that this call happened: I looked"


def test_abandoned_call_is_final() -> None:
    taken = apply_resolution(resolution_of(Abandon()), 1, runner_gone=False)
    assert isinstance(taken, SettledByResolution)
    assert (taken.outcome.status, taken.outcome.detail) == (OutcomeStatus.IN_DOUBT, ABANDONED)
    assert taken.outcome.content.endswith("olga gave it up: I looked")
    assert not is_unsettled(taken.outcome)
    assert is_unsettled(outcome_in_doubt(1))


@pytest.mark.parametrize(
    ("decision", "runner_gone", "runs_again"),
    [
        (DidNotHappen(), False, False),
        (DidNotHappen(), True, False),  # the proof came after the look
        (DidNotHappen(runner_proven_gone=True), False, False),
        (DidNotHappen(runner_proven_gone=True), True, True),
        (DidNotHappen(runner_is_gone=True), False, True),
    ],
)
def test_a_call_is_repeated_only_if_its_runner_was_gone(decision: Any, runner_gone: bool, runs_again: bool) -> None:
    taken = apply_resolution(resolution_of(decision), 1, runner_gone=runner_gone)
    assert taken == (RunAgain(2) if runs_again else None)


@pytest.mark.parametrize("decision", [Happened(), DidNotHappen(runner_is_gone=True), Abandon()])
def test_new_attempt_in_doubt_needs_a_new_resolution(decision: Any) -> None:
    assert apply_resolution(resolution_of(decision, call_attempt=1), 2, runner_gone=True) is None


def test_note_of_the_tool_is_shown() -> None:
    response = outcome_in_doubt(2, "The connection broke.")
    assert response.content.startswith("It is not known whether this call happened: The connection broke. ")
    assert (response.call_attempt, response.detail) == (2, "")
    assert outcome_in_doubt(2, resolution=resolution_of(DidNotHappen(), 2)).detail == RUNNER_NOT_GONE
    assert outcome_in_doubt(2, resolution=resolution_of(DidNotHappen(), 1)).detail == ""
