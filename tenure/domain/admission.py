"""Decides whether an Open or a Commit passes the ledger's fence. The caller holds the lock of the task row.

The order of the checks is the protocol. A stale owner gets STALE_EPOCH before any other error, a repeated commit gets
the first answer again, and no refusal gives the caller a commit number to adopt.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from tenure.domain.errors import SequenceConflict, StaleEpoch, TenureError, WrongState
from tenure.domain.fencing import Fence, describe_epoch
from tenure.domain.states import TaskState


class FenceRow(NamedTuple):
    """The columns of a task row that admission reads under the row's lock.

    `opened`: the claim of the newest Open. `holds`: whether the claim still holds the task in the ledger; every
    transition out of RUNNING ends that. `granted`: the newest registered claim. `commit_number`: the number of the
    newest commit since the newest Open; `last_commit_*` belong to the same commit.
    """

    state: TaskState
    opened: Fence
    holds: bool
    granted: Fence
    commit_number: int
    last_commit_id: str
    last_commit_hash: bytes


class OpenVerdict(Enum):
    """Why an Open is admitted."""

    FRESH = auto()  # QUEUED: the first owner, or the next owner after a requeue
    TAKEOVER = auto()  # RUNNING under a lower epoch: the Open fences the former owner
    AGAIN = auto()  # the current claim repeats its Open, for example after a lost answer


class CommitVerdict(Enum):
    """The verdict on an admitted commit."""

    APPLY = auto()
    REPEAT = auto()  # already durable: return the first answer


def stale(presented: Fence, current: Fence) -> StaleEpoch:
    """Returns the refusal that every fence gives to a stale owner."""
    return StaleEpoch(
        f"epoch {describe_epoch(presented.epoch)} no longer holds this task; the fence is at "
        f"{describe_epoch(current.epoch)}",
        presented=presented.epoch,
        current=current.epoch,
    )


def decide_open(row: FenceRow, fence: Fence) -> OpenVerdict:
    """Returns why the Open is admitted.

    Raises StaleEpoch for a claim that is not the registered one or no longer holds the task, and WrongState for a task
    that is neither QUEUED nor RUNNING.
    """
    if fence != row.granted:
        raise stale(fence, max(row.granted, row.opened))
    if row.state is TaskState.RUNNING and row.holds and fence == row.opened:
        return OpenVerdict.AGAIN
    if row.state not in {TaskState.QUEUED, TaskState.RUNNING}:
        raise WrongState(
            f"a {row.state} task cannot be opened: only a QUEUED or RUNNING task can",
            metadata={"state": row.state.value},
        )
    if fence.epoch <= row.opened.epoch:
        raise stale(fence, row.opened)
    return OpenVerdict.FRESH if row.state is TaskState.QUEUED else OpenVerdict.TAKEOVER


def decide_commit(
    row: FenceRow, fence: Fence, commit_number: int, commit_id: str, payload_hash: bytes
) -> CommitVerdict | TenureError:
    """Returns the refusal instead of raising it: it must not affect the other commits of the same batch."""
    if fence != row.opened:
        return stale(fence, row.opened)
    is_last = commit_number == row.commit_number and commit_id == row.last_commit_id
    if is_last and payload_hash == row.last_commit_hash:
        return CommitVerdict.REPEAT  # also after the commit that ended the claim: its answer may have been lost
    if not row.holds or row.state is not TaskState.RUNNING:
        return stale(fence, row.opened)
    if commit_number != row.commit_number + 1:
        return SequenceConflict(
            "the commit number is neither the claim's last nor its next: open the task again and fold its entries",
            metadata={"presented": str(commit_number)},
        )
    return CommitVerdict.APPLY
