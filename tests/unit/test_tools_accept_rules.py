"""Who is let in at the tools, and what becomes of a call."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from services.tools.calls.accept_rules import (
    Answer,
    Conclude,
    Doubt,
    FenceRow,
    Here,
    Join,
    Run,
    admit,
    admit_fence,
    decide,
)
from services.tools.calls.records import Asked, CallKey, CallRow, pack_outcome
from tenure.domain.epochs import Fence
from tenure.domain.errors import AlreadyExists, StaleEpoch
from tenure.domain.in_doubt import DidNotHappen, Happened, Resolution
from tenure.domain.token import Claims
from tenure.domain.tools import CallState, EffectClass, Outcome, OutcomeStatus

TASK = uuid.uuid4()
ME, OTHER = uuid.uuid4(), uuid.uuid4()
MINE = Fence(10, "mine")


def asked(fence: Fence = MINE, arguments: bytes = b"{}", clear: Outcome | None = None) -> Asked:
    claims = Claims(f"tasks/{TASK}", "default", fence.epoch, fence.claim_id, "worker")
    return Asked(CallKey(TASK, "1.0"), claims, "tool", EffectClass.KEYED, arguments, clear)


def row(state: CallState, effect_class: EffectClass = EffectClass.KEYED, **changes) -> CallRow:
    known = CallRow(
        CallKey(TASK, "1.0"),
        effect_class,
        asked().arguments_hash,
        state,
        3,
        MINE,
        OTHER,
        runner_alive=True,
        outcome=None,
    )
    return replace(known, **changes)


IDLE = Here(ME, None)
RUNNING = Here(ME, 3)


@pytest.mark.parametrize(
    ("current", "closed", "presented", "after"),
    [
        (Fence(0, ""), False, MINE, FenceRow(MINE, closed=False)),
        (Fence(9, "old"), False, MINE, FenceRow(MINE, closed=False)),
        (Fence(9, "old"), True, MINE, FenceRow(MINE, closed=False)),
        (MINE, False, MINE, FenceRow(MINE, closed=False)),
        (MINE, True, MINE, None),
        (Fence(10, "theirs"), False, MINE, None),
        (Fence(11, "new"), False, MINE, None),
        (Fence(11, "new"), True, MINE, None),
    ],
)
def test_a_call_needs_an_epoch_that_is_higher_or_the_open_claim_itself(current, closed, presented, after):
    admitted = admit(FenceRow(current, closed), presented)
    if after is None:
        assert isinstance(admitted, StaleEpoch)
        assert (admitted.presented, admitted.current) == (presented.epoch, current.epoch)
    else:
        assert admitted == after


def test_closing_is_repeatable_and_cannot_be_undone_by_the_same_claim():
    closed = admit_fence(FenceRow(MINE, closed=False), MINE, close=True)
    assert closed == FenceRow(MINE, closed=True)
    assert admit_fence(closed, MINE, close=True) == closed
    assert isinstance(admit_fence(closed, MINE, close=False), StaleEpoch)
    assert isinstance(admit_fence(closed, Fence(9, "old"), close=True), StaleEpoch)
    assert isinstance(admit_fence(closed, Fence(10, "theirs"), close=True), StaleEpoch)


def test_a_new_call_is_run_unless_its_outcome_is_clear():
    clear = Outcome(OutcomeStatus.NOT_ALLOWED, "no")
    assert decide(None, asked(), IDLE) == Run(1)
    assert decide(None, asked(clear=clear), IDLE) == Answer(clear)


@pytest.mark.parametrize("state", list(CallState))
def test_other_arguments_are_refused_in_every_state(state):
    verdict = decide(row(state), asked(arguments=b'{"other": 1}'), RUNNING)
    assert isinstance(verdict, AlreadyExists)
    assert verdict.reason == "CALL_ID_REUSED"


def test_a_call_whose_tool_is_gone_is_concluded_where_it_would_be_run_again():
    clear = Outcome(OutcomeStatus.INVALID_ARGUMENTS, "no such tool")
    dead = row(CallState.STARTED, EffectClass.PURE, runner_alive=False)
    assert decide(dead, asked(clear=clear), IDLE) == Conclude(replace(clear, call_attempt=4))
    first = row(CallState.ACCEPTED, call_attempt=1)
    assert decide(first, asked(clear=clear), IDLE) == Conclude(replace(clear, call_attempt=2))
    assert decide(row(CallState.STARTED), asked(clear=clear), IDLE) == Join(3)
    assert decide(replace(dead, effect_class=EffectClass.UNSAFE), asked(clear=clear), IDLE) == Doubt(3)


@pytest.mark.parametrize("effect_class", [EffectClass.IDEMPOTENT, EffectClass.KEYED])
@pytest.mark.parametrize("state", [CallState.STARTED, CallState.ACCEPTED])
def test_a_concluded_call_says_that_an_attempt_before_may_have_had_its_effect(state, effect_class):
    clear = Outcome(OutcomeStatus.FAILED, "Not reached: nothing was done.", detail="UNREACHABLE")
    verdict = decide(row(state, effect_class, runner_alive=False), asked(clear=clear), IDLE)
    assert isinstance(verdict, Conclude)
    assert verdict.outcome.content == (
        "Not reached: nothing was done. An earlier attempt of this very call had begun: its effect may be there."
    )


def test_a_call_whose_tool_became_unsafe_is_not_run_again():
    dead = row(CallState.STARTED, runner_alive=False)
    assert decide(dead, replace(asked(), effect_class=EffectClass.UNSAFE), IDLE) == Doubt(3)
    assert decide(replace(dead, effect_class=EffectClass.UNSAFE), asked(), IDLE) == Doubt(3)
    assert decide(dead, asked(), IDLE) == Run(4)
    gone = Outcome(OutcomeStatus.INVALID_ARGUMENTS, "no such tool")
    told = decide(dead, replace(asked(clear=gone), effect_class=EffectClass.UNSAFE), IDLE)
    assert isinstance(told, Conclude)
    assert told.outcome.status is OutcomeStatus.INVALID_ARGUMENTS


def test_an_accepted_call_is_joined_by_its_own_claim_and_taken_over_by_everybody_else():
    accepted = row(CallState.ACCEPTED)
    assert decide(accepted, asked(), RUNNING) == Join(3)
    assert decide(accepted, asked(Fence(11, "next")), RUNNING) == Run(4)
    assert decide(accepted, asked(), IDLE) == Run(4)
    assert decide(accepted, asked(), Here(ME, 2)) == Run(4)


@pytest.mark.parametrize("effect_class", list(EffectClass))
def test_a_started_call_is_joined_while_its_runner_lives(effect_class):
    for fence in (MINE, Fence(11, "next")):
        assert decide(row(CallState.STARTED, effect_class), asked(fence), IDLE) == Join(3)
        here = row(CallState.STARTED, effect_class, runner_id=ME, runner_alive=False)
        assert decide(here, asked(fence), RUNNING) == Join(3)


@pytest.mark.parametrize("effect_class", list(EffectClass))
@pytest.mark.parametrize(
    "lost", [{"runner_alive": False}, {"runner_id": ME}, {"runner_id": None, "runner_alive": False}]
)
def test_only_a_call_that_may_not_happen_twice_is_in_doubt_when_its_runner_is_lost(effect_class, lost):
    verdict = decide(row(CallState.STARTED, effect_class, **lost), asked(), IDLE)
    assert verdict == (Doubt(3) if effect_class is EffectClass.UNSAFE else Run(4))


def test_what_is_settled_is_answered_from_the_record():
    outcome = Outcome(
        OutcomeStatus.FAILED, "no \0 luck", truncated=True, detail="X", duration_seconds=1.5, call_attempt=3
    )
    assert decide(row(CallState.FINISHED, outcome=pack_outcome(outcome)), asked(), IDLE) == Answer(outcome)
    for state, status in ((CallState.NOT_RUN, OutcomeStatus.NOT_RUN), (CallState.IN_DOUBT, OutcomeStatus.IN_DOUBT)):
        verdict = decide(row(state, EffectClass.PURE, runner_alive=False), asked(), IDLE)
        assert isinstance(verdict, Answer)
        assert (verdict.outcome.status, verdict.outcome.call_attempt) == (status, 3)


def test_a_word_on_the_attempt_in_doubt_settles_the_call_or_has_it_run_again_under_the_next_one():
    doubted = row(CallState.IN_DOUBT, EffectClass.UNSAFE)
    settled = decide(doubted, replace(asked(), resolution=said(Happened("paid"))), IDLE)
    assert isinstance(settled, Conclude)
    assert (settled.outcome.content, settled.outcome.call_attempt) == ("paid", 4)
    again = replace(asked(), resolution=said(DidNotHappen(runner_is_gone=True)))
    assert decide(doubted, again, IDLE) == Run(4)
    vanished = Outcome(OutcomeStatus.INVALID_ARGUMENTS, "no such tool")
    assert decide(doubted, replace(again, clear=vanished), IDLE) == Conclude(replace(vanished, call_attempt=4))


def test_a_call_that_runs_in_this_process_is_not_gone_whatever_is_said():
    again = replace(asked(), resolution=said(DidNotHappen(runner_is_gone=True)))
    assert decide(row(CallState.IN_DOUBT, EffectClass.UNSAFE), again, RUNNING) == Join(3)


@pytest.mark.parametrize("call_attempt", [2, 4])
def test_a_word_on_another_attempt_changes_nothing(call_attempt):
    again = replace(asked(), resolution=said(DidNotHappen(runner_is_gone=True), call_attempt))
    answer = decide(row(CallState.IN_DOUBT, EffectClass.UNSAFE), again, IDLE)
    assert isinstance(answer, Answer)
    assert (answer.outcome.status, answer.outcome.call_attempt) == (OutcomeStatus.IN_DOUBT, 3)


def test_an_outcome_that_came_first_counts_more_than_a_word():
    known = Outcome(OutcomeStatus.SUCCEEDED, "done", call_attempt=3)
    finished = row(CallState.FINISHED, EffectClass.UNSAFE, outcome=pack_outcome(known))
    assert decide(finished, replace(asked(), resolution=said(Happened("paid"))), IDLE) == Answer(known)


@pytest.mark.parametrize(
    ("decision", "verdict"),
    [
        (DidNotHappen(runner_is_gone=True), Run(4)),
        (DidNotHappen(runner_proven_gone=True), Doubt(3)),
        (DidNotHappen(), Doubt(3)),
    ],
)
def test_a_call_whose_record_was_lost_is_in_doubt_still_when_a_word_comes_for_it(decision, verdict):
    assert decide(None, replace(asked(), resolution=said(decision)), IDLE) == verdict
    settled = decide(None, replace(asked(), resolution=said(Happened("paid"))), IDLE)
    assert isinstance(settled, Conclude)
    assert (settled.outcome.content, settled.outcome.call_attempt) == ("paid", 4)


def test_a_call_whose_record_and_tool_are_gone_is_not_run_whatever_is_said():
    vanished = Outcome(OutcomeStatus.INVALID_ARGUMENTS, "no such tool")
    again = replace(asked(clear=vanished), resolution=said(DidNotHappen(runner_is_gone=True)))
    assert decide(None, again, IDLE) == Conclude(replace(vanished, call_attempt=4))
    assert decide(None, replace(again, resolution=None), IDLE) == Answer(vanished)


@pytest.mark.parametrize("known", [None, row(CallState.IN_DOUBT, EffectClass.UNSAFE)])
def test_what_a_person_says_is_bounded_as_outputs_are(known):
    told = replace(asked(), resolution=said(Happened("y" * 5000)), output_limit_bytes=2048)
    verdict = decide(known, told, IDLE)
    assert isinstance(verdict, Conclude)
    assert len(verdict.outcome.content.encode()) <= 2048
    assert verdict.outcome.truncated


def said(decision, call_attempt: int = 3) -> Resolution:
    return Resolution(call_attempt, decision, "I looked", "olga")
