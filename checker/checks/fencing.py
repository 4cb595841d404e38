"""Checks of claims and fences: accepted writes, claims in etcd, and refused writes (I1 to I6, I29).

The ledger must accept writes only from the newest opened claim, and only while that claim holds the task. The checks
derive this rule from the entries alone, independently of the code that admits writes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from checker.check import Check, SumCheck, Violation
from checker.history import (
    GenerationChange,
    Grant,
    Guard,
    LedgerEntry,
    Method,
    OperationResult,
    RefusalRecord,
    TaskHistory,
)
from checker.reading import TIME_GRAIN_SECONDS, claim, of_kind, opens, own, place, settled_by_waits
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
from tenure.domain.fencing import Fence, describe_epoch
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
"""The kinds of entries that only the owner of a claim may write."""


def epochs_never_decrease(task: TaskHistory) -> Iterator[str]:
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


def only_the_owner_writes(task: TaskHistory) -> Iterator[str]:
    """I4."""
    highest = Fence(0, "")
    holder: LedgerEntry | None = None
    for entry in task.entries:
        transition = entry.body if isinstance(entry.body, Transition) else None
        if transition is not None and transition.to_state is TaskState.RUNNING:
            if entry.epoch < highest.epoch or (entry.epoch == highest.epoch and entry.fence != highest):
                yield f"{place(entry)} opened the task under {claim(entry.fence)}, after {claim(highest)} had opened it"
            highest, holder = max(highest, entry.fence), entry
            continue
        if entry.epoch and (holder is None or entry.fence != holder.fence):
            yield f"{place(entry)} was written under {claim(entry.fence)}, but {_holder(holder, highest)}"
        elif entry.epoch and holder is not None and entry.actor != holder.actor:
            yield f"{place(entry)} was written by {entry.actor}, while {holder.actor} held the task ({place(holder)})"
        if transition is not None:
            holder = None


def commits_have_their_own_claim(task: TaskHistory) -> Iterator[str]:
    """I4, for loops outside of Tenure's worker: the entries of an accepted commit have the commit's claim.

    The ledger writes its own fence into entries, so an accepted stale write would look like a write of the owner.
    """
    accepted = {entry.body_hash: entry for entry in task.entries if entry.epoch}
    for commit in task.operations:
        if commit.method is not Method.COMMIT or commit.answer is not OperationResult.OK or commit.fence is None:
            continue
        for entry in (accepted[body] for body in commit.body_hashes if body in accepted):
            if entry.fence != commit.fence and not _written_under(task, commit.fence, entry.body_hash):
                yield (
                    f"{place(entry)} was accepted from {commit.client} under {claim(commit.fence)}, "
                    f"while {claim(entry.fence)} held the task"
                )


def opens_raise_the_fence(task: TaskHistory) -> Iterator[str]:
    """I4: an owner opens before it writes, so the epoch of a commit is never above the fence."""
    for refusal in task.refusals:
        above = refusal.presented_epoch > refusal.current_epoch
        if refusal.guard is Guard.LEDGER and refusal.method == "Commit" and above:
            yield (
                f"a commit of {refusal.holder or 'an unknown worker'} under epoch "
                f"{describe_epoch(refusal.presented_epoch)} was refused with "
                f"the fence at {describe_epoch(refusal.current_epoch)}: its Open had not raised the fence"
            )


def the_row_has_the_newest_fence(task: TaskHistory) -> Iterator[str]:
    """I4, for the task row."""
    newest = next(reversed(list(opens(task.entries))), None)
    if task.row is None or task.row.epoch == (newest.epoch if newest else 0):
        return
    message = f"{place(newest)} opened it under {describe_epoch(newest.epoch)}" if newest else "no entry opened it"
    yield f"the fence in the task row is epoch {describe_epoch(task.row.epoch)}, but {message}"


def owners_entries_have_an_opened_claim(task: TaskHistory) -> Iterator[str]:
    """I5, for the ledger and acknowledged commits."""
    opened = {entry.fence for entry in opens(task.entries)}
    for commit in task.operations:
        acknowledged = commit.method is Method.COMMIT and commit.answer is OperationResult.OK
        if acknowledged and commit.fence is not None and commit.fence not in opened:
            yield f"a commit of {commit.client} was accepted under {claim(commit.fence)}, which never opened the task"
    by_waits = {entry.sequence for entry, _ in settled_by_waits(task)}
    for entry in own(task.entries):
        if entry.sequence in by_waits:
            continue
        if entry.epoch and entry.fence not in opened:
            yield f"{place(entry)} was written under {claim(entry.fence)}, which never opened the task"
        elif not entry.epoch and (isinstance(entry.body, OWNERS_ONLY) or _is_open(entry)):
            yield f"{place(entry)} was written by {entry.actor or 'no actor'} without a claim, but only an owner may"


def _is_open(entry: LedgerEntry) -> bool:
    return isinstance(entry.body, Transition) and entry.body.to_state is TaskState.RUNNING


def _written_under(task: TaskHistory, fence: Fence, body_hash: bytes) -> bool:
    return any(entry.body_hash == body_hash and entry.fence == fence for entry in task.entries)


def _holder(holder: LedgerEntry | None, highest: Fence) -> str:
    if holder is not None:
        return f"{claim(holder.fence)} held the task"
    return f"no claim held the task (last opened by {claim(highest)})" if highest.epoch else "no claim had opened it"


_FENCING_CHECKS: Final = (
    Check("I3", "epochs of writes never decrease", ("entries",), epochs_never_decrease),
    Check("I4", "only the newest opened claim writes, while it holds the task", ("entries",), only_the_owner_writes),
    Check("I4", "entries have the claim of their commit", ("operations", "entries"), commits_have_their_own_claim),
    Check("I4", "no commit has an epoch above the fence", ("refusals",), opens_raise_the_fence),
    Check("I4", "the task row has the newest fence", ("tasks", "entries"), the_row_has_the_newest_fence),
    Check("I5", "entries of owners have an opened claim", ("entries",), owners_entries_have_an_opened_claim),
)


# Claims in etcd: their epochs grow, one claim holds a task at a time, and the ledger has only claims that etcd had.


def epochs_of_claims_grow(task: TaskHistory) -> Iterator[str]:
    """I1."""
    for before, after in pairwise(task.grants):
        if after.epoch <= before.epoch:
            yield (
                f"etcd created {claim(after.fence)} after {claim(before.fence)}: "
                "the later claim does not have the higher epoch"
            )


def claims_do_not_overlap(task: TaskHistory) -> Iterator[str]:
    """I2: one claim of a task at a time, and each claim's key is put once."""
    for grant in task.grants:
        if grant.last_revision not in {0, grant.created_revision}:
            yield (
                f"the key of {claim(grant.fence)} was put again at revision {grant.last_revision}: "
                "its revision no longer identifies the claim"
            )
    for before, after in pairwise(sorted(task.grants, key=lambda grant: (grant.life, grant.created_revision))):
        gone = before.life != after.life or (
            before.deleted_revision is not None and before.deleted_revision < after.created_revision
        )
        if not gone:
            until = "the end" if before.deleted_revision is None else f"revision {before.deleted_revision}"
            yield f"{claim(before.fence)} existed until {until}, when {claim(after.fence)} was created"


