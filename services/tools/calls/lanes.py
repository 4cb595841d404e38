"""The places of a lane: how many of its calls run at once, and whose call gets the next place."""

from __future__ import annotations

import asyncio
from collections import Counter, deque


def subtract_one(counter: Counter[str], key: str) -> None:
    """Subtracts one. A key that counts nothing has no entry."""
    if counter[key] > 1:
        counter[key] -= 1
    else:
        del counter[key]


class Lane:
    """Gives each free place to the waiting tenant with the fewest calls in the lane, the longest waiting of equals.

    So a tenant whose calls are slow delays the next call of another one until a place is free, and no longer.
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self._taken = 0
        self._running = Counter[str]()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def is_full(self) -> bool:
        """Whether a call would wait."""
        return self._taken >= self.places

    def take(self, tenant: str) -> bool:
        """Takes a free place, or returns False."""
        if self.is_full:
            return False
        self._taken += 1
        self._running[tenant] += 1
        return True

    async def acquire(self, tenant: str) -> None:
        """Waits for a place."""
        if self.take(tenant):
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # it got its place just then
                self.release(tenant)
            raise

    def release(self, tenant: str) -> None:
        """Gives a place back. A place that was lost meanwhile is gone."""
        self._taken -= 1
        subtract_one(self._running, tenant)
        while self._waiting and not self.is_full:
            self._give_place()

    def _give_place(self) -> None:
        tenant = min(self._waiting, key=lambda one: self._running[one])
        waiters = self._waiting.pop(tenant)
        waiter = waiters.popleft()
        if not waiter.done():  # a call that was cancelled waits no more
            self.take(tenant)
            waiter.set_result(None)
        if waiters:
            self._waiting[tenant] = waiters  # behind the others

    def shrink(self) -> None:
        """Takes a place out of the lane, when one is given back. The last one stays: its calls fail with the reason."""
        self.places = max(1, self.places - 1)
