"""Budgets of roots: what all tasks of a root use and set aside together, at its end and at every moment before.

All that changes a budget is recorded under the lock of its row, at times that never go back: by them, the entries of
several tasks are in the order in which they happened. What has one time is one transaction, seen by nobody half done.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from tenure.audit.amounts import NOTHING, Amount
from tenure.audit.check import SumCheck
from tenure.audit.checks.budgets import Settled, cap_of, raise_of, raised, set_aside_for, spending
from tenure.audit.task_history import TaskHistory
from tenure.audit.violation import Violation
from tenure.domain.budget import Budget
from tenure.domain.entries import ModelAttempt, Submitted
from tenure.domain.spawned import SubAgentsSpawned
from tenure.domain.states import TERMINAL


class _Change(NamedTuple):
    """What one entry does to the budget.

    `beyond`: what an attempt came to above what it had set aside; `reported`: what was said later above what was used.
    """

    at: float
    cap: Amount = NOTHING
    used: Amount = NOTHING
    reserved: Amount = NOTHING
    beyond: Amount = NOTHING
    reported: Amount = NOTHING
    begins: bool = False


class _Stand(NamedTuple):
    """A budget at some moment."""

    cap: Amount = NOTHING
    used: Amount = NOTHING
    reserved: Amount = NOTHING

    def __str__(self) -> str:
        return f"{self.used} used and {self.reserved} set aside of {self.cap}"


class _Moment(NamedTuple):
    """Where the changes so far have led."""

    stand: _Stand = _Stand()
    beyond: Amount = NOTHING
    reported: Amount = NOTHING

    def after(self, change: _Change) -> _Moment:
        now = self.stand
        cap = now.cap + change.cap if change.begins else raised(now.cap, change.cap)
        stand = _Stand(cap, now.used + change.used, now.reserved + change.reserved)
        return _Moment(stand, self.beyond + change.beyond, self.reported + change.reported)

    @property
    def final(self) -> _Stand:
        """With what was reported."""
        return self.stand._replace(used=self.stand.used + self.reported)

    def is_too_much(self, unknown: Amount) -> bool:
        """Whether more is taken than may be. `unknown`: by how much the caps were raised nobody knows when."""
        taken = self.stand.used + self.stand.reserved - self.beyond
        cap = self.stand.cap + unknown
        return taken.tokens > cap.tokens or taken.nano_usd > cap.nano_usd > 0


@dataclass(slots=True)
class _Root:
    """All that is known of a root. `stands`: its budget's row as it was read last. `after`: what may have followed."""

    changes: list[_Change] = field(default_factory=list)
    after: list[_Change] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    spawned: set[str] = field(default_factory=set)
    has_itself: bool = False
    at_rest: bool = True
    stands: _Stand | None = None

    def add(self, task: TaskHistory, changes: list[_Change], *, is_root: bool) -> None:
        """One of its tasks. What is open at the end of what is known of it may have been settled right after that."""
        self.changes += changes
        reserved = _come_to(changes).reserved
        if reserved != NOTHING:
            self.after.append(_Change(math.nextafter(changes[-1].at, math.inf), reserved=NOTHING - reserved))
        self.known.add(task.task_id)
        self.spawned |= _spawned(task)
        self.has_itself |= is_root
        self.at_rest &= "settled" in task.collected or (task.row is not None and task.row.state in TERMINAL)

    def violations(self) -> Iterator[str]:
        """What does not add up."""
        come_to = _come_to(self.changes)
        is_whole = self.has_itself and self.spawned <= self.known and (len(self.known) == 1 or self.at_rest)
        if is_whole and self.stands is not None and self.stands != come_to:
            yield f"the budget has {self.stands}, its entries come to {come_to}"
        if moment := self._first_moment_beyond():
            yield moment

    def _first_moment_beyond(self) -> str:
        """A cap that was raised in a task that is not known was raised at the beginning, as far as anybody can tell."""
        unknown = (self.stands.cap - _come_to(self.changes).cap).above_nothing if self.stands is not None else NOTHING
        now = _Moment()
        in_order = sorted([*self.changes, *self.after], key=attrgetter("at"))
        for at, together in groupby(in_order, key=attrgetter("at")):
            for change in together:
                now = now.after(change)
            if now.is_too_much(unknown):
                told = f"{now.beyond} of that were beyond what was set aside" if now.beyond != NOTHING else "too much"
                return f"at {at:.6f} the budget had {now.stand}: {told}"
        return ""


