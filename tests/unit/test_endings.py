"""Endings that nobody has to carry out: from wherever a task stands, the moves to its end are all in the table."""

import itertools

import pytest

from tenure.domain.endings import Ending, follow_up
from tenure.domain.states import MOVES, TERMINAL, TaskState

ENDS = (TaskState.CANCELLED, TaskState.TIMED_OUT, TaskState.FAILED)
IDLE = tuple(state for state in TaskState if state not in TERMINAL and state is not TaskState.RUNNING)
CASES = tuple(itertools.product(IDLE, ENDS))


@pytest.mark.parametrize(("state", "end"), CASES)
def test_a_task_that_nobody_holds_reaches_its_end_by_allowed_moves(state: TaskState, end: TaskState) -> None:
    ending = Ending(end, "WHY", "", "")
    for _ in range(2):
        target = follow_up(state, ending, has_open_calls=False)
        assert target is not None
        assert target in MOVES[state]
        state = target
        if state in TERMINAL:
            break
    assert state is end


@pytest.mark.parametrize(("state", "end"), CASES)
def test_a_task_with_an_open_call_only_goes_where_it_can_be_opened(state: TaskState, end: TaskState) -> None:
    target = follow_up(state, Ending(end, "WHY", "", ""), has_open_calls=True)
    assert target is (None if state is TaskState.QUEUED else TaskState.QUEUED)
