"""Decides when a task is in a crash loop: it kills its workers, rather than being held by workers that died anyway.

The rules count the deaths of owners in a row without a new step. A worker that dies loses all of its tasks, so without
further rules the task that killed the worker and the worker's other tasks would have equal counts, and would move
together to the next worker. Two rules separate them:

- A task is in a crash loop only when several different owners died with it, because one worker may itself be broken.
  Where there are so few workers that the same one dies each time, a higher count is enough.
- Before that, the task is a suspect, and a session holds at most one suspect at a time. From then on, a task in a crash
  loop kills its worker without another suspect beside it, and any other suspect makes its next step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SUSPECT_DEATHS: Final = 3
CRASH_LOOP_DEATHS: Final = 5
CRASH_LOOP_OWNERS: Final = 3
CRASH_LOOP_DEATHS_OF_FEW: Final = 10
"""The limit for any number of different owners. Without it, a single worker that its supervisor restarts under the same
name would die with the task forever.
"""


@dataclass(frozen=True, slots=True)
class OwnerDeaths:
    """The number of owner deaths in a row, and the worker ids of these owners, each once.

    A worker that restarts under a new id counts as a different worker: the ledger cannot recognise it.
    """

    count: int = 0
    owners: tuple[str, ...] = ()

    def and_of(self, owner: str) -> OwnerDeaths:
        """Returns the deaths with one more death, of `owner`."""
        owners = self.owners if self.count else ()  # a new step resets the count; the old owners no longer count either
        is_new = owner not in owners and len(owners) < CRASH_LOOP_DEATHS_OF_FEW
        return OwnerDeaths(self.count + 1, (*owners, owner) if is_new else owners)

    @property
    def is_crash_loop(self) -> bool:
        """Whether the task fails with CRASH_LOOP."""
        has_several_owners = self.count >= CRASH_LOOP_DEATHS and len(self.owners) >= CRASH_LOOP_OWNERS
        return has_several_owners or self.count >= CRASH_LOOP_DEATHS_OF_FEW


def is_suspect(deaths: int) -> bool:
    """Whether a task with `deaths` owner deaths in a row is a suspect. A session holds at most one suspect."""
    return deaths >= SUSPECT_DEATHS
