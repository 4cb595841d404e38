"""Who is let in at the tools, and what becomes of a call."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from services.tools.calls.accept_rules import (
    AnswerFromRecord,
    ConcludeCall,
    JoinCall,
    MarkInDoubt,
    RunCall,
    RunnerIdentity,
    SettleCall,
    ToolFenceRow,
    admit,
    admit_fence,
    decide,
)
from services.tools.calls.records import CallKey, CallRequest, CallRow, pack_outcome
from tenure.domain.errors import AlreadyExists, StaleEpoch
from tenure.domain.fencing import Claims, Fence
from tenure.domain.in_doubt import Abandon, DidNotHappen, Happened, Resolution, was_not_made
from tenure.domain.tools import CallState, EffectClass, Outcome, OutcomeStatus

TASK = uuid.uuid4()
ME, OTHER = uuid.uuid4(), uuid.uuid4()
MINE = Fence(10, "mine")


def call_request(fence: Fence = MINE, arguments: bytes = b"{}", clear: Outcome | None = None) -> CallRequest:
    claims = Claims(f"tasks/{TASK}", "default", fence.epoch, fence.claim_id, "worker")
    return CallRequest(CallKey(TASK, "1.0"), claims, "tool", EffectClass.KEYED, arguments, clear)


def row(state: CallState, effect_class: EffectClass = EffectClass.KEYED, **changes: Any) -> CallRow:
    known = CallRow(
        CallKey(TASK, "1.0"),
        effect_class,
        call_request().arguments_hash,
        state,
        3,
        MINE,
        OTHER,
        runner_alive=True,
        outcome=None,
    )
    return replace(known, **changes)


IDLE = RunnerIdentity(ME, None)
RUNNING = RunnerIdentity(ME, 3)


@pytest.mark.parametrize(
    ("current", "closed", "presented", "after"),
    [
        (Fence(0, ""), False, MINE, ToolFenceRow(MINE, closed=False)),
        (Fence(9, "old"), False, MINE, ToolFenceRow(MINE, closed=False)),
        (Fence(9, "old"), True, MINE, ToolFenceRow(MINE, closed=False)),
        (MINE, False, MINE, ToolFenceRow(MINE, closed=False)),
        (MINE, True, MINE, None),
        (Fence(10, "theirs"), False, MINE, None),
        (Fence(11, "new"), False, MINE, None),
        (Fence(11, "new"), True, MINE, None),
    ],
)
def test_a_call_needs_a_higher_epoch_or_the_open_claim(current: Any, closed: bool, presented: Any, after: Any) -> None:
    admitted = admit(ToolFenceRow(current, closed), presented)
    if after is None:
        assert isinstance(admitted, StaleEpoch)
        assert (admitted.presented, admitted.current) == (presented.epoch, current.epoch)
    else:
        assert admitted == after


def test_closing_is_repeatable_and_final_for_a_claim() -> None:
    closed = admit_fence(ToolFenceRow(MINE, closed=False), MINE, close=True)
    assert closed == ToolFenceRow(MINE, closed=True)
    assert admit_fence(closed, MINE, close=True) == closed
    assert isinstance(admit_fence(closed, MINE, close=False), StaleEpoch)
    assert isinstance(admit_fence(closed, Fence(9, "old"), close=True), StaleEpoch)
    assert isinstance(admit_fence(closed, Fence(10, "theirs"), close=True), StaleEpoch)


def test_a_new_call_is_run_unless_its_outcome_is_clear() -> None:
    clear = Outcome(OutcomeStatus.NOT_ALLOWED, "no")
    assert decide(None, call_request(), IDLE) == RunCall(1)
    assert decide(None, call_request(clear=clear), IDLE) == AnswerFromRecord(clear)


@pytest.mark.parametrize("state", list(CallState))
def test_other_arguments_are_refused_in_every_state(state: Any) -> None:
    verdict = decide(row(state), call_request(arguments=b'{"other": 1}'), RUNNING)
    assert isinstance(verdict, AlreadyExists)
    assert verdict.reason == "CALL_ID_REUSED"


def test_a_call_without_its_tool_is_concluded_if_repeatable() -> None:
    clear = Outcome(OutcomeStatus.INVALID_ARGUMENTS, "no such tool")
    dead = row(CallState.STARTED, EffectClass.PURE, runner_alive=False)
    concluded = replace(clear, no_effect=True)
    assert decide(dead, call_request(clear=clear), IDLE) == ConcludeCall(replace(concluded, call_attempt=4))
    first = row(CallState.ACCEPTED, call_attempt=1)
    assert decide(first, call_request(clear=clear), IDLE) == ConcludeCall(replace(concluded, call_attempt=2))
    assert decide(row(CallState.STARTED), call_request(clear=clear), IDLE) == JoinCall(3)
    assert decide(replace(dead, effect_class=EffectClass.UNSAFE), call_request(clear=clear), IDLE) == MarkInDoubt(3)


UNREACHED = Outcome(OutcomeStatus.FAILED, "Not reached: nothing was done.", detail="UNREACHABLE", no_effect=True)


@pytest.mark.parametrize("state", [CallState.STARTED, CallState.ACCEPTED])
def test_a_concluded_call_names_a_possible_earlier_effect(state: Any) -> None:
    begun = row(state, EffectClass.IDEMPOTENT, runner_alive=False, begun_before=True)
    verdict = decide(begun, call_request(clear=UNREACHED), IDLE)
    assert isinstance(verdict, ConcludeCall)
    assert verdict.outcome.content == (
        "Not reached: nothing was done. It is not known whether an earlier attempt of this call had its effect."
    )
    assert not verdict.outcome.no_effect


@pytest.mark.parametrize("state", [CallState.STARTED, CallState.ACCEPTED])
def test_keyed_call_that_had_begun_is_in_doubt_without_its_tool(state: Any) -> None:
    clear = replace(UNREACHED, content="This call was not run: it has no value at /order.")
    begun = row(state, EffectClass.KEYED, runner_alive=False, begun_before=True)
    verdict = decide(begun, call_request(clear=clear), IDLE)
    assert isinstance(verdict, MarkInDoubt)
    assert (verdict.call_attempt, was_not_made(verdict.note)) == (3, False)
    assert verdict.note.endswith(clear.content)


@pytest.mark.parametrize("effect_class", [EffectClass.IDEMPOTENT, EffectClass.KEYED])
def test_call_that_never_began_ends_without_its_tool(effect_class: Any) -> None:
    verdict = decide(row(CallState.ACCEPTED, effect_class), call_request(clear=UNREACHED), IDLE)
    assert verdict == ConcludeCall(replace(UNREACHED, call_attempt=4))


@pytest.mark.parametrize("effect_class", list(EffectClass))
def test_next_attempt_knows_that_the_call_may_have_happened(effect_class: Any) -> None:
    leaves_effects = effect_class in {EffectClass.IDEMPOTENT, EffectClass.KEYED}
    accepted = row(CallState.ACCEPTED, effect_class, begun_before=True)
    assert decide(accepted, call_request(), IDLE) == RunCall(4, sent_before=leaves_effects)
    assert decide(replace(accepted, begun_before=False), call_request(), IDLE) == RunCall(4)


def test_unsafe_call_of_a_lost_runner_is_settled_by_its_check() -> None:
    checked = replace(call_request(), has_check=True)
    dead = row(CallState.STARTED, EffectClass.UNSAFE, runner_alive=False)
    assert decide(dead, checked, IDLE) == SettleCall(4)
    assert decide(dead, call_request(), IDLE) == MarkInDoubt(3)
    gone = Outcome(OutcomeStatus.INVALID_ARGUMENTS, "no such tool")
    assert decide(dead, replace(checked, clear=gone), IDLE) == MarkInDoubt(3)
    by_resolution = row(CallState.ACCEPTED, EffectClass.UNSAFE, begun_before=True)
    assert decide(by_resolution, checked, IDLE) == RunCall(4)


def test_keyed_call_of_a_lost_runner_runs_again() -> None:
    dead = row(CallState.STARTED, EffectClass.KEYED, runner_alive=False)
    assert decide(dead, replace(call_request(), has_check=True), IDLE) == RunCall(4, sent_before=True)
    became_unsafe = replace(call_request(), has_check=True, effect_class=EffectClass.UNSAFE)
    assert decide(dead, became_unsafe, IDLE) == SettleCall(4)


def test_a_call_whose_tool_became_unsafe_is_not_run_again() -> None:
    dead = row(CallState.STARTED, runner_alive=False)
    assert decide(dead, replace(call_request(), effect_class=EffectClass.UNSAFE), IDLE) == MarkInDoubt(3)
    assert decide(replace(dead, effect_class=EffectClass.UNSAFE), call_request(), IDLE) == MarkInDoubt(3)
    assert decide(dead, call_request(), IDLE) == RunCall(4, sent_before=True)
    gone = Outcome(OutcomeStatus.INVALID_ARGUMENTS, "no such tool")
    without_tool = replace(call_request(clear=gone), effect_class=EffectClass.UNSAFE)
    assert isinstance(decide(dead, without_tool, IDLE), MarkInDoubt)
    response = decide(row(CallState.STARTED, EffectClass.IDEMPOTENT, runner_alive=False), without_tool, IDLE)
    assert isinstance(response, ConcludeCall)
    assert response.outcome.status is OutcomeStatus.INVALID_ARGUMENTS


def test_an_accepted_call_is_joined_or_taken_over() -> None:
    accepted = row(CallState.ACCEPTED)
    assert decide(accepted, call_request(), RUNNING) == JoinCall(3)
    assert decide(accepted, call_request(Fence(11, "next")), RUNNING) == RunCall(4)
    assert decide(accepted, call_request(), IDLE) == RunCall(4)
    assert decide(accepted, call_request(), RunnerIdentity(ME, 2)) == RunCall(4)


@pytest.mark.parametrize("effect_class", list(EffectClass))
def test_a_started_call_is_joined_while_its_runner_lives(effect_class: Any) -> None:
    for fence in (MINE, Fence(11, "next")):
        assert decide(row(CallState.STARTED, effect_class), call_request(fence), IDLE) == JoinCall(3)
        here = row(CallState.STARTED, effect_class, runner_id=ME, runner_alive=False)
        assert decide(here, call_request(fence), RUNNING) == JoinCall(3)


@pytest.mark.parametrize("effect_class", list(EffectClass))
@pytest.mark.parametrize(
    "lost", [{"runner_alive": False}, {"runner_id": ME}, {"runner_id": None, "runner_alive": False}]
)
def test_only_an_unsafe_call_of_a_lost_runner_is_in_doubt(effect_class: Any, lost: Any) -> None:
    verdict = decide(row(CallState.STARTED, effect_class, **lost), call_request(), IDLE)
    again = RunCall(4, sent_before=effect_class is not EffectClass.PURE)
    assert verdict == (MarkInDoubt(3) if effect_class is EffectClass.UNSAFE else again)


def test_settled_call_is_answered_from_its_record() -> None:
    outcome = Outcome(
        OutcomeStatus.FAILED, "no \0 luck", truncated=True, detail="X", duration_seconds=1.5, call_attempt=3
    )
    assert decide(row(CallState.FINISHED, outcome=pack_outcome(outcome)), call_request(), IDLE) == AnswerFromRecord(
        outcome
    )
    for state, status in ((CallState.NOT_RUN, OutcomeStatus.NOT_RUN), (CallState.IN_DOUBT, OutcomeStatus.IN_DOUBT)):
        verdict = decide(row(state, EffectClass.PURE, runner_alive=False), call_request(), IDLE)
        assert isinstance(verdict, AnswerFromRecord)
        assert (verdict.outcome.status, verdict.outcome.call_attempt) == (status, 3)


def test_a_resolution_settles_or_repeats_the_call() -> None:
    doubted = row(CallState.IN_DOUBT, EffectClass.UNSAFE)
    settled = decide(doubted, replace(call_request(), resolution=resolution_of(Happened("paid"))), IDLE)
    assert isinstance(settled, ConcludeCall)
    assert (settled.outcome.content, settled.outcome.call_attempt) == ("paid", 4)
    again = replace(call_request(), resolution=resolution_of(DidNotHappen(runner_is_gone=True)))
    assert decide(doubted, again, IDLE) == RunCall(4)
    vanished = Outcome(OutcomeStatus.INVALID_ARGUMENTS, "no such tool")
    concluded = replace(vanished, call_attempt=4, no_effect=True)
    assert decide(doubted, replace(again, clear=vanished), IDLE) == ConcludeCall(concluded)


@pytest.mark.parametrize("decision", [Happened("paid"), Abandon()])
def test_resolution_of_a_call_that_was_not_made_proves_no_effect(decision: Any) -> None:
    """A person was asked about a repeat: another call has made the effect, and this one did nothing."""
    request = replace(call_request(), resolution=resolution_of(decision))
    doubted = row(CallState.IN_DOUBT, EffectClass.UNSAFE)
    for note, was_made in (("This call was not run: its effect has happened already.", False), ("It hung.", True)):
        settled = decide(replace(doubted, doubt_note=note), request, IDLE)
        assert isinstance(settled, ConcludeCall)
        assert settled.outcome.no_effect is not was_made


def test_a_call_running_in_this_process_is_not_gone() -> None:
    again = replace(call_request(), resolution=resolution_of(DidNotHappen(runner_is_gone=True)))
    assert decide(row(CallState.IN_DOUBT, EffectClass.UNSAFE), again, RUNNING) == JoinCall(3)


@pytest.mark.parametrize("call_attempt", [2, 4])
def test_resolution_of_another_attempt_changes_nothing(call_attempt: int) -> None:
    again = replace(call_request(), resolution=resolution_of(DidNotHappen(runner_is_gone=True), call_attempt))
    answer = decide(row(CallState.IN_DOUBT, EffectClass.UNSAFE), again, IDLE)
    assert isinstance(answer, AnswerFromRecord)
    assert (answer.outcome.status, answer.outcome.call_attempt) == (OutcomeStatus.IN_DOUBT, 3)


def test_earlier_outcome_outranks_a_resolution() -> None:
    known = Outcome(OutcomeStatus.SUCCEEDED, "done", call_attempt=3)
    finished = row(CallState.FINISHED, EffectClass.UNSAFE, outcome=pack_outcome(known))
    assert decide(
        finished, replace(call_request(), resolution=resolution_of(Happened("paid"))), IDLE
    ) == AnswerFromRecord(known)


@pytest.mark.parametrize(
    ("decision", "verdict"),
    [
        (DidNotHappen(runner_is_gone=True), RunCall(4)),
        (DidNotHappen(runner_proven_gone=True), MarkInDoubt(3)),
        (DidNotHappen(), MarkInDoubt(3)),
    ],
)
def test_a_call_with_a_lost_record_is_still_in_doubt(decision: Any, verdict: Any) -> None:
    assert decide(None, replace(call_request(), resolution=resolution_of(decision)), IDLE) == verdict
    settled = decide(None, replace(call_request(), resolution=resolution_of(Happened("paid"))), IDLE)
    assert isinstance(settled, ConcludeCall)
    assert (settled.outcome.content, settled.outcome.call_attempt) == ("paid", 4)


def test_a_call_without_record_and_tool_is_not_run() -> None:
    vanished = Outcome(OutcomeStatus.INVALID_ARGUMENTS, "no such tool")
    again = replace(call_request(clear=vanished), resolution=resolution_of(DidNotHappen(runner_is_gone=True)))
    assert decide(None, again, IDLE) == ConcludeCall(replace(vanished, call_attempt=4, no_effect=True))
    assert decide(None, replace(again, resolution=None), IDLE) == AnswerFromRecord(vanished)


@pytest.mark.parametrize("known", [None, row(CallState.IN_DOUBT, EffectClass.UNSAFE)])
def test_text_of_a_resolution_is_bounded(known: Any) -> None:
    response = replace(call_request(), resolution=resolution_of(Happened("y" * 5000)), output_limit_bytes=2048)
    verdict = decide(known, response, IDLE)
    assert isinstance(verdict, ConcludeCall)
    assert len(verdict.outcome.content.encode()) <= 2048
    assert verdict.outcome.truncated


def resolution_of(decision: Any, call_attempt: int = 3) -> Resolution:
    return Resolution(call_attempt, decision, "I looked", "olga")


# Calls that the caller runs itself.

NEWER = Fence(11, "theirs")
RUNNERS = [{"runner_alive": True}, {"runner_alive": False}, {"runner_id": ME, "runner_alive": True}]


def own_call(
    fence: Fence = MINE, outcome: Outcome | None = None, effect: EffectClass = EffectClass.KEYED
) -> CallRequest:
    return replace(call_request(fence), effect_class=effect, runs_at_caller=True, own_outcome=outcome)


def came_to(status: OutcomeStatus, call_attempt: int = 3) -> Outcome:
    return Outcome(status, "text", call_attempt=call_attempt)


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("effect", list(EffectClass))
def test_a_newer_claim_never_waits_for_the_former_worker(runner: dict[str, Any], effect: EffectClass) -> None:
    started = row(CallState.STARTED, effect, **runner)
    for here in (IDLE, RUNNING):
        verdict = decide(started, own_call(NEWER, effect=effect), here)
        again = RunCall(4, sent_before=effect is not EffectClass.PURE)
        assert verdict == (MarkInDoubt(3) if effect is EffectClass.UNSAFE else again)


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("effect", list(EffectClass))
def test_the_same_worker_joins_its_run_or_goes_on_elsewhere(runner: dict[str, Any], effect: EffectClass) -> None:
    """Even an UNSAFE call: the process that holds the claim answers for the next attempt with the run that it has."""
    started = row(CallState.STARTED, effect, **runner)
    assert decide(started, own_call(effect=effect), RUNNING) == JoinCall(3)
    assert decide(started, own_call(effect=effect), IDLE) == RunCall(4)


@pytest.mark.parametrize("state", [CallState.STARTED, CallState.IN_DOUBT])
def test_an_outcome_of_the_attempt_and_claim_ends_the_call(state: CallState) -> None:
    succeeded = came_to(OutcomeStatus.SUCCEEDED)
    for here in (IDLE, RUNNING):
        assert decide(row(state, EffectClass.UNSAFE), own_call(outcome=succeeded), here) == ConcludeCall(succeeded)


def test_run_that_did_not_begin_is_ordered_again() -> None:
    """The next attempt makes the former order void. A call in doubt stays so."""
    not_run = came_to(OutcomeStatus.NOT_RUN)
    for here in (IDLE, RUNNING):
        assert decide(row(CallState.STARTED, EffectClass.UNSAFE), own_call(outcome=not_run), here) == RunCall(4)
    doubted = decide(row(CallState.IN_DOUBT, EffectClass.UNSAFE), own_call(outcome=not_run), IDLE)
    assert isinstance(doubted, AnswerFromRecord)
    assert doubted.outcome.status is OutcomeStatus.IN_DOUBT


@pytest.mark.parametrize("fence", [MINE, NEWER])
def test_outcome_of_another_attempt_or_claim_is_ignored(fence: Fence) -> None:
    outcome = came_to(OutcomeStatus.SUCCEEDED, call_attempt=2 if fence == MINE else 3)
    started, doubted = row(CallState.STARTED), row(CallState.IN_DOUBT, EffectClass.UNSAFE)
    request = own_call(fence, outcome)
    assert decide(started, request, IDLE) == decide(started, replace(request, own_outcome=None), IDLE)
    assert decide(doubted, request, IDLE) == decide(doubted, replace(request, own_outcome=None), IDLE)


@pytest.mark.parametrize("status", [OutcomeStatus.TIMED_OUT, OutcomeStatus.IN_DOUBT])
def test_a_run_without_a_known_effect_is_in_doubt_if_unsafe(status: OutcomeStatus) -> None:
    request = own_call(outcome=came_to(status))
    assert decide(row(CallState.STARTED, EffectClass.UNSAFE), request, RUNNING) == MarkInDoubt(3, "text")
    keyed = decide(row(CallState.STARTED), request, RUNNING)
    assert isinstance(keyed, ConcludeCall)
    assert keyed.outcome.status in {OutcomeStatus.TIMED_OUT, OutcomeStatus.FAILED}


def test_a_resolved_own_call_runs_again_beside_its_former_run() -> None:
    resolution = Resolution(3, DidNotHappen(runner_is_gone=True, runner_proven_gone=False), "looked", "person")
    request = replace(own_call(NEWER, effect=EffectClass.UNSAFE), resolution=resolution)
    assert decide(row(CallState.IN_DOUBT, EffectClass.UNSAFE), request, RUNNING) == RunCall(4)


TAKEN = Outcome(OutcomeStatus.INVALID_ARGUMENTS, "another has this name", detail="TOOL_NAME_TAKEN")
SAID = Outcome(OutcomeStatus.SUCCEEDED, "done", call_attempt=3)


def own_request(clear: Outcome | None = None, outcome: Outcome | None = None) -> CallRequest:
    return replace(call_request(clear=clear), runs_at_caller=True, own_outcome=outcome)


def test_an_own_unsafe_call_that_began_is_in_doubt() -> None:
    """Its name was given to another tool while it ran: its effect may have happened."""
    started = row(CallState.STARTED, EffectClass.UNSAFE, runner_alive=False)
    assert decide(started, own_request(TAKEN), IDLE) == MarkInDoubt(3)
    assert decide(started, own_request(TAKEN, SAID), IDLE) == MarkInDoubt(3)
    ordered = RunnerIdentity(ME, 3, ordered=True)
    assert decide(started, own_request(TAKEN, SAID), ordered) == ConcludeCall(SAID)


def test_a_caller_decides_nothing_about_a_call_of_the_service() -> None:
    for here, alive in ((RUNNING, True), (IDLE, True)):
        running = row(CallState.STARTED, EffectClass.UNSAFE, runner_alive=alive)
        assert decide(running, own_request(TAKEN, SAID), here) == JoinCall(3)
    doubted = decide(row(CallState.IN_DOUBT, EffectClass.UNSAFE), own_request(TAKEN, SAID), IDLE)
    assert isinstance(doubted, AnswerFromRecord)
    assert doubted.outcome.status is OutcomeStatus.IN_DOUBT


def test_a_callers_repeated_doubt_does_not_begin_anew() -> None:
    doubted = row(CallState.IN_DOUBT, EffectClass.UNSAFE, doubt_note="it hung up")
    unknown = replace(SAID, status=OutcomeStatus.TIMED_OUT, content="late")
    verdict = decide(doubted, own_request(None, unknown), IDLE)
    assert isinstance(verdict, AnswerFromRecord)
    assert "it hung up" in verdict.outcome.content
    assert decide(doubted, own_request(None, SAID), IDLE) == ConcludeCall(SAID)
