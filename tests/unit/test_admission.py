"""The admission of the ledger: who may open, who may commit, and what the others hear."""

from __future__ import annotations

import pytest

from tenure.domain.admission import CommitVerdict, FenceRow, OpenVerdict, decide_commit, decide_open
from tenure.domain.errors import SequenceConflict, StaleEpoch, WrongState
from tenure.domain.fencing import Fence
from tenure.domain.states import TERMINAL, TaskState

NONE, OLD, NEW = Fence(0, ""), Fence(7, "old"), Fence(9, "new")
QUEUED = FenceRow(TaskState.QUEUED, NONE, False, OLD, 0, "", b"")
RUNNING = FenceRow(TaskState.RUNNING, OLD, True, OLD, 3, "c3", b"h3")


def test_the_registered_claim_opens_a_queued_task() -> None:
    assert decide_open(QUEUED, OLD) is OpenVerdict.FRESH


def test_a_claim_that_is_not_registered_opens_nothing() -> None:
    with pytest.raises(StaleEpoch):
        decide_open(QUEUED, NEW)


def test_an_equal_epoch_of_another_claim_opens_nothing() -> None:
    with pytest.raises(StaleEpoch):
        decide_open(QUEUED, Fence(OLD.epoch, "other"))


def test_a_higher_epoch_takes_a_running_task_over() -> None:
    assert decide_open(RUNNING._replace(granted=NEW), NEW) is OpenVerdict.TAKEOVER


def test_an_old_claim_cannot_open_once_a_newer_one_is_registered() -> None:
    with pytest.raises(StaleEpoch) as refused:
        decide_open(RUNNING._replace(granted=NEW), OLD)
    assert refused.value.metadata == {"presented": "7", "current": "9"}


def test_the_current_claim_may_open_again() -> None:
    assert decide_open(RUNNING, OLD) is OpenVerdict.AGAIN


def test_a_claim_whose_task_was_requeued_opens_no_more() -> None:
    with pytest.raises(StaleEpoch):
        decide_open(RUNNING._replace(state=TaskState.QUEUED, holds=False), OLD)


@pytest.mark.parametrize("state", sorted(TERMINAL | {TaskState.WAITING_USER, TaskState.RETRY_SCHEDULED}))
def test_a_task_that_is_not_to_be_run_is_not_opened(state: TaskState) -> None:
    with pytest.raises(WrongState) as refused:
        decide_open(RUNNING._replace(state=state, holds=False, granted=NEW), NEW)
    assert refused.value.metadata == {"state": state.value}


def test_the_next_commit_is_applied() -> None:
    assert decide_commit(RUNNING, OLD, 4, "c4", b"h4") is CommitVerdict.APPLY


def test_the_last_commit_repeated_is_recognised() -> None:
    assert decide_commit(RUNNING, OLD, 3, "c3", b"h3") is CommitVerdict.REPEAT


def test_a_repeated_close_out_is_recognised_without_the_claim() -> None:
    closed = RUNNING._replace(state=TaskState.SUCCEEDED, holds=False)
    assert decide_commit(closed, OLD, 3, "c3", b"h3") is CommitVerdict.REPEAT


@pytest.mark.parametrize(
    ("number", "commit_id", "payload"), [(3, "c3", b"other"), (3, "other", b"h3"), (2, "c2", b"h2"), (5, "c5", b"h5")]
)
def test_any_other_number_is_a_conflict(number: int, commit_id: str, payload: bytes) -> None:
    assert isinstance(decide_commit(RUNNING, OLD, number, commit_id, payload), SequenceConflict)


def test_conflict_hides_the_expected_number() -> None:
    refused = decide_commit(RUNNING, OLD, 9, "c9", b"h9")
    assert isinstance(refused, SequenceConflict)
    assert refused.metadata == {"presented": "9"}


def test_a_stale_owner_is_refused_before_repeats_are_checked() -> None:
    taken_over = RUNNING._replace(opened=NEW, granted=NEW)
    assert isinstance(decide_commit(taken_over, OLD, 3, "c3", b"h3"), StaleEpoch)


def test_another_claim_of_the_current_epoch_cannot_commit() -> None:
    assert isinstance(decide_commit(RUNNING, Fence(OLD.epoch, "other"), 4, "c4", b"h4"), StaleEpoch)


def test_an_owner_is_fenced_while_its_task_is_queued() -> None:
    requeued = RUNNING._replace(state=TaskState.QUEUED, holds=False)
    assert isinstance(decide_commit(requeued, OLD, 4, "c4", b"h4"), StaleEpoch)


def test_grant_alone_does_not_raise_the_fence() -> None:
    """Old writes count until the next Open, and are visible to it."""
    assert decide_commit(RUNNING._replace(granted=NEW), OLD, 4, "c4", b"h4") is CommitVerdict.APPLY
