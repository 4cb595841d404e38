"""One watcher of one task: what was appended since it last looked, as far as it need not read that in the ledger."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from services.checkpoint.growth import Growth

MOST_ENTRIES: Final = 128
MOST_BYTES: Final = 256 * 1024
"""What waits for one watcher, in all. A slower one reads pages instead."""


class TaskWatch:
    """Keeps growths that follow one another. What does not fit is dropped with the rest: the ledger has it all."""

    def __init__(self) -> None:
        self.seen_sequence = 0
        self._moved = asyncio.Event()
        self._growths: list[Growth] = []
        self._must_read = False

    @property
    def reached_sequence(self) -> int:
        """Up to where the watcher has the ledger, seen or waiting for it."""
        return max(self.seen_sequence, self._growths[-1].last if self._growths else 0)

    def tell(self, growth: Growth | None) -> None:
        """The ledger grew; None: somewhere else, or nobody knows by what."""
        if growth is None or self._must_read or not self._takes(growth):
            self._must_read = True
            self._growths.clear()
        else:
            self._growths.append(growth)
        self._moved.set()

    async def take(self) -> list[Growth] | None:
        """Waits for what follows the seen sequence without a gap. None: read the ledger; then less may be new."""
        while True:
            await self._moved.wait()
            self._moved.clear()
            told, must_read = self._growths, self._must_read
            self._growths, self._must_read = [], False
            new = [growth for growth in told if growth.last > self.seen_sequence]
            if must_read or (new and new[0].first != self.seen_sequence + 1):
                return None
            if new:
                return new

    def _takes(self, growth: Growth) -> bool:
        """Whether it follows what waits already, and fits."""
        if self._growths and growth.first != self._growths[-1].last + 1:
            return False
        waiting = [*self._growths, growth]
        return (
            sum(len(one.rows) for one in waiting) <= MOST_ENTRIES
            and sum(one.size_bytes for one in waiting) <= MOST_BYTES
        )
