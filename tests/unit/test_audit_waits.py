"""Waits as the checker sees them: whole stories pass, and each way to spoil one is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from checker.reading import arguments_hash
from checker.verify import examine
from tenure.domain import entries as facts
from tenure.domain.states import Reason, TaskState
from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.domain.waits import TOOL_DECISIONS, Wait, WaitAnswerKind, WaitKind
from tests.unit.audit_faults import PARAMETERS, body, check_fault, fault, first, renumber
from tests.unit.audit_story import Story

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


@pytest.mark.parametrize("story", [story_of_a_question, allowed])
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


def without_leave(story: Story) -> None:
    index = first(story, facts.WaitResolution)
    denied = replace(story.entries[index].body, answer="deny", edited_arguments_json="")  # type: ignore[type-var]  # a WaitResolution
    story.entries[index] = replace(story.entries[index], body=denied)


def before_leave(story: Story) -> None:
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
        fault("I37", "a call before its leave", before_leave, "was made before", allowed),
        fault("I13 I37", "a call without leave", without_leave, "without an approval", allowed),
        fault(
            "I5 I15",
            "a call settled that nobody waits for",
            body(facts.Transition, 2, wait=OTHER),
            "only an",
            story_of_a_question,
        ),
    ],
)
def test_a_spoiled_wait_is_told(story: Any, change: Any, invariants: Any, says: Any, seen_by_clients: Any) -> None:
    check_fault(story, change, invariants, says, seen_by_clients)


def test_a_call_that_waited_and_was_executed_is_told() -> None:
    story = story_of_a_question()
    executed(story)
    assert any("was sent to the tool service" in each.message for each in examine(story.history()).violations)
