"""What the fault suite takes for undone: the law itself is tried here on histories that keep it and that break it."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.domain.entries import Entry, Transition
from tenure.domain.states import Reason, TaskState
from tests.fault.suite.between import Action, Done
from tests.fault.suite.operator_laws import undone

pytestmark = pytest.mark.faults
FIRST, SECOND = 11, 12


def moved(sequence: int, to_state: TaskState, reason: str = "", epoch: int = 0) -> Entry:
    return Entry(sequence, 0, Transition(to_state, reason), epoch=epoch)


HISTORY = [
    moved(1, TaskState.QUEUED),
    moved(2, TaskState.RUNNING, epoch=FIRST),
    moved(3, TaskState.QUEUED, Reason.OPERATOR_TRANSFER),
    moved(4, TaskState.RUNNING, epoch=SECOND),
]


def transfer(seen_epoch: int, sequence: int = 3) -> Done:
    return Done(Action.TRANSFER, "task", 1, sequence, seen_epoch, "worker.after_open")


@pytest.mark.parametrize("seen_epoch", [0, FIRST])
@pytest.mark.parametrize("sequence", [3, 4])
def test_a_transfer_allows_writes_of_the_next_owner_only(seen_epoch: Any, sequence: int) -> None:
    history = [*HISTORY, moved(5, TaskState.QUEUED, "CLAIM_LOST"), moved(6, TaskState.QUEUED, epoch=SECOND)]
    assert list(undone(history, [transfer(seen_epoch, sequence)])) == []


@pytest.mark.parametrize("seen_epoch", [0, FIRST])
def test_a_transfer_is_undone_when_the_former_owner_writes_again(seen_epoch: Any) -> None:
    [broken] = undone([*HISTORY, moved(5, TaskState.QUEUED, epoch=FIRST)], [transfer(seen_epoch)])
    assert "undone or never done" in broken
