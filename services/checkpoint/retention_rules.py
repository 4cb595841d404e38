"""Describes a retention time, and divides a pruning batch between ended tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

_UNITS = (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0))


class TaskEntries(NamedTuple):
    """A task, and the number of its entries that are left, or that shall be left."""

    task_id: str
    entries_left: int


def retention_text(seconds: float) -> str:
    """Returns a text such as `30 days`, in the largest unit with an amount of at least two."""
    for unit, length_seconds in _UNITS:
        if seconds >= 2 * length_seconds:
            return f"{seconds / length_seconds:.4g} {unit}"
    return f"{seconds:g} s"


def split_batch(tasks: Iterable[TaskEntries], most: int) -> list[TaskEntries]:
    """Returns what shall be left of each task when at most `most` entries are deleted, the first tasks first."""
    shares: list[TaskEntries] = []
    for task_id, entries in tasks:
        if most <= 0:
            break
        taken = min(entries, most)
        most -= taken
        shares.append(TaskEntries(task_id, entries - taken))
    return shares
