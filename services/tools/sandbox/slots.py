"""The bounded pool of places in which runs take place, each with a uid of its own.

Runs in the same workspace at the same time share a place: they belong to one task and must be able to read each
other's files. Everything else is kept apart by different uids, should the namespaces ever fail to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.tools.sandbox.limits import SandboxUnavailable
from services.tools.sandbox.uid_locks import UidLease, UidLocks


@dataclass(slots=True, eq=False)
class Slot:
    """A numbered place. `retired` is set by a run that could not be ended: its uid is never given out again."""

    number: int
    users: int = 0
    retired: bool = False


class SlotPool:
    """Runs at most `count` programs at a time, and as many of `long_running` beside them; others wait in order."""

    def __init__(self, count: int, long_running: int = 0) -> None:
        self._turns, self._long_running_turns = asyncio.Semaphore(count), asyncio.Semaphore(long_running)
        self._free = [Slot(number) for number in reversed(range(count + long_running))]
        self._by_workspace: dict[Hashable, Slot] = {}

    async def enter(
        self,
        workspace: Hashable | None,
        preferred: int | None = None,
        avoided: frozenset[int] = frozenset(),
        *,
        long_running: bool = False,
    ) -> Slot:
        """Wait for a place and hold it until `leave`. `preferred` is taken if it is free, `avoided` if no other is."""
        await self._turns_of(long_running=long_running).acquire()
        slot = self._by_workspace.get(workspace) if workspace is not None else None
        if slot is None:
            fit = [free for free in self._free if free.number not in avoided] or self._free
            slot = next((free for free in fit if free.number == preferred), fit[0 if long_running else -1])
            self._free.remove(slot)
            if workspace is not None:
                self._by_workspace[workspace] = slot
        slot.users += 1
        return slot

    def leave(self, workspace: Hashable | None, slot: Slot, *, long_running: bool = False) -> None:
        """Give the place back."""
        slot.users -= 1
        if slot.users == 0:
            if workspace is not None:
                del self._by_workspace[workspace]
            if slot.retired:
                return  # with its turn: the pool is smaller by one from now on
            self._free.insert(0 if long_running else len(self._free), slot)
        self._turns_of(long_running=long_running).release()

    def _turns_of(self, *, long_running: bool) -> asyncio.Semaphore:
        return self._long_running_turns if long_running else self._turns


# Where a run takes place: in one of this replica's places, under a uid under which nobody runs elsewhere.

_AGAIN_SECONDS: Final = 0.1


class RunSlots:
    """`first_uid`: of the first place; None: all runs have the service's own. `locks`: what replicas agree by.

    So many for runs, and so many for long-running programs.
    """

    def __init__(self, count: int, long_running: int, first_uid: int | None, locks: Path | None) -> None:
        self._slots = SlotPool(count, long_running)
        self._first_uid, self._locks = first_uid, UidLocks(locks)

    def uid(self, place: int) -> int | None:
        """The place's own."""
        return None if self._first_uid is None else self._first_uid + place

    def former(self, workspace: Path) -> int | None:
        """The place whose uid owns the workspace, if it is one of ours."""
        return None if self._first_uid is None else workspace.lstat().st_uid - self._first_uid

    async def enter(
        self,
        key: Hashable | None,
        workspace: Path | None,
        preferred: Callable[[], int | None],
        *,
        long_running: bool = False,
    ) -> tuple[Slot, UidLease]:
        """A place, and its uid or that of those who run in the workspace. Raises SandboxUnavailable."""
        avoided: set[int] = set()
        while True:
            slot = await self._slots.enter(key, preferred(), frozenset(avoided), long_running=long_running)
            try:
                lease = await self._lease(workspace, self.uid(slot.number))
            except BaseException:
                self._slots.leave(key, slot, long_running=long_running)
                raise
            if lease is not None:
                return slot, lease
            self._slots.leave(key, slot, long_running=long_running)
            if slot.number in avoided:
                await asyncio.sleep(_AGAIN_SECONDS)  # others run under all our uids: no event tells when they end
            avoided.add(slot.number)

    def leave(self, key: Hashable | None, slot: Slot, lease: UidLease, *, long_running: bool = False) -> None:
        """Give both back. The uid of a retired place is kept from everybody until this process ends."""
        if not slot.retired:
            lease.close()
        self._slots.leave(key, slot, long_running=long_running)

    async def _lease(self, workspace: Path | None, uid: int | None) -> UidLease | None:
        if uid is None:
            return UidLease(None)
        taking = asyncio.ensure_future(asyncio.to_thread(self._locks.take, workspace, uid))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(_give_back)
            raise
        except OSError as error:
            message = f"replicas cannot agree on who runs where: {error.strerror or error}"
            raise SandboxUnavailable(message) from error


def _give_back(taking: asyncio.Future[UidLease | None]) -> None:
    """Nobody waits for it any more."""
    if not taking.cancelled() and taking.exception() is None and (lease := taking.result()) is not None:
        lease.close()