def claims_open_once(task: TaskHistory) -> Iterator[str]:
    """I2, for the ledger: a claim opens the task once and does not come back after it ended."""
    first: dict[Fence, LedgerEntry] = {}
    for entry in opens(task.entries):
        if entry.fence in first:
            yield f"{place(entry)} opened the task under {claim(entry.fence)} again, after {place(first[entry.fence])}"
        first.setdefault(entry.fence, entry)


def epochs_match_their_keys(task: TaskHistory) -> Iterator[str]:
    """I2: the epoch of an Open is that of the claim's key in etcd."""
    created = {grant.claim_id: grant for grant in task.grants}
    for entry in opens(task.entries):
        grant = created.get(entry.claim_id)
        if grant is not None and grant.epoch != entry.epoch:
            yield (
                f"{place(entry)} opened the task under epoch {describe_epoch(entry.epoch)}, but the key of claim "
                f"{entry.claim_id} was created as {describe_epoch(grant.epoch)}"
            )


def opened_claims_were_in_etcd(task: TaskHistory) -> Iterator[str]:
    """I5."""
    created = {grant.claim_id for grant in task.grants}
    for entry in opens(task.entries):
        if entry.claim_id not in created:
            yield f"{place(entry)} opened the task under {claim(entry.fence)}, which etcd never had"


