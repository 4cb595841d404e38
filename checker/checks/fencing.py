"""Whose writes the ledger took: only those of the newest claim that was opened, and only while it ran.

The rule is told here from the entries alone, without the rules that admitted them.
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
from checker.reading import (
    TIME_GRAIN_SECONDS,
    claim,
    of_kind,
    opens,
    own,
    place,
    settled_by_waits,
)
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
        if commit.method is not Method.COMMIT or commit.answer is not OperationResult.OK or commit.fence is None:
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
    message = f"{place(newest)} opened it under {describe_epoch(newest.epoch)}" if newest else "no entry opened it"
    yield f"the task's fence stands at epoch {describe_epoch(task.row.epoch)}, but {message}"


def owners_facts_have_an_opened_claim(task: TaskHistory) -> Iterator[str]:
    """I5, as far as the ledger alone tells."""
    opened = {entry.fence for entry in opens(task.entries)}
    for commit in task.operations:
        acknowledged = commit.method is Method.COMMIT and commit.answer is OperationResult.OK
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


_FENCING_CHECKS: Final = (
    Check("I3", "epochs never go back in a ledger", ("entries",), epochs_never_go_back),
    Check("I4", "only the newest opened claim writes, while it runs", ("entries",), writes_are_the_holders),
    Check("I4", "commits stand under their own claim", ("operations", "entries"), commits_went_to_their_own_claim),
    Check("I4", "who opened is not above the fence", ("refusals",), opens_raise_the_fence),
    Check("I4", "the row's fence is the newest Open", ("tasks", "entries"), the_row_is_the_newest_open),
    Check("I5", "owners' facts have an opened claim", ("entries",), owners_facts_have_an_opened_claim),
)


# Claims in etcd: their numbers grow, no two hold a task at once, and the ledger knows only those that were made.


def epochs_of_claims_grow(task: TaskHistory) -> Iterator[str]:
    """I1."""
    for before, after in pairwise(task.grants):
        if after.epoch <= before.epoch:
            yield (
                f"etcd made {claim(after.fence)} after {claim(before.fence)}: "
                "the later claim's number is not the higher one"
            )


def claims_do_not_overlap(task: TaskHistory) -> Iterator[str]:
    """I2: one holder at a time, and a key that is put once."""
    for grant in task.grants:
        if grant.last_revision not in {0, grant.created_revision}:
            yield (
                f"the key of {claim(grant.fence)} was put again at revision {grant.last_revision}: "
                "its revision no longer says who holds it"
            )
    for before, after in pairwise(sorted(task.grants, key=lambda grant: (grant.life, grant.created_revision))):
        gone = before.life != after.life or (
            before.deleted_revision is not None and before.deleted_revision < after.created_revision
        )
        if not gone:
            until = "the end" if before.deleted_revision is None else f"revision {before.deleted_revision}"
            yield f"{claim(before.fence)} was there until {until}, when {claim(after.fence)} was made"


def claims_open_once(task: TaskHistory) -> Iterator[str]:
    """I2, of the ledger: a claim that was given up does not come back."""
    first: dict[Fence, LedgerEntry] = {}
    for entry in opens(task.entries):
        if entry.fence in first:
            yield f"{place(entry)} opened the task under {claim(entry.fence)} again, after {place(first[entry.fence])}"
        first.setdefault(entry.fence, entry)


def epochs_are_of_their_keys(task: TaskHistory) -> Iterator[str]:
    """I2: the number that was opened is the one that etcd gave to that claim."""
    made = {grant.claim_id: grant for grant in task.grants}
    for entry in opens(task.entries):
        grant = made.get(entry.claim_id)
        if grant is not None and grant.epoch != entry.epoch:
            yield (
                f"{place(entry)} opened the task under epoch {describe_epoch(entry.epoch)}, but the key of claim "
                f"{entry.claim_id} was created as {describe_epoch(grant.epoch)}"
            )


def opened_claims_were_made(task: TaskHistory) -> Iterator[str]:
    """I5."""
    made = {grant.claim_id for grant in task.grants}
    for entry in opens(task.entries):
        if entry.claim_id not in made:
            yield f"{place(entry)} opened the task under {claim(entry.fence)}, which etcd never had"


def the_registered_grant_was_made(task: TaskHistory) -> Iterator[str]:
    """I5, of what is registered but was not opened yet."""
    granted = task.row.granted if task.row is not None else None
    if granted is not None and granted.epoch and granted not in {grant.fence for grant in task.grants}:
        yield f"the ledger has registered {claim(granted)}, which etcd never had"


class _Generations:
    """I29: every claim carries the generation that etcd had when it was made. Kept: grants and generations alone."""

    def __init__(self) -> None:
        self._grants: list[Grant] = []
        self._changes: list[GenerationChange] = []

    def add(self, task: TaskHistory) -> None:
        self._grants += task.grants
        self._changes += task.generations

    def violations(self) -> Iterator[Violation]:
        changes = _by_life(self._changes)
        for grant in self._grants:
            stood = _standing(changes.get(grant.life, []), grant.created_revision)
            if stood != grant.generation:
                yield Violation(
                    "I29",
                    grant.task_id,
                    f"{claim(grant.fence)} was made in generation {grant.generation}, while etcd stood at {stood}",
                )
        for life, made in changes.items():
            for before, after in pairwise(made):
                if after.generation < before.generation:
                    message = f"from {before.generation} to {after.generation} at revision {after.revision}"
                    yield Violation("I29", "", f"etcd's generation went back {message} (life {life} of etcd)")


def _by_life(changes: Iterable[GenerationChange]) -> dict[int, list[GenerationChange]]:
    lives: defaultdict[int, list[GenerationChange]] = defaultdict(list)
    for change in sorted(changes, key=lambda change: change.revision):
        lives[change.life].append(change)
    return dict(lives)


def _standing(changes: list[GenerationChange], revision: int) -> int:
    """The generation at a revision; 0 before the first."""
    index = bisect_right(changes, revision, key=lambda change: change.revision)
    return changes[index - 1].generation if index else 0


_GRANTS_CHECKS: Final = (
    Check("I1", "later claims have higher epochs", ("grants",), epochs_of_claims_grow),
    Check("I2", "one claim at a time, put once", ("grants",), claims_do_not_overlap),
    Check("I2", "a claim opens once", ("entries",), claims_open_once),
    Check("I2", "an epoch is its key's own revision", ("grants", "entries"), epochs_are_of_their_keys),
    Check("I5", "what was opened was claimed in etcd", ("grants", "entries"), opened_claims_were_made),
    Check("I5", "what is registered was claimed in etcd", ("grants", "tasks"), the_registered_grant_was_made),
    SumCheck("I29", "claims carry etcd's generation", ("grants", "generations"), _Generations),
)


# What the fences refused: only what was stale.


def ledger_refusals_were_stale(task: TaskHistory) -> Iterator[str]:
    """I6. A token above the fence is refused too: it was not registered, or not opened yet."""
    for refusal in task.refusals:
        if refusal.guard is not Guard.LEDGER:
            continue
        if refusal.presented_epoch == refusal.current_epoch and _still_held(task, refusal):
            yield f"{_describe(refusal)}, although that claim held the task"


def the_refused_had_lost_their_claim(task: TaskHistory) -> Iterator[str]:
    """I6: who was refused although nobody newer had come had really lost its claim, or given the task up itself."""
    kept = {grant.epoch for grant in task.grants if grant.deleted_revision is None}
    taken = {entry.epoch for entry in _taken_away(task)}
    for refusal in task.refusals:
        same = refusal.guard is Guard.LEDGER and refusal.presented_epoch == refusal.current_epoch
        if same and refusal.presented_epoch in kept & taken:
            yield f"{_describe(refusal)}: the ledger had taken the task from it, and its claim is still in etcd"


def fences_that_refused_were_granted(task: TaskHistory) -> Iterator[str]:
    """I6: what stood in the way was a claim that there was."""
    made = {entry.epoch for entry in task.entries} | {grant.epoch for grant in task.grants}
    for refusal in task.refusals:
        if refusal.current_epoch and refusal.current_epoch not in made:
            yield f"{_describe(refusal)}, but etcd never made that claim"


def tool_refusals_were_stale(task: TaskHistory) -> Iterator[str]:
    """I6, of the tools' fence: a lower epoch, another claim of the same one, or an ended one."""
    for refusal in task.refusals:
        if refusal.guard is not Guard.TOOLS:
            continue
        fence = task.fence
        if refusal.presented_epoch > refusal.current_epoch:
            yield f"{_describe(refusal)}, although it is higher than the fence"
        elif fence is None or fence.epoch < refusal.current_epoch:
            stands = "-" if fence is None else describe_epoch(fence.epoch)
            yield f"{_describe(refusal)}, but the tools' fence stands at {stands} only"
        elif refusal.presented_epoch == fence.epoch and not fence.closed and not _number_given_twice(task, fence.epoch):
            yield f"{_describe(refusal)}, although the tools' fence stands there and is not closed"


