"""Whose writes the ledger took: only those of the newest claim that was opened, and only while it ran.

The rule is told here from the entries alone, without the rules that admitted them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tenure.audit.check import Check
from tenure.audit.history import LedgerEntry
from tenure.audit.reading import claim, opens, place
from tenure.audit.task_history import TaskHistory
from tenure.domain.entries import (
    AssistantMessage,
    ModelAttempt,
    ModelFailure,
    ToolIntent,
    ToolOutcome,
    ToolsDefined,
    Transition,
)
from tenure.domain.epochs import Fence, describe_epoch
from tenure.domain.states import TaskState

OWNERS_ONLY: Final = (ToolsDefined, ModelAttempt, ModelFailure, AssistantMessage, ToolIntent, ToolOutcome)
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
    highest = 0
    holder: Fence | None = None
    for entry in task.entries:
        move = entry.body if isinstance(entry.body, Transition) else None
        if move is not None and move.to_state is TaskState.RUNNING:
            if entry.epoch <= highest:
                yield (
                    f"{place(entry)} opened the task under epoch {describe_epoch(entry.epoch)}, although "
                    f"{describe_epoch(highest)} had been opened before: the fence was not raised"
                )
            highest, holder = max(highest, entry.epoch), entry.fence
            continue
        if entry.epoch and entry.fence != holder:
            yield f"{place(entry)} was written under {claim(entry.fence)}, but {_holder(holder, highest)}"
        if move is not None:
            holder = None


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
    for entry in task.entries:
        if entry.epoch and entry.fence not in opened:
            yield f"{place(entry)} was written under {claim(entry.fence)}, which never opened the task"
        elif not entry.epoch and (isinstance(entry.body, OWNERS_ONLY) or _is_open(entry)):
            yield f"{place(entry)} was written by {entry.actor or 'nobody'} without a claim: only an owner may"


def _is_open(entry: LedgerEntry) -> bool:
    return isinstance(entry.body, Transition) and entry.body.to_state is TaskState.RUNNING


def _holder(holder: Fence | None, highest: int) -> str:
    if holder is not None:
        return f"{claim(holder)} held the task"
    return f"nobody held the task (last opened under {describe_epoch(highest)})" if highest else "nobody had opened it"


CHECKS: Final = (
    Check("I3", "epochs never go back in a ledger", ("entries",), epochs_never_go_back),
    Check("I4", "only the newest opened claim writes, while it runs", ("entries",), writes_are_the_holders),
    Check("I4", "the row's fence is the newest Open", ("tasks", "entries"), the_row_is_the_newest_open),
    Check("I5", "owners' facts have an opened claim", ("entries",), owners_facts_have_an_opened_claim),
)
