"""Waits as the checker sees them: whole stories pass, and each way to spoil one is reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from checker.reading import arguments_hash
from checker.verify import examine
from tenure.domain import entries as facts
from tenure.domain.budget import BudgetRequest
from tenure.domain.states import Reason, TaskState
from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.domain.waits import TOOL_DECISIONS, BeginWait, EscalationStep, Wait, WaitAnswerKind, WaitKind
from tests.unit.checker_faults import PARAMETERS, body, check_fault, fault, first, renumber
from tests.unit.checker_history import Story

OTHER = Wait(WaitKind.APPROVAL, "1.9", wait_id="w7")


def wait(story: Story, kind: WaitKind, tool: str) -> Wait:
    """The task's owner leaves it for the call 1.0."""
    waiting = Wait(kind, "1.0", options=TOOL_DECISIONS, tool=tool, wait_id=f"w{len(story.entries) + 1}")
    story.entry(facts.Transition(TaskState.WAITING_USER, "ASKS", from_state=TaskState.RUNNING, wait=waiting))
    story.release()
    story.state = TaskState.WAITING_USER
    return waiting


def answer(story: Story, waiting: Wait, said: str, **fields: str) -> None:
    story.entry(
        facts.WaitResolution(waiting.wait_id, "1.0", waiting.kind, WaitAnswerKind.DECISION, said, **fields),  # type: ignore[arg-type]  # texts
        owned=False,
        actor="bob",
    )


def resume(story: Story) -> None:
    story.move(TaskState.QUEUED, Reason.WAIT_RESOLVED, owned=False)
    story.claim("worker-2")


def story_of_a_question() -> Story:
    """A person is asked and answers, with tokens besides; another worker ends the task."""
    story = Story()
    story.submit()
    story.claim()
    story.attempt(1)
    story.answer("request_approval")
    waiting = wait(story, WaitKind.APPROVAL, "")
    for number in (1, 2):
        step = facts.WaitEscalated(waiting.wait_id, number, EscalationStep(number))
        story.entry(step, owned=False, actor="checkpoint")
    answer(story, waiting, "approve")
    story.entry(facts.ToolOutcome("1.0", Outcome(OutcomeStatus.SUCCEEDED, "yes")), owned=False, actor="bob")
    resume(story)
    story.attempt(2)
    story.answer()
    story.end()
    return story


def allowed() -> Story:
    """A call gets leave, with other arguments, and is executed by the next owner."""
    story = Story()
    story.submit(approve_tools=("append_record",))
    story.claim()
    story.attempt(1)
    story.answer("append_record")
    waiting = wait(story, WaitKind.TOOL_APPROVAL, "append_record")
    answer(story, waiting, "edit", edited_arguments_json='{"line": 7}')
    resume(story)
    outcome = story.execute()
    edited = arguments_hash("append_record", '{"line": 7}')
    story.calls["1.0"] = replace(story.calls["1.0"], arguments_hash=edited)
    story.settle(0, outcome)
    story.attempt(2)
    story.answer()
    story.end()
    return story


def story_of_a_grant() -> Story:
    """A task at its cap asks for budget and gets it; another worker ends the task."""
    story = Story()
    story.submit()
    story.claim()
    story.attempt(1)
    story.answer("append_record")
    story.settle(0, story.execute())
    request = BudgetRequest(Reason.TOKEN_LIMIT, 100, 0)
    waiting = Wait(WaitKind.BUDGET, "", wait_id=f"w{len(story.entries) + 1}", budget_request=request)
    reason = Reason.BUDGET_REQUESTED
    story.entry(facts.Transition(TaskState.WAITING_USER, reason, from_state=TaskState.RUNNING, wait=waiting))
    story.release()
    story.state = TaskState.WAITING_USER
    granted = facts.WaitResolution(waiting.wait_id, "", WaitKind.BUDGET, WaitAnswerKind.DECISION, "approve")
    story.entry(granted, owned=False, actor="bob")
    resume(story)
    story.attempt(2)
    story.answer()
    story.end()
    return story


def story_of_an_operators_wait() -> Story:
    """An operator takes a task from its worker and lets it wait; another worker ends the task."""
    story = Story()
    story.submit()
    story.claim()
    story.attempt(1)
    story.answer("append_record")
    story.settle(0, story.execute())
    request = facts.OperatorRequest("ticket 7", BeginWait("the price list", story.now + 3600))
    story.entry(request, owned=False, actor="olga")
    story.release()
    story.move(TaskState.QUEUED, Reason.OPERATOR_TRANSFER, owned=False)
    waiting = Wait(WaitKind.OPERATOR, "", "the price list", ("continue",), wait_id=f"w{len(story.entries) + 1}")
    left = TaskState.QUEUED
    begun = facts.Transition(TaskState.WAITING_USER, Reason.OPERATOR_WAIT, from_state=left, wait=waiting)
    story.entry(begun, owned=False, actor="checkpoint")
    story.state = TaskState.WAITING_USER
    said = facts.WaitResolution(waiting.wait_id, "", WaitKind.OPERATOR, WaitAnswerKind.DECISION, "continue")
    story.entry(said, owned=False, actor="olga")
    resume(story)
    story.attempt(2)
    story.answer()
    story.end()
    return story


