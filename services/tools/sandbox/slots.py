"""The bounded pool of places in which runs take place, each with a uid of its own.

Runs in the same workspace at the same time share a place: they belong to one task and must be able to read each
other's files. Everything else is kept apart by different uids, should the namespaces ever fail to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Slot:
    """A numbered place. `retired` is set by a run that could not be ended: its uid is never given out again."""

    number: int
    users: int = 0
    retired: bool = False


class SlotPool:
    """At most `count` runs at a time; further ones wait their turn, in order. So do `lasting` ones, apart from them."""

    def __init__(self, count: int, lasting: int = 0) -> None:
        self._turns, self._lasting_turns = asyncio.Semaphore(count), asyncio.Semaphore(lasting)
        self._free = [Slot(number) for number in reversed(range(count + lasting))]
        self._by_workspace: dict[Hashable, Slot] = {}

    async def enter(
        self,
        workspace: Hashable | None,
        preferred: int | None = None,
        avoided: frozenset[int] = frozenset(),
        *,
        lasting: bool = False,
    ) -> Slot:
        """Wait for a place and hold it until `leave`. `preferred` is taken if it is free, `avoided` if no other is."""
        await self._turns_of(lasting=lasting).acquire()
        slot = self._by_workspace.get(workspace) if workspace is not None else None
        if slot is None:
            fit = [free for free in self._free if free.number not in avoided] or self._free
            slot = next((free for free in fit if free.number == preferred), fit[0 if lasting else -1])
            self._free.remove(slot)
            if workspace is not None:
                self._by_workspace[workspace] = slot
        slot.users += 1
        return slot

    def leave(self, workspace: Hashable | None, slot: Slot, *, lasting: bool = False) -> None:
        """Give the place back."""
        slot.users -= 1
        if slot.users == 0:
            if workspace is not None:
                del self._by_workspace[workspace]
            if slot.retired:
                return  # with its turn: the pool is smaller by one from now on
            self._free.insert(0 if lasting else len(self._free), slot)
        self._turns_of(lasting=lasting).release()

    def _turns_of(self, *, lasting: bool) -> asyncio.Semaphore:
        return self._lasting_turns if lasting else self._turns