def _number_given_twice(task: TaskHistory, epoch: int) -> bool:
    """A restored etcd may give a number again; then the claim decides, which a refusal does not tell."""
    return len({grant.claim_id for grant in task.grants if grant.epoch == epoch}) > 1


def _still_held(task: TaskHistory, refusal: RefusalRecord) -> bool:
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


def _describe(refusal: RefusalRecord) -> str:
    return (
        f"the {'tools' if refusal.guard is Guard.TOOLS else 'ledger'} refused {refusal.method} of "
        f"{refusal.holder or 'somebody'} under epoch {describe_epoch(refusal.presented_epoch)} "
        f"(fence at {describe_epoch(refusal.current_epoch)})"
    )


_REFUSALS_CHECKS: Final = (
    Check("I6", "the ledger refused only stale claims", ("refusals", "entries"), ledger_refusals_were_stale),
    Check("I6", "who is refused has lost", ("refusals", "grants", "entries"), the_refused_had_lost_their_claim),
    Check("I6", "refusing fences were granted", ("refusals", "grants", "entries"), fences_that_refused_were_granted),
    Check("I6", "the tools refused only stale claims", ("refusals", "fences"), tool_refusals_were_stale),
)


CHECKS: Final = (
    *_FENCING_CHECKS,
    *_GRANTS_CHECKS,
    *_REFUSALS_CHECKS,
)
