"""The one append-only sequence of each task: gap-free, steps that only grow, a snapshot that agrees with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tenure.audit.check import Check
from tenure.audit.reading import drives_functions, drives_itself, name, place
from tenure.audit.task_history import TaskHistory
from tenure.domain.entries import Submitted


def sequences_have_no_gap(task: TaskHistory) -> Iterator[str]:
    """I7."""
    expected = 1
    for entry in task.entries:
        if entry.sequence < expected:
            yield f"there are two entries {entry.sequence}"
        elif entry.sequence > expected:
            missing = f"{expected}" if entry.sequence == expected + 1 else f"{expected} to {entry.sequence - 1}"
            yield f"entry {entry.sequence} follows {expected - 1}: {missing} is missing"
        expected = entry.sequence + 1
    if task.entries and not isinstance(task.entries[0].body, Submitted):
        yield f"the first entry is a {name(task.entries[0].body)}, not the goal"


def the_row_ends_where_the_ledger_ends(task: TaskHistory) -> Iterator[str]:
    """I7, of the snapshot."""
    if task.row is None:
        if task.entries:
            yield f"there are {len(task.entries)} entries and no such task"
        return
    last = task.entries[-1].sequence if task.entries else 0
    if task.row.sequence != last:
        yield f"the task's row ends at sequence {task.row.sequence}, its ledger at {last}"


def steps_only_grow(task: TaskHistory) -> Iterator[str]:
    """I8. Other loops count their steps as they like, as long as the ledger takes them."""
    step = 0
    for entry in task.entries if drives_itself(task) or drives_functions(task) else ():
        if entry.step and not step <= entry.step <= step + 1:
            yield f"{place(entry)} is of step {entry.step}, after step {step}"
        step = max(step, entry.step)


def the_row_is_at_the_newest_step(task: TaskHistory) -> Iterator[str]:
    """I8, of the snapshot."""
    newest = max((entry.step for entry in task.entries), default=0)
    if task.row is not None and task.row.step != newest:
        yield f"the task's row is at step {task.row.step}, its newest entry at {newest}"


CHECKS: Final = (
    Check("I7", "sequences are 1, 2, 3 … without gap or repeat", ("entries",), sequences_have_no_gap),
    Check("I7", "the row ends where its ledger ends", ("tasks", "entries"), the_row_ends_where_the_ledger_ends),
    Check("I8", "steps go up by one or stay", ("entries",), steps_only_grow),
    Check("I8", "the row is at the newest step", ("tasks", "entries"), the_row_is_at_the_newest_step),
)
