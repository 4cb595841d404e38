"""The table of moves."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tenure.domain.errors import WrongState
from tenure.domain.states import MOVES, TERMINAL, TaskState, check_transition, is_terminal


def test_every_state_stands_in_the_table() -> None:
    assert set(MOVES) == set(TaskState)


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_an_ended_task_moves_no_more_in_its_attempt(state: TaskState) -> None:
    assert is_terminal(state)
    for target in TaskState:
        with pytest.raises(WrongState):
            check_transition(state, target)


@pytest.mark.parametrize("state", sorted(TaskState))
def test_only_a_failed_task_begins_another_attempt(state: TaskState) -> None:
    allowed = []
    for target in TaskState:
        with suppress(WrongState):
            check_transition(state, target, begins_attempt=True)
            allowed.append(target)
    assert allowed == ([TaskState.QUEUED] if state in TERMINAL - {TaskState.SUCCEEDED} else [])


def test_an_operator_can_let_any_living_task_succeed() -> None:
    assert {state for state in TaskState if TaskState.SUCCEEDED in MOVES[state]} == set(TaskState) - TERMINAL


def test_only_a_queued_task_is_opened() -> None:
    assert [state for state in TaskState if TaskState.RUNNING in MOVES[state]] == [TaskState.QUEUED]


def test_every_living_state_can_be_cancelled() -> None:
    assert all(TaskState.CANCELLED in MOVES[state] for state in TaskState if not is_terminal(state))


def test_every_state_can_be_reached_from_queued() -> None:
    reached, frontier = {TaskState.QUEUED}, [TaskState.QUEUED]
    while frontier:
        new = MOVES[frontier.pop()] - reached
        reached |= new
        frontier += new
    assert reached == set(TaskState)
