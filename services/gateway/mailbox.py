"""What waits to be sent to one watcher: at most one page of entries, and live text that may be dropped."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import live_pb2

MAX_PENDING_CHARACTERS: Final = 256 * 1024
"""Of live text for one slow reader. Beyond it the oldest goes: it is not a record, and offsets show the gap."""


class Mailbox:
    """Filled by the watch's readers, emptied by its one sender. `fail` ends it, after what is already in it."""

    def __init__(self) -> None:
        self._page: ledger.WatchEntriesResponse | None = None
        self._deltas: OrderedDict[tuple[int, int, int, int], live_pb2.Delta] = OrderedDict()
        self._characters = 0
        self._error: BaseException | None = None
        self._changed, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()

    async def put_page(self, page: ledger.WatchEntriesResponse) -> None:
        """Waits until the last page was taken: so a slow reader slows only its own stream."""
        await self._room.wait()
        self._room.clear()
        self._page = page
        self._changed.set()

    def add_text(self, delta: live_pb2.Delta) -> None:
        """Joins the piece to what waits of the same block."""
        key = (delta.epoch, delta.step, delta.attempt_number, delta.block)
        waiting = self._deltas.get(key)
        if waiting is not None and waiting.offset + len(waiting.text) == delta.offset:
            waiting.text += delta.text
        else:
            self._deltas[key] = delta
        self._characters += len(delta.text)
        while self._characters > MAX_PENDING_CHARACTERS and len(self._deltas) > 1:
            _, dropped = self._deltas.popitem(last=False)
            self._characters -= len(dropped.text)
        self._changed.set()

    def discard_text(self, epoch: int, step: int) -> None:
        """Drops what waits of this step and before, and of lower epochs: its record was committed, or never will be."""
        for key in [key for key in self._deltas if key[0] < epoch or key[1] <= step]:
            self._characters -= len(self._deltas.pop(key).text)

    def fail(self, error: BaseException) -> None:
        """Nothing more will come."""
        self._error = self._error or error
        self._changed.set()

    async def wait(self, timeout_seconds: float) -> bool:
        """Whether there is something to take before the time is over; raises what `fail` was given once it is empty."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        if self._error is not None and self._page is None:
            raise self._error
        return True

    def take_page(self) -> ledger.WatchEntriesResponse | None:
        """The page, making room for the next."""
        page, self._page = self._page, None
        self._room.set()
        if self._error is not None:
            self._changed.set()
        return page

    def take_text(self) -> list[live_pb2.Delta]:
        """All text that waits, oldest first."""
        taken = list(self._deltas.values())
        self._deltas.clear()
        self._characters = 0
        return taken
