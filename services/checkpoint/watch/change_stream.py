"""WatchChanges: what happens to a tenant's tasks, for as long as somebody asks. Nothing is kept for a slow reader."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from services.checkpoint.queries import ledger_connection
from services.checkpoint.reads import filter_parameters, read_tasks
from services.checkpoint.watch.change_feed import (
    ChangePage,
    RecordedChange,
    begin,
    read_changes,
)
from tenure.runtime import metrics
from tenure.runtime.rpc_server import draining
from tenure.v1 import checkpoint_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from services.checkpoint.watch.hub import Hub
    from tenure.runtime.postgres import Pool
    from tenure.v1 import task_pb2

POLL_SECONDS: Final = 2.0
"""The backstop of lost hints, and how often an idle stream tells its cursor, so that it does not grow old."""
PAUSE_SECONDS: Final = 0.01
"""Between two reads of a stream: under load each brings what gathered meanwhile."""
HELD_BACK_SECONDS: Final = (0.02, 0.5)
"""How soon to look again while a transaction holds the feed back: at first, and at the most when it goes on."""
TASKS_A_READ: Final = 10
MESSAGE_BYTES: Final = 1024 * 1024


class ChangeStream:
    """The streams of a process. Once the hub is closed they end: another replica goes on after the last cursor."""

    def __init__(self, pool: Pool, hub: Hub) -> None:
        self._pool = pool
        self._hub = hub
        self._reads = metrics.cell("tenure_change_reads_total")

    async def changes(
        self, tenant: str, task_filter: task_pb2.TaskFilter, after_cursor: str
    ) -> AsyncIterator[pb.WatchChangesResponse]:
        """For ever; a page is read when the one before was sent. Raises InvalidRequest, OutOfRange, Unavailable."""
        wanted = filter_parameters(task_filter)
        with self._hub.watch_changes(tenant) as changed:
            cursor = await begin(self._pool, after_cursor)
            yield pb.WatchChangesResponse(cursor=cursor.encoded())
            sent_cursor, told_at, held_seconds = cursor, time.monotonic(), HELD_BACK_SECONDS[0]
            while True:
                changed.clear()
                self._reads.value += 1
                page = await read_changes(self._pool, tenant, wanted, cursor)
                async for answer in self._answers(tenant, page):
                    yield answer
                    sent_cursor, told_at = page.cursor, time.monotonic()
                if page.cursor != sent_cursor and time.monotonic() - told_at >= POLL_SECONDS:
                    yield pb.WatchChangesResponse(cursor=page.cursor.encoded())
                    sent_cursor, told_at = page.cursor, time.monotonic()
                held_seconds = _next_hold(held_seconds, page, moved=page.cursor != cursor)
                cursor = page.cursor
                await self._pause(changed, page, held_seconds)

    async def _pause(self, changed: asyncio.Event, page: ChangePage, held_seconds: float) -> None:
        """Until there may be more to read. Raises Unavailable when we drain."""
        if not page.full:
            await asyncio.sleep(PAUSE_SECONDS)
            with suppress(TimeoutError):  # what was not told of is found by looking
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
                    continue  # pruned since
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
        async with ledger_connection(self._pool) as connection:
            tasks = await read_tasks(connection, tenant, sorted({change.task_id for change in changes}))
        return {task.task_id: task for task in tasks}


def _next_hold(seconds: float, page: ChangePage, *, moved: bool) -> float:
    """Longer each time that nothing moved."""
    shortest, longest = HELD_BACK_SECONDS
    return min(2 * seconds, longest) if page.held_back and not moved else shortest
