"""The steps of an escalation: each comes once, in order, and before the deadline."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.waits import (
    MAX_ESCALATION_STEPS,
    MAX_WAIT_SECONDS,
    EscalationAction,
    Escalations,
    EscalationStep,
    WaitKind,
    next_step,
    problems_of_steps,
)

PERSON = (EscalationStep(60.0),)
EVENT = (EscalationStep(30.0, EscalationAction.CLOSE_OUT),)

lists = st.lists(st.floats(min_value=1.0, max_value=MAX_WAIT_SECONDS), unique=True, max_size=MAX_ESCALATION_STEPS).map(
    lambda times: tuple(EscalationStep(after) for after in sorted(times))
)


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        (WaitKind.QUESTION, PERSON),
        (WaitKind.APPROVAL, PERSON),
        (WaitKind.TOOL_APPROVAL, PERSON),
        (WaitKind.EVENT, EVENT),
        (WaitKind.SUB_AGENTS, ()),
    ],
)
def test_a_wait_has_the_steps_of_its_kind(kind: WaitKind, steps: tuple[EscalationStep, ...]) -> None:
    assert Escalations(PERSON, EVENT).steps_of(kind) == steps


@given(lists, st.floats(min_value=1.0, max_value=MAX_WAIT_SECONDS))
def test_each_step_before_the_deadline_comes_once(steps: tuple[EscalationStep, ...], timeout: float) -> None:
    taken: list[EscalationStep] = []
    while (step := next_step(steps, len(taken), timeout)) is not None:
        taken.append(step)
    assert taken == [step for step in steps if step.after_seconds < timeout]


@given(lists)
def test_ascending_steps_are_accepted(steps: tuple[EscalationStep, ...]) -> None:
    assert not list(problems_of_steps(steps))


@given(lists, st.data())
def test_a_repeated_time_is_refused(steps: tuple[EscalationStep, ...], data: st.DataObject) -> None:
    if steps:
        index = data.draw(st.integers(min_value=0, max_value=len(steps) - 1))
        repeated = (*steps[: index + 1], *steps[index:])
        assert index + 1 in [number for number, _problem in problems_of_steps(repeated)]


@pytest.mark.parametrize(
    ("steps", "index", "problem"),
    [
        ((EscalationStep(0.5),), 0, "1 s to"),
        ((EscalationStep(MAX_WAIT_SECONDS + 1),), 0, "1 s to"),
        ((EscalationStep(float("nan")),), 0, "1 s to"),
        ((EscalationStep(5.0), EscalationStep(4.0)), 1, "later than"),
        ((*EVENT, EscalationStep(40.0)), 1, "close_out"),
        (tuple(EscalationStep(float(n + 1)) for n in range(9)), 8, "at most 8"),
    ],
)
def test_wrong_steps_are_refused(steps: tuple[EscalationStep, ...], index: int, problem: str) -> None:
    [(number, text)] = problems_of_steps(steps)
    assert number == index
    assert problem in text
