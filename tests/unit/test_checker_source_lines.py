"""I47 as the checker sees it: which tasks of a source ran at once."""

from __future__ import annotations

import pytest

from checker.history import History
from checker.verify import verify
from tenure.domain.entries import Submitted, Transition
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import Source, SourceKind, TaskSpec
from tests.unit.checker_history import Story

FIRST, SECOND = "018f0000-0000-7000-8000-000000000001", "018f0000-0000-7000-8000-000000000002"
WAITS = Source(SourceKind.CONTROL, "customer-7", at_most=1)
EXCLUSIVE = Source(SourceKind.CONTROL, "customer-7", exclusive=True)


def story(task_id: str, source: Source, begun_at: float, *, ended: bool = True) -> Story:
    """A task that ends, if it does, two seconds after its first claim."""
    made = Story(task_id=task_id, request_id=task_id, now=begun_at - 3)
    made.entry(Submitted(TaskSpec(goal="do it", source=source)), owned=False)
    made.entry(Transition(TaskState.QUEUED, Reason.SUBMITTED), owned=False)
    made.claim()
    if ended:
        made.move(TaskState.FAILED, Reason.FINAL_ANSWER)
    return made


def messages(*stories: Story) -> list[str]:
    tasks, entries = tuple(one.row() for one in stories), tuple(entry for one in stories for entry in one.entries)
    violations = verify(History(tasks=tasks, entries=entries))
    return [each.message for each in violations if each.invariant == "I47"]


@pytest.mark.parametrize("source", [WAITS, EXCLUSIVE])
def test_a_task_beside_another_one_of_its_source_is_reported(source: Source) -> None:
    first = story(FIRST, source, 100.0, ended=False)
    assert messages(first, story(SECOND, source, 110.0)) == [
        f"it begins while {FIRST} of CONTROL/customer-7 run, and allows 1 at once"
    ]


@pytest.mark.parametrize(
    "second",
    [
        Source(SourceKind.CONTROL, "customer-8", at_most=1),
        Source(SourceKind.CONTROL, "customer-7", at_most=2),
        Source(SourceKind.CONTROL, "customer-7"),
        EXCLUSIVE,
    ],
    ids=["another source", "two at once", "not in line", "exclusive"],
)
def test_a_task_may_run_beside_one_that_it_allows(second: Source) -> None:
    assert messages(story(FIRST, WAITS, 100.0, ended=False), story(SECOND, second, 110.0)) == []


def test_a_task_after_the_end_of_the_other_is_lawful() -> None:
    assert messages(story(FIRST, WAITS, 100.0), story(SECOND, WAITS, 110.0)) == []