def the_registered_grant_was_in_etcd(task: TaskHistory) -> Iterator[str]:
    """I5, for a registered grant that was not opened yet."""
    granted = task.row.granted if task.row is not None else None
    if granted is not None and granted.epoch and granted not in {grant.fence for grant in task.grants}:
        yield f"the ledger has registered {claim(granted)}, which etcd never had"


class _Generations:
    """I29: every claim has the generation that etcd had when the claim was created. Keeps only these two sources."""

    def __init__(self) -> None:
        self._grants: list[Grant] = []
        self._changes: list[GenerationChange] = []

    def add(self, task: TaskHistory) -> None:
        self._grants += task.grants
        self._changes += task.generations

    def violations(self) -> Iterator[Violation]:
        changes = _by_life(self._changes)
        for grant in self._grants:
            generation = _generation_at(changes.get(grant.life, []), grant.created_revision)
            if generation != grant.generation:
                yield Violation(
                    "I29",
                    grant.task_id,
                    f"{claim(grant.fence)} has generation {grant.generation}, but etcd had {generation} at that moment",
                )
        for life, life_changes in changes.items():
            for before, after in pairwise(life_changes):
                if after.generation < before.generation:
                    message = f"from {before.generation} to {after.generation} at revision {after.revision}"
                    yield Violation("I29", "", f"etcd's generation decreased {message} (life {life} of etcd)")


def _by_life(changes: Iterable[GenerationChange]) -> dict[int, list[GenerationChange]]:
    lives: defaultdict[int, list[GenerationChange]] = defaultdict(list)
    for change in sorted(changes, key=lambda change: change.revision):
        lives[change.life].append(change)
    return dict(lives)


def _generation_at(changes: list[GenerationChange], revision: int) -> int:
    """Returns the generation at a revision, or 0 before the first put."""
    index = bisect_right(changes, revision, key=lambda change: change.revision)
    return changes[index - 1].generation if index else 0


_GRANTS_CHECKS: Final = (
    Check("I1", "later claims have higher epochs", ("grants",), epochs_of_claims_grow),
    Check("I2", "a task has one claim at a time, whose key is put once", ("grants",), claims_do_not_overlap),
    Check("I2", "a claim opens its task once", ("entries",), claims_open_once),
    Check("I2", "an epoch is its key's create revision", ("grants", "entries"), epochs_match_their_keys),
    Check("I5", "opened claims were in etcd", ("grants", "entries"), opened_claims_were_in_etcd),
    Check("I5", "registered claims were in etcd", ("grants", "tasks"), the_registered_grant_was_in_etcd),
    SumCheck("I29", "claims have etcd's generation", ("grants", "generations"), _Generations),
)


# Refused writes: fences must refuse only stale writes.


def ledger_refusals_were_stale(task: TaskHistory) -> Iterator[str]:
    """I6.

    The ledger also refuses tokens above the fence: their grant was not registered, or the task not opened yet.
    """
    for refusal in task.refusals:
        if refusal.guard is not Guard.LEDGER:
            continue
        if refusal.presented_epoch == refusal.current_epoch and _still_held(task, refusal):
            yield f"{_describe(refusal)}, although that claim held the task"


def refused_owners_had_lost_their_claim(task: TaskHistory) -> Iterator[str]:
    """I6: an owner that was refused without a newer claim had lost its claim in etcd, or had released the task."""
    existing = {grant.epoch for grant in task.grants if grant.deleted_revision is None}
    ended_by_ledger = {entry.epoch for entry in _ended_by_ledger(task)}
    for refusal in task.refusals:
        same = refusal.guard is Guard.LEDGER and refusal.presented_epoch == refusal.current_epoch
        if same and refusal.presented_epoch in existing & ended_by_ledger:
            yield f"{_describe(refusal)}: the ledger had ended that claim, but its key is still in etcd"


