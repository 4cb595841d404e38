"""Forks: a history that was taken over from another task, and nothing of it counts as this task's own doing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tenure.audit.check import Check, SumCheck
from tenure.audit.reading import FORK_HEAD, of_kind, place
from tenure.audit.task_history import TaskHistory
from tenure.audit.violation import Violation
from tenure.domain.entries import (
    AssistantMessage,
    Compaction,
    ControlStep,
    Forked,
    ModelAttempt,
    ResultRejected,
    ToolIntent,
    ToolOutcome,
    ToolsDefined,
    Transition,
    UserMessage,
    WaitResolution,
)
from tenure.domain.states import TaskState

_COPIED: Final = (
    ToolsDefined,
    ModelAttempt,
    AssistantMessage,
    ToolIntent,
    ToolOutcome,
    UserMessage,
    WaitResolution,
    ControlStep,
    ResultRejected,
    Compaction,
)
_HASH_BYTES: Final = 8


def forks_begin_with_their_copy(task: TaskHistory) -> Iterator[str]:
    """I36, of the fork's ledger alone."""
    for entry, forked in of_kind(task.entries, Forked):
        if entry.sequence != FORK_HEAD:
            yield f"{place(entry)} says that the task is a fork; only entry {FORK_HEAD} does"
            continue
        end = FORK_HEAD + forked.copied_entries
        for copied in task.entries[FORK_HEAD:end]:
            if copied.epoch or copied.claim_id:
                yield f"{place(copied)} was copied, and has a claim of this task"
            if copied.body is not None and not isinstance(copied.body, _COPIED):
                yield f"{place(copied)} was copied, and is no part of a conversation"
        begin = task.entries[end].body if len(task.entries) > end else None
        if not isinstance(begin, Transition) or (begin.from_state, begin.to_state) != (None, TaskState.QUEUED):
            told = f"{place(entry)} says that {forked.copied_entries} entries were copied"
            yield f"{told}; the task does not begin after them"


class _Copies:
    """I36, of both ledgers. Kept: a short hash for each entry."""

    def __init__(self) -> None:
        self._hashes: dict[str, bytes] = {}
        self._forks: dict[str, Forked] = {}

    def add(self, task: TaskHistory) -> None:
        self._hashes[task.task_id] = b"".join(entry.body_hash[:_HASH_BYTES] for entry in task.entries)
        for _, forked in of_kind(task.entries[FORK_HEAD - 1 : FORK_HEAD], Forked):
            self._forks[task.task_id] = forked

    def violations(self) -> Iterator[Violation]:
        for task_id, forked in self._forks.items():
            theirs = self._hashes.get(forked.task_id)
            if theirs is None:  # it was not collected
                continue
            remaining = iter(_parts(theirs)[: forked.sequence])
            copied = _parts(self._hashes[task_id])[FORK_HEAD : FORK_HEAD + forked.copied_entries]
            if not all(body in remaining for body in copied):
                told = f"its copied entries are not those of task {forked.task_id} up to {forked.sequence}"
                yield Violation("I36", task_id, told)


def _parts(hashes: bytes) -> list[bytes]:
    return [hashes[start : start + _HASH_BYTES] for start in range(0, len(hashes), _HASH_BYTES)]


CHECKS: Final = (
    Check("I36", "forks begin with their copy", ("entries",), forks_begin_with_their_copy),
    SumCheck("I36", "what forks copied is the other task's", ("entries",), _Copies),
)
