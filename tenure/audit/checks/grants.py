"""Claims in etcd: their numbers grow, no two hold a task at once, and the ledger knows only those that were made."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from tenure.audit.check import Check, SumCheck
from tenure.audit.history import GenerationChange, Grant, LedgerEntry
from tenure.audit.reading import claim, opens, place
from tenure.audit.task_history import TaskHistory
from tenure.audit.violation import Violation
from tenure.domain.epochs import Fence, describe_epoch


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
                    told = f"from {before.generation} to {after.generation} at revision {after.revision}"
                    yield Violation("I29", "", f"etcd's generation went back {told} (life {life} of etcd)")


def _by_life(changes: Iterable[GenerationChange]) -> dict[int, list[GenerationChange]]:
    lives: defaultdict[int, list[GenerationChange]] = defaultdict(list)
    for change in sorted(changes, key=lambda change: change.revision):
        lives[change.life].append(change)
    return dict(lives)


def _standing(changes: list[GenerationChange], revision: int) -> int:
    """The generation at a revision; 0 before the first."""
    index = bisect_right(changes, revision, key=lambda change: change.revision)
    return changes[index - 1].generation if index else 0


CHECKS: Final = (
    Check("I1", "later claims have higher epochs", ("grants",), epochs_of_claims_grow),
    Check("I2", "one claim at a time, put once", ("grants",), claims_do_not_overlap),
    Check("I2", "a claim opens once", ("entries",), claims_open_once),
    Check("I2", "an epoch is its key's own revision", ("grants", "entries"), epochs_are_of_their_keys),
    Check("I5", "what was opened was claimed in etcd", ("grants", "entries"), opened_claims_were_made),
    Check("I5", "what is registered was claimed in etcd", ("grants", "tasks"), the_registered_grant_was_made),
    SumCheck("I29", "claims carry etcd's generation", ("grants", "generations"), _Generations),
)
