"""What a check is: a pure function of one task's history, or a sum over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from tenure.audit.task_history import TaskHistory
from tenure.audit.violation import Violation


@dataclass(frozen=True, slots=True)
class Check:
    """`find` gives a message for each violation of `invariant` in one task. `needs`: sources and flags of History."""

    invariant: str
    says: str
    needs: tuple[str, ...]
    find: Callable[[TaskHistory], Iterable[str]]


class Sum(Protocol):
    """What is known of many tasks together: a few words for each, however long their histories are."""

    def add(self, task: TaskHistory) -> None:
        """Takes a task in."""

    def violations(self) -> Iterable[Violation]:
        """What does not add up, once all tasks are in."""


@dataclass(frozen=True, slots=True)
class SumCheck:
    """A check across tasks; `begin` makes an empty sum."""

    invariant: str
    says: str
    needs: tuple[str, ...]
    begin: Callable[[], Sum]