class _Roots:
    """I17, of budgets. Of a root whose own use is all of its budget only the sums are kept: most have no child."""

    def __init__(self) -> None:
        self._roots: dict[str, _Root] = {}
        self._alone: dict[str, _Stand] = {}

    def add(self, task: TaskHistory) -> None:
        if task.row is None:
            self._read(task.task_id, task.budget.budget if task.budget is not None else None)
            return
        root_id = task.row.root_task_id or task.task_id
        is_root = root_id == task.task_id
        changes = list(_changes(task, is_root=is_root))
        stands = None if task.budget is None else _of_row(task.budget.budget)
        if root_id not in self._roots and stands is not None and stands == _come_to(changes):
            self._alone[root_id] = stands
            return
        self._root(root_id).add(task, changes, is_root=is_root)
        self._read(root_id, None if task.budget is None else task.budget.budget)

    def violations(self) -> Iterator[Violation]:
        for root_id, root in self._roots.items():
            for told in root.violations():
                yield Violation("I17", root_id, told)

    def _root(self, root_id: str) -> _Root:
        """With what is known of it so far; a root that was taken to be alone has its sums at the beginning of time."""
        root = self._roots.setdefault(root_id, _Root())
        alone = self._alone.pop(root_id, None)
        if alone is not None:
            taken = alone.used + alone.reserved
            root.changes.append(_Change(0.0, alone.cap, alone.used, alone.reserved, taken, begins=True))
            root.known, root.has_itself, root.stands = {root_id}, True, alone
        return root

    def _read(self, root_id: str, budget: Budget | None) -> None:
        """A row that was read with one of the root's tasks. Rows are read in the order in which they come."""
        if budget is not None and self._alone.get(root_id) != _of_row(budget):
            self._root(root_id).stands = _of_row(budget)


def _changes(task: TaskHistory, *, is_root: bool) -> Iterator[_Change]:
    """Of one task, in order."""
    for entry, spent in spending(task):
        at = entry.recorded_at
        if isinstance(entry.body, Submitted) and is_root:
            yield _Change(at, cap=cap_of(entry.body.spec.limits), begins=True)
        if (more := raise_of(entry.body)) != NOTHING:
            yield _Change(at, cap=more)
        match spent:
            case Settled(set_aside=aside, told=told, billed=billed) as settled:
                used, beyond = settled.at_least, (told - aside).above_nothing
                yield _Change(at, NOTHING, used, NOTHING - aside, beyond, billed - used)
            case ModelAttempt() as attempt:
                yield _Change(at, reserved=set_aside_for(attempt))
            case None:
                pass


def _spawned(task: TaskHistory) -> set[str]:
    """The sub-agents it has, collected or not."""
    return {
        task_id for entry in task.entries if isinstance(entry.body, SubAgentsSpawned) for task_id in entry.body.task_ids
    }


def _come_to(changes: list[_Change]) -> _Stand:
    """Where they lead."""
    now = _Moment()
    for change in sorted(changes, key=attrgetter("at")):
        now = now.after(change)
    return now.final


def _of_row(budget: Budget) -> _Stand:
    return _Stand(
        Amount(budget.max_tokens, budget.max_nano_usd),
        Amount(budget.used_tokens, budget.used_nano_usd),
        Amount(budget.reserved_tokens, budget.reserved_nano_usd),
    )


CHECKS: Final = (
    SumCheck(
        "I17",
        "budgets are what their tasks used and set aside, at every moment",
        ("tasks", "entries", "budgets"),
        _Roots,
    ),
)