def never_requested(story: Story) -> None:
    del story.entries[first(story, facts.OperatorRequest)]
    renumber(story)


def waits_by_itself(story: Story) -> None:
    index = next(
        place
        for place, entry in enumerate(story.entries)
        if isinstance(entry.body, facts.Transition) and entry.body.reason == Reason.OPERATOR_WAIT
    )
    alone = replace(story.entries[index].body, wait=None)  # type: ignore[type-var]  # a Transition
    story.entries[index] = replace(story.entries[index], body=alone)


def never_granted(story: Story) -> None:
    index = first(story, facts.WaitResolution)
    denied = replace(story.entries[index].body, answer="deny")  # type: ignore[type-var]  # a WaitResolution
    story.entries[index] = replace(story.entries[index], body=denied)


def raised_by_a_refusal(story: Story) -> None:
    index = first(story, facts.WaitResolution)
    raising = replace(story.entries[index].body, answer="deny", extra_budget_nano_usd=5)  # type: ignore[type-var]  # a WaitResolution
    story.entries[index] = replace(story.entries[index], body=raising)


@pytest.mark.parametrize("story", [story_of_a_question, allowed, story_of_a_grant, story_of_an_operators_wait])
def test_a_task_that_waited_passes_every_check(story: Any) -> None:
    report = examine(story().history())
    assert (report.violations, report.not_run) == ((), ())


def answered_twice(story: Story) -> None:
    index = first(story, facts.WaitResolution)
    story.entries.insert(index + 1, replace(story.entries[index], recorded_at=story.entries[index].recorded_at + 0.1))
    renumber(story)


def answered_late(story: Story) -> None:
    """After the task had left the wait."""
    index = first(story, facts.WaitResolution)
    story.entries.append(replace(story.entries[index], recorded_at=story.now, step=2))
    moved = story.entries.pop()
    story.entries.insert(len(story.entries) - 1, moved)
    renumber(story)


def escalated_twice(story: Story) -> None:
    index = first(story, facts.WaitEscalated)
    story.entries.insert(index + 1, replace(story.entries[index], recorded_at=story.entries[index].recorded_at + 0.1))
    renumber(story)


def escalated_late(story: Story) -> None:
    """After the answer."""
    index = first(story, facts.WaitResolution)
    late = replace(story.entries[first(story, facts.WaitEscalated)], recorded_at=story.entries[index].recorded_at)
    story.entries.insert(index + 1, late)
    renumber(story)


def without_approval(story: Story) -> None:
    index = first(story, facts.WaitResolution)
    denied = replace(story.entries[index].body, answer="deny", edited_arguments_json="")  # type: ignore[type-var]  # a WaitResolution
    story.entries[index] = replace(story.entries[index], body=denied)


def before_approval(story: Story) -> None:
    call = story.calls["1.0"]
    at = story.entries[first(story, facts.WaitResolution)].recorded_at - 0.5
    story.calls["1.0"] = replace(call, accepted_at=at)


def executed(story: Story) -> None:
    call = allowed().calls["1.0"]
    story.calls["1.0"] = replace(
        call,
        tool="request_approval",
        arguments_hash=arguments_hash("request_approval", '{"line": 0}'),
        outcome_hash=b"",
        outcome=Outcome(OutcomeStatus.SUCCEEDED, "yes"),
        accepted_at=story.now,
    )


@pytest.mark.parametrize(
    PARAMETERS,
    [
        fault("I37", "a second answer", answered_twice, "answers w7 again", story_of_a_question),
        fault("I37", "an answer after the wait", answered_late, "is not the task's wait", story_of_a_question),
        fault("I37", "a step taken twice", escalated_twice, "is step 1 of w7, after 1 steps", story_of_a_question),
        fault("I37", "a step after the answer", escalated_late, "not the task's open wait", story_of_a_question),
        fault("I37", "budget without a grant", never_granted, "no entry granted any", story_of_a_grant),
        fault("I37", "a refusal that raises a cap", raised_by_a_refusal, "but raises a cap", story_of_a_grant),
        fault("I37", "a wait of no operator", never_requested, "no operator requested", story_of_an_operators_wait),
        fault("I37", "a wait of no worker", waits_by_itself, "that no worker held", story_of_an_operators_wait),
        fault("I37", "a call before its leave", before_approval, "was made before", allowed),
        fault("I13 I37", "a call without leave", without_approval, "without an approval", allowed),
        fault(
            "I5 I15 I37",
            "a call settled that nobody waits for",
            body(facts.Transition, 2, wait=OTHER),
            "only an",
            story_of_a_question,
        ),
    ],
)
def test_spoiled_wait_is_reported(story: Any, change: Any, invariants: Any, says: Any, seen_by_clients: Any) -> None:
    check_fault(story, change, invariants, says, seen_by_clients)


def test_executed_wait_is_reported() -> None:
    story = story_of_a_question()
    executed(story)
    assert any("was sent to the tool service" in each.message for each in examine(story.history()).violations)
