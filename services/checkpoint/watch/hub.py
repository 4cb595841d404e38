"""The watchers of this process: of a task's ledger, of a tenant's changes, of the queue.

The hub passes on entries that this process committed. Of everything else it says only that something changed, and the
watchers read the ledger themselves: so a slow watcher neither misses an entry nor needs much memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from services.checkpoint.watch.announcement import Announcement
from services.checkpoint.watch.appended_entries import AppendedEntries
from tenure.runtime.observability import metrics

# One watcher of one task: the entries appended since its last read, as long as it need not read the ledger.

MAX_ENTRIES: Final = 128
MAX_BYTES: Final = 256 * 1024
"""The bounds of the entries kept for one watcher. A slower watcher reads pages of the ledger instead."""


class TaskWatch:
    """Keeps appended entries that follow one another. Drops all when some do not fit: the ledger has them."""

    def __init__(self) -> None:
        self.seen_sequence = 0
        self._moved = asyncio.Event()
        self._appended: list[AppendedEntries] = []
        self._must_read = False

    @property
    def reached_sequence(self) -> int:
        """The last sequence that the watcher has, sent or kept for it."""
        return max(self.seen_sequence, self._appended[-1].last if self._appended else 0)

    def tell(self, appended: AppendedEntries | None) -> None:
        """Reports new entries of the task. None: another replica committed them, or they are unknown."""
        if appended is None or self._must_read or not self._takes(appended):
            self._must_read = True
            self._appended.clear()
        else:
            self._appended.append(appended)
        self._moved.set()

    async def take(self) -> list[AppendedEntries] | None:
        """Waits for the entries after the seen sequence, without a gap. None: read the ledger, which may have nothing
        new.
        """
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
        """Whether the entries follow the kept ones and fit within the bounds."""
        if self._appended and appended.first != self._appended[-1].last + 1:
            return False
        waiting = [*self._appended, appended]
        return (
            sum(len(one.rows) for one in waiting) <= MAX_ENTRIES and sum(one.size_bytes for one in waiting) <= MAX_BYTES
        )


_MAX_ENDING_IDS: Final = 4096
_Watch = TypeVar("_Watch")


@dataclass(slots=True)
class QueueEvents:
    """The news for a coordinator. `interrupts_lost`: there may be interrupted tasks that are not named."""

    claimable: bool = False
    ending_task_ids: set[str] = field(default_factory=set)
    interrupted_task_ids: set[str] = field(default_factory=set)
    interrupts_lost: bool = False

    def __bool__(self) -> bool:
        return self.claimable or self.interrupts_lost or bool(self.ending_task_ids or self.interrupted_task_ids)


class QueueWatch:
    """The messages that one coordinator has not received yet. A message may be lost: the lists of the ledger decide."""

    def __init__(self) -> None:
        self._has_events = asyncio.Event()
        self._events = QueueEvents()

    def tell(self, announcement: Announcement) -> None:
        """Takes what the announcement says to coordinators."""
        events = self._events
        events.claimable = events.claimable or announcement.claimable
        room = _MAX_ENDING_IDS - len(events.ending_task_ids)
        events.ending_task_ids.update(list(announcement.ending_task_ids)[: max(0, room)])
        interrupted = events.interrupted_task_ids | announcement.interrupted_task_ids
        if len(interrupted) > _MAX_ENDING_IDS:
            events.interrupts_lost = True
        else:
            events.interrupted_task_ids = interrupted
        if events:
            self._has_events.set()

    def tell_lost(self) -> None:
        """Takes that announcements may have been lost."""
        self._events.claimable = self._events.interrupts_lost = True
        self._has_events.set()

    async def take(self) -> QueueEvents:
        """Waits for a change and returns all events since the last call."""
        await self._has_events.wait()
        self._has_events.clear()
        events, self._events = self._events, QueueEvents()
        return events


class Hub:
    """All watchers of this process."""

    def __init__(self) -> None:
        self._tasks: dict[str, set[TaskWatch]] = {}
        self._ends: dict[str, set[asyncio.Event]] = {}
        self._queues: set[QueueWatch] = set()
        self._changes: dict[str, set[asyncio.Event]] = {}
        self.sub_agent_events = asyncio.Event()
        self.source_lines = asyncio.Event()
        self.closed = False
        self._watchers = metrics.cell("tenure_watchers")

    def tell(self, announcement: Announcement) -> None:
        """Distributes an announcement of this process or of another replica."""
        for task_id in announcement.task_ids & self._tasks.keys():
            for watch in self._tasks[task_id]:
                watch.tell(announcement.appended.get(task_id))
        for task_id in announcement.ended_task_ids & self._ends.keys():
            for ended in self._ends[task_id]:
                ended.set()
        for tenant in announcement.changed_tenants & self._changes.keys():
            for changed in self._changes[tenant]:
                changed.set()
        for queue in self._queues:
            queue.tell(announcement)
        if announcement.sub_agent_events:
            self.sub_agent_events.set()
        if announcement.source_lines:
            self.source_lines.set()

    def wake_all(self) -> None:
        """Wakes all watchers to read the ledger, because notifications may have been lost."""
        for watches in self._tasks.values():
            for watch in watches:
                watch.tell(None)
        for some in (*self._ends.values(), *self._changes.values()):
            for event in some:
                event.set()
        for queue in self._queues:
            queue.tell_lost()

    def close(self) -> None:
        """Ends all watches when the process stops: every waiter wakes and finds `closed`."""
        self.closed = True
        self.wake_all()

    @property
    def task_ids(self) -> set[str]:
        """The tasks that have a watcher."""
        return self._tasks.keys() | self._ends.keys()

    def wake_behind(self, sequences: Mapping[str, int]) -> None:
        """Wakes the watchers that have not reached the sequence of their task, given by task id, to read the ledger."""
        for task_id in sequences.keys() & self._tasks.keys():
            for watch in self._tasks[task_id]:
                if watch.reached_sequence < sequences[task_id]:
                    watch.tell(None)

    @contextmanager
    def watch_task(self, task_id: str) -> Iterator[TaskWatch]:
        """Watches a task within the block. Begin before the first read of the ledger, so that no entry is missed
        between.
        """
        watch = TaskWatch()
        with self._listed(self._tasks, task_id, watch):
            yield watch

    @contextmanager
    def watch_end(self, task_id: str) -> Iterator[asyncio.Event]:
        """Yields an event that is set when the task has or may have ended, and for nothing else. Begin before the first
        read.
        """
        ended = asyncio.Event()
        with self._listed(self._ends, task_id, ended):
            yield ended

    @contextmanager
    def watch_changes(self, tenant: str) -> Iterator[asyncio.Event]:
        """Yields an event that is set when the tenant may have new changes. Begin before the first read; polling backs
        it.
        """
        changed = asyncio.Event()
        with self._listed(self._changes, tenant, changed):
            yield changed

    @contextmanager
    def watch_queue(self) -> Iterator[QueueWatch]:
        """Watches the queue within the block. The first message comes at once, for tasks that were there before."""
        watch = QueueWatch()
        watch.tell_lost()
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
