"""What the fences refused: only what was stale."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tenure.audit.check import Check
from tenure.audit.history import Guard, LedgerEntry, Refusal
from tenure.audit.reading import TIME_GRAIN_SECONDS, of_kind
from tenure.audit.task_history import TaskHistory
from tenure.domain.entries import Transition
from tenure.domain.epochs import describe_epoch
from tenure.domain.states import TaskState


def ledger_refusals_were_stale(task: TaskHistory) -> Iterator[str]:
    """I6. A token above the fence is refused too: it was not registered, or not opened yet."""
    for refusal in task.refusals:
        if refusal.guard is not Guard.LEDGER:
            continue
        if refusal.presented_epoch == refusal.current_epoch and _still_held(task, refusal):
            yield f"{_told(refusal)}, although that claim held the task"


def the_refused_had_lost_their_claim(task: TaskHistory) -> Iterator[str]:
    """I6: who was refused although nobody newer had come had really lost its claim, or given the task up itself."""
    kept = {grant.epoch for grant in task.grants if grant.deleted_revision is None}
    taken = {entry.epoch for entry in _taken_away(task)}
    for refusal in task.refusals:
        same = refusal.guard is Guard.LEDGER and refusal.presented_epoch == refusal.current_epoch
        if same and refusal.presented_epoch in kept & taken:
            yield f"{_told(refusal)}: the ledger had taken the task from it, and its claim is still in etcd"


def fences_that_refused_were_granted(task: TaskHistory) -> Iterator[str]:
    """I6: what stood in the way was a claim that there was."""
    made = {entry.epoch for entry in task.entries} | {grant.epoch for grant in task.grants}
    for refusal in task.refusals:
        if refusal.current_epoch and refusal.current_epoch not in made:
            yield f"{_told(refusal)}, but etcd never made that claim"


def tool_refusals_were_stale(task: TaskHistory) -> Iterator[str]:
    """I6, of the tools' fence: a lower epoch, another claim of the same one, or an ended one."""
    for refusal in task.refusals:
        if refusal.guard is not Guard.TOOLS:
            continue
        fence = task.fence
        if refusal.presented_epoch > refusal.current_epoch:
            yield f"{_told(refusal)}, although it is higher than the fence"
        elif fence is None or fence.epoch < refusal.current_epoch:
            stands = "-" if fence is None else describe_epoch(fence.epoch)
            yield f"{_told(refusal)}, but the tools' fence stands at {stands} only"
        elif refusal.presented_epoch == fence.epoch and not fence.closed and not _number_given_twice(task, fence.epoch):
            yield f"{_told(refusal)}, although the tools' fence stands there and is not closed"


def _number_given_twice(task: TaskHistory, epoch: int) -> bool:
    """A restored etcd may give a number again; then the claim decides, which a refusal does not tell."""
    return len({grant.claim_id for grant in task.grants if grant.epoch == epoch}) > 1


def _still_held(task: TaskHistory, refusal: Refusal) -> bool:
    """Whether the presented claim had the task when it was refused, by the ledger's clock and the refuser's."""
    if _number_given_twice(task, refusal.presented_epoch):
        return False
    held_since: LedgerEntry | None = None
    for entry, move in of_kind(task.entries, Transition):
        if move.to_state is TaskState.RUNNING:
            held_since = entry if entry.epoch == refusal.presented_epoch else None
        elif held_since is not None:
            latest = refusal.refused_at + task.clock_slack_seconds + TIME_GRAIN_SECONDS
            return entry.recorded_at > latest and held_since.recorded_at <= refusal.refused_at
    return held_since is not None


def _taken_away(task: TaskHistory) -> Iterator[LedgerEntry]:
    """The opens whose task the ledger took away by itself."""
    holder: LedgerEntry | None = None
    for entry, move in of_kind(task.entries, Transition):
        if move.to_state is TaskState.RUNNING:
            holder = entry
        elif holder is not None:
            if not entry.epoch:
                yield holder
            holder = None


def _told(refusal: Refusal) -> str:
    return (
        f"the {'tools' if refusal.guard is Guard.TOOLS else 'ledger'} refused {refusal.method} of "
        f"{refusal.holder or 'somebody'} under epoch {describe_epoch(refusal.presented_epoch)} "
        f"(fence at {describe_epoch(refusal.current_epoch)})"
    )


CHECKS: Final = (
    Check("I6", "the ledger refused only stale claims", ("refusals", "entries"), ledger_refusals_were_stale),
    Check("I6", "who is refused has lost", ("refusals", "grants", "entries"), the_refused_had_lost_their_claim),
    Check("I6", "refusing fences were granted", ("refusals", "grants", "entries"), fences_that_refused_were_granted),
    Check("I6", "the tools refused only stale claims", ("refusals", "fences"), tool_refusals_were_stale),
)
