"""Finds the sweeps that have work: one statement for all of them, and an event for each.

A sweep that looked for itself would be a statement of its own every time, and mostly nothing is due. The duties of the
sweeps stay separate, so that one that fails or hangs does not delay the others.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Mapping

from services.checkpoint.queries import QUEUE, fetch_all
from tenure.runtime.process import rest, resting
from tenure.runtime.store.postgres import Pool, pool_connection


class DueWork:
    """Wakes sweeps by the names of the statement `due`. Each of several replicas looks; their sweeps share the rows.

    `events`: those that others set, too.
    """

    def __init__(self, pool: Pool, interval_seconds: float, events: Mapping[str, asyncio.Event]) -> None:
        self._pool, self._interval_seconds = pool, interval_seconds
        self._events = defaultdict(asyncio.Event, events)

    async def wait(self, name: str) -> None:
        """Waits for work of this name. What becomes due after this returns sets the event again."""
        event = self._events[name]
        with resting():
            await event.wait()
        event.clear()

    async def run(self) -> None:
        """Looks for work until it is cancelled. A duty."""
        while True:
            await self.look()
            # Random, so that replicas that started together do not keep looking together.
            await rest(self._interval_seconds * random.uniform(0.5, 1.0))

    async def look(self) -> list[str]:
        """Sets the events of what is due and returns the names."""
        async with pool_connection(self._pool) as connection:
            names = [name for (name,) in await fetch_all(connection, QUEUE.due, {})]
        for name in names:
            self.wake(name)
        return names

    def wake(self, name: str) -> None:
        """Wakes a sweep."""
        self._events[name].set()
