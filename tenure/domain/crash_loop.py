"""Deaths of a task's owners: how a task that kills its workers is told from one whose workers just died.

Counted are deaths in a row without a new step. Whoever dies takes all its tasks along, so a poison and its innocent
neighbours would be counted alike, and travel together to the next worker. Two rules tell them apart. A task is a poison
only when several owners died with it, because one worker may be what is broken; yet where there are so few workers that
always the same one dies, more deaths say it too. And before that a task is a suspect, of which a session holds one at a
time: from then on a poison dies without another suspect beside it, and an innocent one makes its step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SUSPECT_DEATHS: Final = 3
CRASH_LOOP_DEATHS: Final = 5
CRASH_LOOP_OWNERS: Final = 3
CRASH_LOOP_DEATHS_OF_FEW: Final = 10
"""Of whomever: one worker that its supervisor starts again under the same name must not die for ever."""


@dataclass(frozen=True, slots=True)
class OwnerDeaths:
    """How often in a row, and the workers, each once. Under a new name a worker counts as another: nobody can know."""

    count: int = 0
    owners: tuple[str, ...] = ()

    def and_of(self, owner: str) -> OwnerDeaths:
        """One more."""
        known = self.owners if self.count else ()  # a new step sets the count back, and the names with it
        fresh = owner not in known and len(known) < CRASH_LOOP_DEATHS_OF_FEW
        return OwnerDeaths(self.count + 1, (*known, owner) if fresh else known)

    @property
    def is_crash_loop(self) -> bool:
        """Whether the task is a poison."""
        several = self.count >= CRASH_LOOP_DEATHS and len(self.owners) >= CRASH_LOOP_OWNERS
        return several or self.count >= CRASH_LOOP_DEATHS_OF_FEW


def is_suspect(deaths: int) -> bool:
    """Whether it may be a poison: no session is to hold two such."""
    return deaths >= SUSPECT_DEATHS
