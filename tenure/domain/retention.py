"""What is kept of ended tasks for how long, in words; and how a batch is shared out among them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

KEEP_LABEL = ("tenure.retention", "keep")
"""A task with this label is kept for ever: only an operator who names it prunes it."""
_UNITS = (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0))


class TaskEntries(NamedTuple):
    """A task, and how many of its entries are left, or are to be left."""

    task_id: str
    entries_left: int


def retention_text(seconds: float) -> str:
    """`30 days`: in the largest unit of which it has two or more."""
    for unit, length_seconds in _UNITS:
        if seconds >= 2 * length_seconds:
            return f"{seconds / length_seconds:.4g} {unit}"
    return f"{seconds:g} s"


def split_batch(tasks: Iterable[TaskEntries], most: int) -> list[TaskEntries]:
    """What is to be left of each task, the first ones first, when `most` entries may go together."""
    shares: list[TaskEntries] = []
    for task_id, entries in tasks:
        if most <= 0:
            break
        taken = min(entries, most)
        most -= taken
        shares.append(TaskEntries(task_id, entries - taken))
    return shares
