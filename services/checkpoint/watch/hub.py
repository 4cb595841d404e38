"""Fan-out inside the process: who waits for a task's ledger, for a tenant's changes, for hints about the queue.

What this process committed is handed on as it is. Of everything else only the news that something moved is passed on:
then watchers read the ledger itself, so a slow one neither loses an entry nor holds much memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from tenure.runtime import metrics

if TYPE_CHECKING:
    from services.checkpoint.watch.announcement import Announcement
    from services.checkpoint.watch.appended_entries import AppendedEntries


# One watcher of one task: what was appended since it last looked, as far as it need not read that in the ledger.

MOST_ENTRIES: Final = 128
MOST_BYTES: Final = 256 * 1024
"""What waits for one watcher, in all. A slower one reads pages instead."""


class TaskWatch:
    """Keeps growths that follow one another. What does not fit is dropped with the rest: the ledger has it all."""

    def __init__(self) -> None:
        self.seen_sequence = 0
        self._moved = asyncio.Event()
        self._appended: list[AppendedEntries] = []
        self._must_read = False

    @property
    def reached_sequence(self) -> int:
        """Up to where the watcher has the ledger, seen or waiting for it."""
        return max(self.seen_sequence, self._appended[-1].last if self._appended else 0)

    def tell(self, appended: AppendedEntries | None) -> None:
        """The ledger grew; None: somewhere else, or nobody knows by what."""
        if appended is None or self._must_read or not self._takes(appended):
            self._must_read = True
            self._appended.clear()
        else:
            self._appended.append(appended)
        self._moved.set()

    async def take(self) -> list[AppendedEntries] | None:
        """Waits for what follows the seen sequence without a gap. None: read the ledger; then less may be new."""
        while True:
            await self._moved.wait()
            self._moved.clear()
            appended, must_read = self._appended, self._must_read
            self._appended, self._must_read = [], False
            new = [appended_entries for appended_entries in appended if appended_entries.last > self.seen_sequence]
            if must_read or (new and new[0].first != self.seen_sequence + 1):
                return None
            if new:
                return new

    def _takes(self, appended: AppendedEntries) -> bool:
        """Whether it follows what waits already, and fits."""
        if self._appended and appended.first != self._appended[-1].last + 1:
            return False
        waiting = [*self._appended, appended]
        return (
            sum(len(one.rows) for one in waiting) <= MOST_ENTRIES
            and sum(one.size_bytes for one in waiting) <= MOST_BYTES
        )


_MOST_ENDING_IDS: Final = 4096
_Watch = TypeVar("_Watch")


class QueueWatch:
    """One coordinator's hints, as far as they were not yet sent. Hints may be lost: lists are the truth."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self._claimable = False
        self._ending_task_ids: set[str] = set()

    def tell(self, *, claimable: bool, ending_task_ids: Iterable[str]) -> None:
        self._claimable = self._claimable or claimable
        room = _MOST_ENDING_IDS - len(self._ending_task_ids)
        self._ending_task_ids.update(list(ending_task_ids)[: max(0, room)])
        if self._claimable or self._ending_task_ids:
            self._news.set()

    async def take(self) -> tuple[bool, list[str]]:
        """What came since the last time: (claimable, tasks that are to end)."""
        await self._news.wait()
        self._news.clear()
        claimable, self._claimable = self._claimable, False
        ending, self._ending_task_ids = sorted(self._ending_task_ids), set()
        return claimable, ending


class Hub:
    """All watchers of this process."""

    def __init__(self) -> None:
        self._tasks: dict[str, set[TaskWatch]] = {}
        self._ends: dict[str, set[asyncio.Event]] = {}
        self._queues: set[QueueWatch] = set()
        self._changes: dict[str, set[asyncio.Event]] = {}
        self.sub_agent_events = asyncio.Event()
        self.closed = False
        self._watchers = metrics.cell("tenure_watchers")

    def tell(self, news: Announcement) -> None:
        """Something moved, here or at another replica."""
        for task_id in news.task_ids & self._tasks.keys():
            for watch in self._tasks[task_id]:
                watch.tell(news.appended.get(task_id))
        for task_id in news.ended_task_ids & self._ends.keys():
            for ended in self._ends[task_id]:
                ended.set()
        for tenant in news.changed_tenants & self._changes.keys():
            for changed in self._changes[tenant]:
                changed.set()
        for queue in self._queues:
            queue.tell(claimable=news.claimable, ending_task_ids=news.ending_task_ids)
        if news.sub_agent_events:
            self.sub_agent_events.set()

    def wake_all(self) -> None:
        """News may have been missed: everybody looks for himself."""
        for watches in self._tasks.values():
            for watch in watches:
                watch.tell(None)
        for some in (*self._ends.values(), *self._changes.values()):
            for event in some:
                event.set()
        for queue in self._queues:
            queue.tell(claimable=True, ending_task_ids=())

    def close(self) -> None:
        """The process stops: whoever waits is woken to find `closed`."""
        self.closed = True
        self.wake_all()

    @property
    def task_ids(self) -> set[str]:
        """The tasks that somebody watches."""
        return self._tasks.keys() | self._ends.keys()

    def watched(self) -> dict[str, int]:
        """The tasks whose entries are watched, with the lowest sequence that a watcher of it has reached."""
        return {task_id: min(watch.reached_sequence for watch in them) for task_id, them in self._tasks.items()}

    @contextmanager
    def watch_task(self, task_id: str) -> Iterator[TaskWatch]:
        """A watch for the time of the block. Begin it before reading the ledger: then nothing falls in between."""
        watch = TaskWatch()
        with self._listed(self._tasks, task_id, watch):
            yield watch

    @contextmanager
    def watch_end(self, task_id: str) -> Iterator[asyncio.Event]:
        """Set when the task has ended or may have; nothing else that happens to it is told. Begin before reading."""
        ended = asyncio.Event()
        with self._listed(self._ends, task_id, ended):
            yield ended

    @contextmanager
    def watch_changes(self, tenant: str) -> Iterator[asyncio.Event]:
        """Set when the tenant may have new changes. Begin before reading; polling backs it."""
        changed = asyncio.Event()
        with self._listed(self._changes, tenant, changed):
            yield changed

    @contextmanager
    def watch_queue(self) -> Iterator[QueueWatch]:
        """Hints for the time of the block; the first comes at once, for what was there before."""
        watch = QueueWatch()
        watch.tell(claimable=True, ending_task_ids=())
        self._queues.add(watch)
        try:
            yield watch
        finally:
            self._queues.discard(watch)

    @contextmanager
    def _listed(self, watches: dict[str, set[_Watch]], key: str, watch: _Watch) -> Iterator[None]:
        watches.setdefault(key, set()).add(watch)
        self._watchers.value += 1
        try:
            yield
        finally:
            self._watchers.value -= 1
            watches[key].discard(watch)
            if not watches[key]:
                del watches[key]