def refusing_fences_were_in_etcd(task: TaskHistory) -> Iterator[str]:
    """I6: the fence that refused a write belonged to an existing claim."""
    known = {entry.epoch for entry in task.entries} | {grant.epoch for grant in task.grants}
    for refusal in task.refusals:
        if refusal.current_epoch and refusal.current_epoch not in known:
            yield f"{_describe(refusal)}, but etcd never had the claim of that fence"


def tool_refusals_were_stale(task: TaskHistory) -> Iterator[str]:
    """I6, for the tool fence: it refuses a lower epoch, another claim with the same epoch, or a closed claim."""
    for refusal in task.refusals:
        if refusal.guard is not Guard.TOOLS:
            continue
        fence = task.fence
        if refusal.presented_epoch > refusal.current_epoch:
            yield f"{_describe(refusal)}, although its epoch is higher than the fence"
        elif fence is None or fence.epoch < refusal.current_epoch:
            current = "-" if fence is None else describe_epoch(fence.epoch)
            yield f"{_describe(refusal)}, but the tool fence is only at {current}"
        elif refusal.presented_epoch == fence.epoch and not fence.closed and not _epoch_is_ambiguous(task, fence.epoch):
            yield f"{_describe(refusal)}, although the tool fence has that epoch and is not closed"


def _epoch_is_ambiguous(task: TaskHistory, epoch: int) -> bool:
    """Whether two claims have this epoch, after a restore of etcd. The claim id then decides, but refusals lack it."""
    return len({grant.claim_id for grant in task.grants if grant.epoch == epoch}) > 1


def _still_held(task: TaskHistory, refusal: RefusalRecord) -> bool:
    """Whether the presented claim held the task at the refusal, within the difference of the clocks."""
    if _epoch_is_ambiguous(task, refusal.presented_epoch):
        return False
    held_since: LedgerEntry | None = None
    for entry, transition in of_kind(task.entries, Transition):
        if transition.to_state is TaskState.RUNNING:
            held_since = entry if entry.epoch == refusal.presented_epoch else None
        elif held_since is not None:
            latest = refusal.refused_at + task.clock_slack_seconds + TIME_GRAIN_SECONDS
            return entry.recorded_at > latest and held_since.recorded_at <= refusal.refused_at
    return held_since is not None


def _ended_by_ledger(task: TaskHistory) -> Iterator[LedgerEntry]:
    """Yields the opening entries of claims whose run the ledger ended without a write of the owner."""
    holder: LedgerEntry | None = None
    for entry, transition in of_kind(task.entries, Transition):
        if transition.to_state is TaskState.RUNNING:
            holder = entry
        elif holder is not None:
            if not entry.epoch:
                yield holder
            holder = None


def _describe(refusal: RefusalRecord) -> str:
    return (
        f"the {'tool service' if refusal.guard is Guard.TOOLS else 'ledger'} refused {refusal.method} of "
        f"{refusal.holder or 'an unknown worker'} under epoch {describe_epoch(refusal.presented_epoch)} "
        f"(fence at {describe_epoch(refusal.current_epoch)})"
    )


_REFUSALS_CHECKS: Final = (
    Check("I6", "the ledger refused only stale writes", ("refusals", "entries"), ledger_refusals_were_stale),
    Check(
        "I6",
        "refused owners had lost their claim",
        ("refusals", "grants", "entries"),
        refused_owners_had_lost_their_claim,
    ),
    Check("I6", "fences that refused were in etcd", ("refusals", "grants", "entries"), refusing_fences_were_in_etcd),
    Check("I6", "the tool service refused only stale calls", ("refusals", "fences"), tool_refusals_were_stale),
)


CHECKS: Final = (
    *_FENCING_CHECKS,
    *_GRANTS_CHECKS,
    *_REFUSALS_CHECKS,
)
