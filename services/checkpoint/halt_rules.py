"""Decides what follows when workers release a task because they cannot carry it on (WORKER_HALTED).

No worker died, so it is not a crash loop, and the next worker may succeed at once. But each try costs entries, and a
task that no worker can carry on must not be claimed without end: it waits longer after each try, and ends after about a
day.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tenure.domain.close_out import PendingEnding
from tenure.domain.retry import Jitter, RetryPolicy
from tenure.domain.states import Reason, TaskState

HALTS: Final = RetryPolicy(max_attempts=150, initial_seconds=1.0, factor=2.0, cap_seconds=600.0, jitter=Jitter.EQUAL)
"""The pauses between the tries. An outage of a day ends no task that makes a step before and after it."""


class Pause(NamedTuple):
    """The task is scheduled after a pause."""

    seconds: float


def after_halt(halts: int, message: str, random_fraction: float) -> Pause | PendingEnding | None:
    """Returns what follows the newest halt. None: the task returns to the queue at once.

    `halts`: the halts before it without a new step; `message`: why the newest worker halted.
    """
    if halts == 0:
        return None
    if HALTS.exhausted(halts + 1):
        sentence = f"workers gave the task up {halts + 1} times in a row without a new step; the last one: {message}"
        return PendingEnding(TaskState.FAILED, Reason.WORKER_HALTED, sentence, "checkpoint")
    return Pause(HALTS.wait_seconds(halts, random_fraction))
