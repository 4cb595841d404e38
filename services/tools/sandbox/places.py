"""Where a run takes place: in one of this replica's places, under a uid under which nobody runs elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Final

from services.tools.sandbox.errors import SandboxUnavailable
from services.tools.sandbox.sharing import Lease, UidLocks
from services.tools.sandbox.slots import Slot, SlotPool

_AGAIN_SECONDS: Final = 0.1


class Places:
    """`first_uid`: of the first place; None: all runs have the service's own. `locks`: what replicas agree by.

    So many for runs, and so many for what is `lasting`.
    """

    def __init__(self, count: int, lasting: int, first_uid: int | None, locks: Path | None) -> None:
        self._slots = SlotPool(count, lasting)
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
        lasting: bool = False,
    ) -> tuple[Slot, Lease]:
        """A place, and its uid or that of those who run in the workspace. Raises SandboxUnavailable."""
        avoided: set[int] = set()
        while True:
            slot = await self._slots.enter(key, preferred(), frozenset(avoided), lasting=lasting)
            try:
                lease = await self._lease(workspace, self.uid(slot.number))
            except BaseException:
                self._slots.leave(key, slot, lasting=lasting)
                raise
            if lease is not None:
                return slot, lease
            self._slots.leave(key, slot, lasting=lasting)
            if slot.number in avoided:
                await asyncio.sleep(_AGAIN_SECONDS)  # others run under all our uids: no event tells when they end
            avoided.add(slot.number)

    def leave(self, key: Hashable | None, slot: Slot, lease: Lease, *, lasting: bool = False) -> None:
        """Give both back. The uid of a retired place is kept from everybody until this process ends."""
        if not slot.retired:
            lease.close()
        self._slots.leave(key, slot, lasting=lasting)

    async def _lease(self, workspace: Path | None, uid: int | None) -> Lease | None:
        if uid is None:
            return Lease(None)
        taking = asyncio.ensure_future(asyncio.to_thread(self._locks.take, workspace, uid))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(_give_back)
            raise
        except OSError as error:
            told = f"replicas cannot agree on who runs where: {error.strerror or error}"
            raise SandboxUnavailable(told) from error


def _give_back(taking: asyncio.Future[Lease | None]) -> None:
    """Nobody waits for it any more."""
    if not taking.cancelled() and taking.exception() is None and (lease := taking.result()) is not None:
        lease.close()
