"""Reads the entries of tasks, page by page, and projects them to spans."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import Final

from services.checkpoint.entries import read_page
from services.checkpoint.queries import ledger_connection
from services.checkpoint.traces.export_lease import DueTask
from tenure.domain.spans import TaskSpan
from tenure.domain.traces import TracedTask, TraceProjection
from tenure.runtime.store.postgres import Pool
from tenure.wire.ledger import entry_for_trace, record_nanoseconds

MAX_KEPT: Final = 2000
"""The most projections that are kept between two looks. A task without one is read from its first entry."""


class Projections:
    """The projections of tasks that go on, and how far each has read."""

    def __init__(self, pool: Pool, *, with_content: bool) -> None:
        self._pool, self._with_content = pool, with_content
        self._kept: OrderedDict[str, tuple[TraceProjection, int]] = OrderedDict()

    async def spans(self, due: DueTask) -> AsyncGenerator[tuple[list[TaskSpan], int], None]:
        """Yields the spans that ended after the exported entries, page by page, with the last entry that is through.

        Pages that are exported already have none.
        """
        task_id = due.task.task_id
        projection, read = self._kept.pop(task_id, (TraceProjection(due.task, with_content=self._with_content), 0))
        if read > due.exported:  # another replica, or a batch that was dropped: begin again
            projection, read = TraceProjection(due.task, with_content=self._with_content), 0
        while read < due.sequence:
            # Up to what is exported, the entries only bring the projection there.
            until = due.exported if read < due.exported else due.sequence
            spans, reached = await self._page(projection, due.task, read, until)
            if reached == read:
                return  # it was pruned meanwhile
            is_new, read = read >= due.exported, reached
            yield (spans, read) if is_new else ([], due.exported)
        if due.is_held or read < due.sequence:
            self._keep(task_id, projection, read)

    async def _page(
        self, projection: TraceProjection, task: TracedTask, after: int, until: int
    ) -> tuple[list[TaskSpan], int]:
        async with ledger_connection(self._pool) as connection:
            page = await read_page(connection, task.task_id, after=after, until=until)
        spans: list[TaskSpan] = []
        for message in page:
            entry = entry_for_trace(message, with_content=self._with_content)
            if entry is not None:
                spans += projection.apply(entry, record_nanoseconds(message))
        return spans, page[-1].sequence if page else after

    def _keep(self, task_id: str, projection: TraceProjection, read: int) -> None:
        self._kept[task_id] = projection, read
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
