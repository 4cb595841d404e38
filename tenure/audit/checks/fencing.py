"""Whose writes the ledger took: only those of the newest claim that was opened, and only while it ran.

The rule is told here from the entries alone, without the rules that admitted them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tenure.audit.check import Check
from tenure.audit.history import Answer, Guard, LedgerEntry, Method
from tenure.audit.reading import claim, opens, own, place, settled_by_waits
from tenure.audit.task_history import TaskHistory
from tenure.domain.entries import (
    AssistantMessage,
    Compaction,
    ControlFailure,
    ControlStep,
    ModelAttempt,
    ModelFailure,
    ResultRejected,
    ToolIntent,
    ToolOutcome,
    ToolsDefined,
    Transition,
)
from tenure.domain.epochs import Fence, describe_epoch
from tenure.domain.states import TaskState

OWNERS_ONLY: Final = (
    ToolsDefined,
    ModelAttempt,
    ModelFailure,
    AssistantMessage,
    ToolIntent,
    ToolOutcome,
    ControlStep,
    ControlFailure,
    ResultRejected,
    Compaction,
)
"""What only the holder of a claim may write."""


def epochs_never_go_back(task: TaskHistory) -> Iterator[str]:
    """I3."""
    newest: LedgerEntry | None = None
    for entry in task.entries:
        if not entry.epoch:
            continue
        if newest is not None and entry.epoch < newest.epoch:
            yield (
                f"{place(entry)} was written under epoch {describe_epoch(entry.epoch)}, after entry "
                f"{newest.sequence} under the higher epoch {describe_epoch(newest.epoch)}"
            )
        else:
            newest = entry


def writes_are_the_holders(task: TaskHistory) -> Iterator[str]:
    """I4."""
    highest = Fence(0, "")
    holder: LedgerEntry | None = None
    for entry in task.entries:
        move = entry.body if isinstance(entry.body, Transition) else None
        if move is not None and move.to_state is TaskState.RUNNING:
            if entry.epoch < highest.epoch or (entry.epoch == highest.epoch and entry.fence != highest):
                yield f"{place(entry)} opened the task under {claim(entry.fence)}, after {claim(highest)} had opened it"
            highest, holder = max(highest, entry.fence), entry
            continue
        if entry.epoch and (holder is None or entry.fence != holder.fence):
            yield f"{place(entry)} was written under {claim(entry.fence)}, but {_holder(holder, highest)}"
        elif entry.epoch and holder is not None and entry.actor != holder.actor:
            yield f"{place(entry)} was written by {entry.actor}, while {holder.actor} held the task ({place(holder)})"
        if move is not None:
            holder = None


def commits_went_to_their_own_claim(task: TaskHistory) -> Iterator[str]:
    """I4, as own loops saw it: what was taken from a claim stands in the ledger under that claim.

    The ledger writes its own fence into entries, so a stale write that it took would look like the holder's.
    """
    taken = {entry.body_hash: entry for entry in task.entries if entry.epoch}
    for commit in task.operations:
        if commit.method is not Method.COMMIT or commit.answer is not Answer.OK or commit.fence is None:
            continue
        for entry in (taken[body] for body in commit.body_hashes if body in taken):
            if entry.fence != commit.fence and not _written_under(task, commit.fence, entry.body_hash):
                yield (
                    f"{place(entry)} was taken from {commit.client} under {claim(commit.fence)}, "
                    f"while {claim(entry.fence)} held the task"
                )


def opens_raise_the_fence(task: TaskHistory) -> Iterator[str]:
    """I4: who writes has opened, and who has opened is not above the fence."""
    for refusal in task.refusals:
        above = refusal.presented_epoch > refusal.current_epoch
        if refusal.guard is Guard.LEDGER and refusal.method == "Commit" and above:
            yield (
                f"a commit of {refusal.holder or 'somebody'} under epoch {describe_epoch(refusal.presented_epoch)} was "
                f"refused with the fence at {describe_epoch(refusal.current_epoch)}: its Open had not raised it"
            )


def the_row_is_the_newest_open(task: TaskHistory) -> Iterator[str]:
    """I4, of the snapshot."""
    newest = next(reversed(list(opens(task.entries))), None)
    if task.row is None or task.row.epoch == (newest.epoch if newest else 0):
        return
    told = f"{place(newest)} opened it under {describe_epoch(newest.epoch)}" if newest else "no entry opened it"
    yield f"the task's fence stands at epoch {describe_epoch(task.row.epoch)}, but {told}"


def owners_facts_have_an_opened_claim(task: TaskHistory) -> Iterator[str]:
    """I5, as far as the ledger alone tells."""
    opened = {entry.fence for entry in opens(task.entries)}
    for commit in task.operations:
        acknowledged = commit.method is Method.COMMIT and commit.answer is Answer.OK
        if acknowledged and commit.fence is not None and commit.fence not in opened:
            yield f"a commit of {commit.client} under {claim(commit.fence)} was taken; that claim never opened the task"
    by_waits = {entry.sequence for entry, _ in settled_by_waits(task)}
    for entry in own(task.entries):
        if entry.sequence in by_waits:
            continue
        if entry.epoch and entry.fence not in opened:
            yield f"{place(entry)} was written under {claim(entry.fence)}, which never opened the task"
        elif not entry.epoch and (isinstance(entry.body, OWNERS_ONLY) or _is_open(entry)):
            yield f"{place(entry)} was written by {entry.actor or 'nobody'} without a claim: only an owner may"


def _is_open(entry: LedgerEntry) -> bool:
    return isinstance(entry.body, Transition) and entry.body.to_state is TaskState.RUNNING


def _written_under(task: TaskHistory, fence: Fence, body_hash: bytes) -> bool:
    return any(entry.body_hash == body_hash and entry.fence == fence for entry in task.entries)


def _holder(holder: LedgerEntry | None, highest: Fence) -> str:
    if holder is not None:
        return f"{claim(holder.fence)} held the task"
    return f"nobody held the task (last opened by {claim(highest)})" if highest.epoch else "nobody had opened it"


CHECKS: Final = (
    Check("I3", "epochs never go back in a ledger", ("entries",), epochs_never_go_back),
    Check("I4", "only the newest opened claim writes, while it runs", ("entries",), writes_are_the_holders),
    Check("I4", "commits stand under their own claim", ("operations", "entries"), commits_went_to_their_own_claim),
    Check("I4", "who opened is not above the fence", ("refusals",), opens_raise_the_fence),
    Check("I4", "the row's fence is the newest Open", ("tasks", "entries"), the_row_is_the_newest_open),
    Check("I5", "owners' facts have an opened claim", ("entries",), owners_facts_have_an_opened_claim),
)
