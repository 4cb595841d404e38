"""The ledger's door: what an Open or a Commit may do, decided under the lock of the task's row.

The order of the questions is the protocol. A stale owner hears STALE_EPOCH before anything else, a repeated commit is
answered as the first time, and nobody is told a number to adopt.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from tenure.domain.errors import SequenceConflict, StaleEpoch, TenureError, WrongState
from tenure.domain.fencing import Fence, describe_epoch
from tenure.domain.states import TaskState


@dataclass(frozen=True, slots=True)
class FenceRow:
    """What the task's row says, read under its lock.

    `opened`: the claim of the newest Open. `holds`: it is still the ledger's; every move out of RUNNING takes it away.
    `granted`: the newest registered claim. `last_commit_*`: the commit with number `commit_number` of the newest Open.
    """

    state: TaskState
    opened: Fence
    holds: bool
    granted: Fence
    commit_number: int
    last_commit_id: str
    last_commit_hash: bytes


class OpenVerdict(Enum):
    """How an Open is let in."""

    FRESH = auto()  # QUEUED: the first owner, or one after a requeue
    TAKEOVER = auto()  # RUNNING under a lower epoch: that owner is fenced by this
    AGAIN = auto()  # the current claim asks again, for example after a lost answer


class CommitVerdict(Enum):
    """How a commit is let in."""

    APPLY = auto()
    REPEAT = auto()  # durable already: answer as the first time


def stale(presented: Fence, current: Fence) -> StaleEpoch:
    """The refusal a stale owner gets from every guard."""
    return StaleEpoch(
        f"epoch {describe_epoch(presented.epoch)} no longer holds this task; the fence is at "
        f"{describe_epoch(current.epoch)}",
        presented=presented.epoch,
        current=current.epoch,
    )


def decide_open(row: FenceRow, fence: Fence) -> OpenVerdict:
    """Raises StaleEpoch for a claim that is not the registered one or no longer holds; WrongState otherwise."""
    if fence != row.granted:
        raise stale(fence, max(row.granted, row.opened))
    if row.state is TaskState.RUNNING and row.holds and fence == row.opened:
        return OpenVerdict.AGAIN
    if row.state not in {TaskState.QUEUED, TaskState.RUNNING}:
        raise WrongState(f"a {row.state} task cannot be opened", metadata={"state": row.state.value})
    if fence.epoch <= row.opened.epoch:
        raise stale(fence, row.opened)
    return OpenVerdict.FRESH if row.state is TaskState.QUEUED else OpenVerdict.TAKEOVER


def decide_commit(
    row: FenceRow, fence: Fence, commit_number: int, commit_id: str, payload_hash: bytes
) -> CommitVerdict | TenureError:
    """Gives refusals back instead of raising them: in a batch they must not harm their neighbours."""
    if fence != row.opened:
        return stale(fence, row.opened)
    is_last = commit_number == row.commit_number and commit_id == row.last_commit_id
    if is_last and payload_hash == row.last_commit_hash:
        return CommitVerdict.REPEAT  # also after the commit that gave the claim up: its answer may have been lost
    if not row.holds or row.state is not TaskState.RUNNING:
        return stale(fence, row.opened)
    if commit_number != row.commit_number + 1:
        return SequenceConflict(
            "this commit number is neither the next nor the last of the claim: open again and fold anew",
            metadata={"presented": str(commit_number)},
        )
    return CommitVerdict.APPLY
