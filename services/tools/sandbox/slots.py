"""The slots of a replica, which limit how many programs run at once, each with its own uid.

Runs in the same workspace at the same time share a slot: they belong to one task and must be able to read each other's
files. All other runs have different uids, which separate them even if the namespaces should fail.
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
    """A slot. `users`: the number of its runs.

    `retired`: a run of the slot could not be ended, so the slot and its uid are never used again.
    """

    number: int
    users: int = 0
    retired: bool = False


def _ignore() -> None:
    """Does nothing: the default of `SlotPool.on_lost`."""


class SlotPool:
    """At most `count` runs and `long_running` long-running programs at a time; the others wait in order.

    `on_lost` is called when a slot of runs is retired: one run less may be in the pool from then on.
    """

    def __init__(self, count: int, long_running: int = 0) -> None:
        self.on_lost: Callable[[], None] = _ignore
        self._left = {False: count, True: long_running}
        self._semaphore, self._long_running_semaphore = asyncio.Semaphore(count), asyncio.Semaphore(long_running)
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
        """Waits for a slot, which the caller must give back with `leave`.

        A run gets the slot of a run in the same workspace, if there is one; else the `preferred` slot if it is free;
        else another free slot. Slots in `avoided` are used only when no other slot is free. Raises SandboxUnavailable
        when all slots are retired.
        """
        semaphore = self._semaphore_for(long_running=long_running)
        await semaphore.acquire()
        if not self._left[long_running]:
            semaphore.release()  # for the next one that waits
            raise SandboxUnavailable(
                "the programs in all of its slots could not be ended, so no slot is left: restart the tool service, and"
                " look for the processes in its log"
            )
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
        """Gives the slot back."""
        slot.users -= 1
        if slot.users == 0:
            if workspace is not None:
                del self._by_workspace[workspace]
            if slot.retired:
                self._lose(long_running=long_running)
                return
            self._free.insert(0 if long_running else len(self._free), slot)
        self._semaphore_for(long_running=long_running).release()

    def _lose(self, *, long_running: bool) -> None:
        """Makes the pool smaller by the place that the caller holds."""
        self._left[long_running] -= 1
        if not self._left[long_running]:
            self._semaphore_for(long_running=long_running).release()  # those that wait would wait for ever
        if not long_running:
            self.on_lost()

    def _semaphore_for(self, *, long_running: bool) -> asyncio.Semaphore:
        return self._long_running_semaphore if long_running else self._semaphore


# The slot of a run together with its uid, under which no other workspace's program runs in any replica.

_RETRY_SECONDS: Final = 0.1


class RunSlots:
    """The slots with their uids: `count` for runs, `long_running` for long-running programs.

    `first_uid`: the uid of slot 0; None: all runs have the service's uid. `locks`: the file of the uid locks, which
    replicas share; None: no other replica runs programs in the workspaces.
    """

    def __init__(self, count: int, long_running: int, first_uid: int | None, locks: Path | None) -> None:
        self._slots = SlotPool(count, long_running)
        self._first_uid, self._locks = first_uid, UidLocks(locks)

    def on_lost(self, call: Callable[[], None]) -> None:
        """Sets what to call when a slot of runs is retired."""
        self._slots.on_lost = call

    def uid(self, slot: int) -> int | None:
        """Returns the uid of the slot with this number; None is the service's uid."""
        return None if self._first_uid is None else self._first_uid + slot

    def former(self, workspace: Path) -> int | None:
        """Returns the number of the slot whose uid owns the workspace, or None when slots have no uids.

        The number is out of range when the owner is not a uid of this replica.
        """
        return None if self._first_uid is None else workspace.lstat().st_uid - self._first_uid

    async def enter(
        self,
        key: Hashable | None,
        workspace: Path | None,
        preferred: Callable[[], int | None],
        *,
        long_running: bool = False,
    ) -> tuple[Slot, UidLease]:
        """Waits for a slot and its uid.

        If another replica has runs in the workspace, the lease has their uid instead of the slot's. A slot whose uid
        is in use in another workspace is avoided. Raises SandboxUnavailable when the uid locks do not work.
        """
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
                # Runs of other replicas use the uids of all free slots, and no event reports their end.
                await asyncio.sleep(_RETRY_SECONDS)
            avoided.add(slot.number)

    def leave(self, key: Hashable | None, slot: Slot, lease: UidLease, *, long_running: bool = False) -> None:
        """Gives the slot and the lease back. The uid of a retired slot stays locked until this process ends."""
        if not slot.retired:
            lease.close()
        self._slots.leave(key, slot, long_running=long_running)

    async def _lease(self, workspace: Path | None, uid: int | None) -> UidLease | None:
        if uid is None:
            return UidLease(None)
        taking = asyncio.ensure_future(asyncio.to_thread(self._locks.acquire, workspace, uid))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(_close_unused)
            raise
        except OSError as error:
            message = f"the uid locks that replicas share do not work: {error.strerror or error}"
            raise SandboxUnavailable(message) from error


def _close_unused(taking: asyncio.Future[UidLease | None]) -> None:
    """Closes the lease that was taken for a cancelled run."""
    if not taking.cancelled() and taking.exception() is None and (lease := taking.result()) is not None:
        lease.close()
