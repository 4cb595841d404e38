"""Slots that rest after a crash in a task's work.

The task goes back into the queue at once; a worker that is what is broken must not be the quickest to take it again,
and one that breaks on every task must not go through the queue.
"""

from __future__ import annotations

from time import monotonic
from typing import Final

from tenure.domain.retry import RetryPolicy

REST: Final = RetryPolicy(initial_seconds=1.0, factor=2.0, cap_seconds=60.0)
"""The longer, the more crashes came in a row."""


class Rests:
    """How many slots rest now. Renewals tell the coordinator soon enough when one is rested."""

    def __init__(self) -> None:
        self._until: list[float] = []
        self._crashes = 0

    def after_crash(self) -> None:
        """One slot more, from now on."""
        self._crashes += 1
        self._until.append(monotonic() + REST.ceiling_seconds(self._crashes))

    def after_success(self) -> None:
        """The worker can do its work after all: the next rest is a short one again."""
        self._crashes = 0

    def count(self) -> int:
        """Resting slots."""
        now = monotonic()
        self._until = [until for until in self._until if until > now]
        return len(self._until)
