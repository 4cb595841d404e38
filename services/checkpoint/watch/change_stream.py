"""WatchChanges: streams the changes of a tenant's tasks until the client leaves. Keeps nothing for a slow reader."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

from services.checkpoint.reads import read_tasks
from services.checkpoint.watch.change_feed import ChangePage, FeedGap, FeedReader, RecordedChange, begin
from services.checkpoint.watch.hub import Hub
from tenure.runtime.observability import metrics
from tenure.runtime.rpc.server import draining
from tenure.runtime.store.postgres import Pool, pool_connection
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2

POLL_SECONDS: Final = 2.0
"""The poll interval, a backstop for lost notifications. An idle stream also sends its cursor so often, before it
expires."""
PAUSE_SECONDS: Final = 0.01
"""The pause between two reads of a stream: under load, one read collects several changes."""
HELD_BACK_SECONDS: Final = (0.02, 0.5)
"""The first and the longest pause before the next read while a transaction holds the feed back."""
TASKS_A_READ: Final = 10
MESSAGE_BYTES: Final = 1024 * 1024


class ChangeStream:
    """The change streams of a process. They end once the hub is closed; clients resume at another replica by cursor."""

    def __init__(self, pool: Pool, hub: Hub) -> None:
        self._pool = pool
        self._hub = hub
        self._reads = metrics.cell("tenure_change_reads_total")

    async def changes(
        self, tenant: str, task_filter: task_pb2.TaskFilter, after_cursor: str
    ) -> AsyncIterator[pb.WatchChangesResponse]:
        """Streams changes without end; reads a page after the last one was sent.

        Raises InvalidRequest, OutOfRange or Unavailable.
        """
        reader = FeedReader.of_tenant(self._pool, tenant, task_filter)
        with self._hub.watch_changes(tenant) as changed:
            cursor = await begin(self._pool, after_cursor)
            yield pb.WatchChangesResponse(cursor=cursor.encoded())
            sent_cursor, sent_at, held_seconds = cursor, time.monotonic(), HELD_BACK_SECONDS[0]
            while True:
                changed.clear()
                self._reads.value += 1
                page = await reader.read(cursor)
                if isinstance(page, FeedGap):
                    raise page.error()
                async for answer in self._answers(tenant, page):
                    yield answer
                    sent_cursor, sent_at = page.cursor, time.monotonic()
                if page.cursor != sent_cursor and time.monotonic() - sent_at >= POLL_SECONDS:
                    yield pb.WatchChangesResponse(cursor=page.cursor.encoded())
                    sent_cursor, sent_at = page.cursor, time.monotonic()
                held_seconds = _next_hold(held_seconds, page, moved=page.cursor != cursor)
                cursor = page.cursor
                await self._pause(changed, page, held_seconds)

    async def _pause(self, changed: asyncio.Event, page: ChangePage, held_seconds: float) -> None:
        """Waits until there may be more to read. Raises Unavailable when the service drains."""
        if not page.full:
            await asyncio.sleep(PAUSE_SECONDS)
            with suppress(TimeoutError):  # the next read finds changes whose notification was lost
                async with asyncio.timeout(held_seconds if page.held_back else POLL_SECONDS):
                    await changed.wait()
        if self._hub.closed:
            raise draining()

    async def _answers(self, tenant: str, page: ChangePage) -> AsyncIterator[pb.WatchChangesResponse]:
        """The page's changes, each with its task as it is now, in messages of a bounded size."""
        answer, size = pb.WatchChangesResponse(), 0
        for start in range(0, len(page.changes), TASKS_A_READ):
            some = page.changes[start : start + TASKS_A_READ]
            tasks = await self._tasks(tenant, some)
            for change in some:
                if change.task_id not in tasks:
                    continue  # the task was pruned
                change_message = change.to_message(tasks[change.task_id])
                item = pb.WatchChangesResponse.Item(change=change_message, cursor=change.cursor.encoded())
                if answer.items and size + item.ByteSize() > MESSAGE_BYTES:
                    yield answer
                    answer, size = pb.WatchChangesResponse(), 0
                answer.items.append(item)
                answer.cursor = item.cursor
                size += item.ByteSize()
        if answer.items:
            answer.cursor = page.cursor.encoded()
            yield answer

    async def _tasks(self, tenant: str, changes: Sequence[RecordedChange]) -> dict[str, task_pb2.Task]:
        async with pool_connection(self._pool) as connection:
            tasks = await read_tasks(connection, tenant, sorted({change.task_id for change in changes}))
        return {task.task_id: task for task in tasks}


def _next_hold(seconds: float, page: ChangePage, *, moved: bool) -> float:
    """Returns the next pause, longer each time that the cursor did not move."""
    shortest, longest = HELD_BACK_SECONDS
    return min(2 * seconds, longest) if page.held_back and not moved else shortest
