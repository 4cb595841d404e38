"""The checker and control work: a step that is recorded is that step for ever, and only an owner records it."""

from __future__ import annotations

from dataclasses import replace

from checker.verify import examine
from tenure.domain import entries as facts
from tenure.domain.budget import TokenUsage
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import ControlWork, TaskSpec
from tests.unit.audit_story import TASK, Story
from tests.unit.test_audit_forks import ledgers


def ended(*steps: tuple[int, str], owned: bool = True) -> Story:
    """A function's task with these steps, to its end."""
    story = Story(task_id=TASK, request_id="r-1")
    spec = replace(TaskSpec(goal=""), control=ControlWork("month_end"))
    story.entry(facts.Submitted(spec, "r-1"), owned=False)
    story.entry(facts.Transition(TaskState.QUEUED, Reason.SUBMITTED), owned=False)
    story.claim("worker-1")
    for step, name in steps:
        story.step = max(story.step, step)
        story.entry(facts.ControlStep(name, "1"), owned=owned, step=step)
    story.end()
    return story


def broken(story: Story) -> set[str]:
    return {violation.invariant for violation in examine(ledgers(story)).violations}


def test_a_function_with_its_steps_breaks_no_rule() -> None:
    assert broken(ended((1, "count"), (2, "sum"))) == set()


def test_a_step_that_is_made_again_is_found() -> None:
    assert "I32" in broken(ended((1, "count"), (1, "sum")))


def test_a_step_that_is_left_out_is_found() -> None:
    assert "I8" in broken(ended((1, "count"), (3, "sum")))


def test_a_step_that_no_owner_recorded_is_found() -> None:
    assert broken(ended((1, "count"), owned=False)) != set()


ATTEMPT = facts.ModelAttempt(1, "m", 100, 200, 300)
ANSWER = facts.AssistantMessage(1, ({"type": "text", "text": "hello"},), "end_turn", TokenUsage(100, 20))
RESULT = facts.ControlStep("ask", '"hello"')


def calling(*bodies: facts.Body) -> Story:
    """A function's task with a step and then, as step 2, the entries of a model call."""
    story = ended((1, "count"))
    closing = story.entries.pop()
    story.step = 2
    for body in bodies:
        story.entry(body)
    story.entries.append(replace(closing, sequence=len(story.entries) + 1, step=2))
    return story


def test_a_model_call_of_a_function_breaks_no_rule() -> None:
    assert broken(calling(ATTEMPT, ANSWER, RESULT)) == set()


def test_an_answer_without_the_result_of_its_step_is_found() -> None:
    assert broken(calling(ATTEMPT, ANSWER)) == {"I32"}


def test_a_model_call_that_is_answered_again_is_found() -> None:
    again = (replace(ATTEMPT, attempt_number=2), replace(ANSWER, attempt_number=2), RESULT)
    assert "I32" in broken(calling(ATTEMPT, ANSWER, RESULT, *again))
