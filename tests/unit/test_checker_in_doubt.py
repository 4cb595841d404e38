"""Calls in doubt as the checker sees them: whole stories pass, and each way to spoil one is reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from checker import history as seen
from checker.reading import outcome_hash
from checker.verify import examine
from tenure.domain import entries as facts
from tenure.domain.in_doubt import ABANDONED, Abandon, CallInDoubt, Decision, DidNotHappen, Happened, ResolveCall
from tenure.domain.states import Reason, TaskState
from tenure.domain.tools import CallState, Outcome, OutcomeStatus
from tests.unit.checker_faults import PARAMETERS, body, check_fault, fault, first, renumber
from tests.unit.checker_history import Story


def doubted() -> Story:
    """An UNSAFE call that happened, as the outside tells; its runner died, and the task waits for a word."""
    story = Story()
    story.submit()
    story.claim()
    story.attempt(1)
    story.answer("append_record_unsafe")
    story.execute()
    known = story.calls["1.0"]
    story.calls["1.0"] = replace(known, state=CallState.IN_DOUBT, outcome=None, outcome_hash=b"", finished_at=None)
    wait = facts.Transition(
        TaskState.WAITING_USER,
        Reason.TOOL_IN_DOUBT,
        from_state=TaskState.RUNNING,
        calls_in_doubt=(CallInDoubt("1.0", 1),),
    )
    story.entry(wait)
    story.release()
    story.state = TaskState.WAITING_USER
    return story


def say(story: Story, decision: Decision) -> None:
    request = facts.OperatorRequest("I looked", ResolveCall("1.0", 1, decision))
    story.entry(request, owned=False, actor="olga")
    story.operation(seen.Method.RESOLVE, call_id="1.0", call_attempt=1)
    put_back(story, "olga")


def put_back(story: Story, actor: str) -> None:
    story.entry(
        facts.Transition(TaskState.QUEUED, Reason.CALL_RESOLVED, from_state=TaskState.WAITING_USER),
        owned=False,
        actor=actor,
    )
    story.state = TaskState.QUEUED
    story.claim("worker-2")


def go_on(story: Story, outcome: Outcome) -> Story:
    """The tools took the word under the new claim, and its owner ends the task."""
    story.raise_fence()
    story.now += 1.0
    story.calls["1.0"] = replace(
        story.calls["1.0"],
        state=CallState.FINISHED,
        call_attempt=outcome.call_attempt,
        epoch=story.holder.epoch,
        claim_id=story.holder.claim_id,
        outcome=outcome,
        outcome_hash=outcome_hash(outcome),
        finished_at=story.now,
    )
    story.settle(0, outcome)
    story.attempt(2)
    story.answer()
    story.end()
    return story


def happened() -> Story:
    story = doubted()
    story.effects.clear()  # a person saw it in a place that is not collected
    say(story, Happened("it is there"))
    return go_on(story, Outcome(OutcomeStatus.SUCCEEDED, "it is there", detail="HAPPENED", call_attempt=2))


def ended_before_the_tools_knew() -> Story:
    story = doubted()
    say(story, Happened("it is there"))
    story.settle(0, Outcome(OutcomeStatus.SUCCEEDED, "it is there", detail="HAPPENED", call_attempt=2))
    story.end()
    return story


def run_again() -> Story:
    """By a person who was wrong."""
    story = doubted()
    say(story, DidNotHappen(runner_is_gone=True))
    epoch = story.holder.epoch
    story.effects.append(
        seen.ObservedEffect(task_id=story.task_id, call_id="1.0", epoch=epoch, place="records.jsonl:2")
    )
    return go_on(story, Outcome(OutcomeStatus.SUCCEEDED, "done", call_attempt=2))


def given_up() -> Story:
    story = doubted()
    say(story, Abandon())
    return go_on(story, Outcome(OutcomeStatus.IN_DOUBT, "nobody knows", detail=ABANDONED, call_attempt=2))


def came_late() -> Story:
    """The outcome was recorded after all; no word was needed."""
    story = doubted()
    put_back(story, "checkpoint")
    return go_on(story, Outcome(OutcomeStatus.SUCCEEDED, "1.0 is done"))


@pytest.mark.parametrize("story", [happened, ended_before_the_tools_knew, run_again, given_up, came_late])
def test_resolved_call_in_doubt_passes_every_check(story: Any) -> None:
    report = examine(story().history())
    assert (report.violations, report.not_run) == ((), ())


def without_a_resolution(story: Story) -> None:
    del story.entries[first(story, facts.OperatorRequest)]
    renumber(story)


def other(decision: Decision) -> Any:
    return body(facts.OperatorRequest, act=ResolveCall("1.0", 1, decision))


def both_before_the_resolution(story: Story) -> None:
    story.effects[1] = replace(story.effects[1], epoch=story.effects[0].epoch)


def decided_on_since(story: Story) -> None:
    story.calls["1.0"] = replace(story.calls["1.0"], call_attempt=3)


def same_attempt(story: Story) -> None:
    index = first(story, facts.ToolOutcome)
    body: Any = story.entries[index].body
    story.entries[index] = replace(
        story.entries[index], body=replace(body, outcome=replace(body.outcome, call_attempt=1))
    )


def started_again(story: Story) -> None:
    word, call = story.entries[first(story, facts.OperatorRequest)], story.calls["1.0"]
    assert call.outcome is not None
    outcome = replace(call.outcome, call_attempt=1)
    story.calls["1.0"] = replace(call, call_attempt=1, outcome=outcome, started_at=word.recorded_at + 1.0)


def never_recorded(story: Story) -> None:
    """The word that was acknowledged was about another attempt than the one in the ledger."""
    story.operation(seen.Method.RESOLVE, call_id="1.0", call_attempt=2)


def resolution_without_an_author(story: Story) -> None:
    story.operations = [one for one in story.operations if one.method is not seen.Method.RESOLVE]


def twice(story: Story) -> None:
    index = first(story, facts.OperatorRequest)
    story.entries.insert(index + 1, replace(story.entries[index], recorded_at=story.entries[index].recorded_at + 0.1))
    renumber(story)


def outcome(**changes: Any) -> Any:
    """The ledger tells the outcome otherwise."""

    def change(story: Story) -> None:
        body_value = story.entries[first(story, facts.ToolOutcome)].body
        assert isinstance(body_value, facts.ToolOutcome)
        body(facts.ToolOutcome, outcome=replace(body_value.outcome, **changes))(story)

    return change


def resolution_afterwards(story: Story) -> None:
    said = story.entries.pop(first(story, facts.OperatorRequest))
    story.entries.insert(first(story, facts.ToolOutcome) + 1, said)
    renumber(story)


FAILED = OutcomeStatus.FAILED
ANOTHER = "its record is IN_DOUBT"


@pytest.mark.parametrize(
    PARAMETERS,
    [
        fault("I12 I40", "run again without a word", without_a_resolution, "happened 2 times", run_again),
        fault("I12", "run again against a word", other(Happened()), "happened 2 times", run_again),
        fault("I12", "twice before the word", both_before_the_resolution, "happened 2 times", run_again),
        fault("I40", "gone on without a word", without_a_resolution, "before a resolution of 1.0", happened),
        fault("I40", "a second word", twice, "for which the task does not wait", happened),
        fault(
            "I40",
            "a word on another attempt",
            body(facts.OperatorRequest, act=ResolveCall("1.0", 2, Happened())),
            "attempt 2 of call 1.0, but",
            happened,
        ),
        fault(
            "I15 I40",
            "happened by nobody's word",
            other(Abandon()),
            "its record is IN_DOUBT",
            ended_before_the_tools_knew,
        ),
        fault(
            "I15 I40",
            "happened by another attempt's word",
            outcome(call_attempt=3),
            ANOTHER,
            ended_before_the_tools_knew,
        ),
        fault("I15", "failed by the word", outcome(status=FAILED), ANOTHER, ended_before_the_tools_knew),
        fault("I15", "happened with another result", outcome(content="x"), ANOTHER, ended_before_the_tools_knew),
        fault("I15", "happened, and not by a word", outcome(detail=""), ANOTHER, ended_before_the_tools_knew),
        fault("I15 I40", "happened before the word", resolution_afterwards, ANOTHER, ended_before_the_tools_knew),
        fault("I40", "happened by nobody, at the tools", other(Abandon()), "happened by a resolution", happened),
        fault("I40", "given up by nobody", other(Happened()), "has no such resolution", given_up),
        fault("I12", "an older attempt's outcome", decided_on_since, "has the outcome of attempt 2", given_up),
        fault("I40", "settled as the same attempt", same_attempt, "call attempt has no such resolution", given_up),
        fault("I40", "not happened, by nobody's word", other(DidNotHappen()), "there is no proof", run_again),
        fault("I40", "run again as the same attempt", started_again, "which resolved it", run_again),
        fault("I9", "an absent resolution", never_recorded, "is not in the ledger", happened, seen_by_clients=True),
        fault(
            "I10",
            "a word nobody gave",
            resolution_without_an_author,
            "but no client requested it",
            happened,
            seen_by_clients=True,
        ),
    ],
)
def test_spoiled_call_in_doubt_is_reported(
    story: Any, change: Any, invariants: Any, says: Any, seen_by_clients: Any
) -> None:
    check_fault(story, change, invariants, says, seen_by_clients)
