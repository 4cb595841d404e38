"""The checker and control work: a step that is recorded is that step for ever, and only an owner records it."""

from __future__ import annotations

from dataclasses import replace

from checker.verify import examine
from tenure.domain import entries as facts
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import ControlWork, TaskSpec
from tests.unit.checker_history import TASK, Story
from tests.unit.test_checker_forks import ledgers


def ended(*steps: tuple[int, str], owned: bool = True) -> Story:
    """A function's task with these steps, to its end."""
    story = begun()
    for step, name in steps:
        story.step = max(story.step, step)
        story.entry(facts.ControlStep(name, "1"), owned=owned, step=step)
    story.end()
    return story


def begun() -> Story:
    story = Story(task_id=TASK, request_id="r-1")
    spec = replace(TaskSpec(goal=""), control=ControlWork("month_end"))
    story.entry(facts.Submitted(spec, "r-1"), owned=False)
    story.entry(facts.Transition(TaskState.QUEUED, Reason.SUBMITTED), owned=False)
    story.claim("worker-1")
    return story


def broken(story: Story) -> set[str]:
    return {violation.invariant for violation in examine(ledgers(story)).violations}


def test_a_function_with_its_steps_breaks_no_rule() -> None:
    assert broken(ended((1, "count"), (2, "sum"))) == set()


def test_repeated_step_is_reported() -> None:
    assert "I32" in broken(ended((1, "count"), (1, "sum")))


def test_missing_step_is_reported() -> None:
    assert "I8" in broken(ended((1, "count"), (3, "sum")))


def test_step_without_an_owner_is_reported() -> None:
    assert broken(ended((1, "count"), owned=False)) != set()


def calling(*results: bool) -> Story:
    """A function's task whose step 2 is a model call, answered for each of `results`: with its result or without."""
    story = begun()
    story.entry(facts.ControlStep("count", "1"), step=1)
    for number, has_result in enumerate(results, 1):
        story.attempt(2, number)
        story.answer(number=number)
        if has_result:
            story.entry(facts.ControlStep("ask", '"hello"'))
    story.end()
    return story


def test_a_model_call_of_a_function_breaks_no_rule() -> None:
    assert broken(calling(True)) == set()


def test_answer_without_its_step_is_reported() -> None:
    assert broken(calling(False)) == {"I32"}


def test_repeated_answer_is_reported() -> None:
    assert "I32" in broken(calling(True, True))
