"""The duty that exports traces. Of several replicas, one has the lease.

A span is exported before its entries count as exported, so a crash exports it again, with the same id. While the
collector is unreachable, one batch waits in memory and everything else in the ledger. A batch that it refuses is halved
until the span is found that it does not take: that one is left out, so that it does not hold up all others.
"""

from __future__ import annotations

import logging
import random
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import Final

from services.checkpoint.entries import read_page
from services.checkpoint.traces.export_lease import (
    LEASE_SECONDS,
    NO_TASK,
    DueTask,
    Exported,
    ExportLease,
    settled,
    take_lease,
)
from services.checkpoint.traces.otlp import MAX_CONTENT_CHARACTERS, Collector, Sent, collector_at
from services.checkpoint.traces.settings import TraceSettings
from tenure.domain import semconv
from tenure.domain.retry import RetryPolicy
from tenure.domain.spans import TaskSpan
from tenure.domain.traces import TracedTask, TraceProjection
from tenure.runtime.observability import metrics
from tenure.runtime.process import note_progress, rest
from tenure.runtime.store.postgres import Pool, pool_connection
from tenure.wire.ledger import entry_for_trace, record_nanoseconds

# Reads the entries of tasks, page by page, and projects them to spans.

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
        async with pool_connection(self._pool) as connection:
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


_log: Final = logging.getLogger(__name__)
INTERVAL_SECONDS: Final = 1.0
TASKS_A_PAGE: Final = 64
SPANS_A_BATCH: Final = 512
CONTENT_A_BATCH: Final = 1_000_000
"""In characters. With the last page of entries, a batch stays below the 4 MiB that receivers of gRPC accept."""
REFUSALS: Final = 4
"""How often the collector refuses a span alone before it is left out: it may have a fault that passes."""
AGAIN: Final = RetryPolicy(initial_seconds=1.0, factor=2.0, cap_seconds=30.0)


class _Batch:
    """Spans to export together, and how far their tasks are exported then."""

    def __init__(self) -> None:
        self.spans: list[TaskSpan] = []
        self.exported: dict[str, Exported] = {}
        self._content = 0

    def add(self, due: DueTask, spans: list[TaskSpan], reached: int) -> None:
        self.spans += spans
        self.exported[due.task.task_id] = Exported(reached, is_due=due.is_held or reached < due.sequence)
        self._content += sum(map(_content_characters, spans))

    @property
    def is_full(self) -> bool:
        return len(self.spans) >= SPANS_A_BATCH or self._content >= CONTENT_A_BATCH


def _content_characters(span: TaskSpan) -> int:
    """Returns how much content a span has, as far as it is exported."""
    texts = (str(value) for name, value in span.attributes.items() if name in semconv.CONTENT)
    return sum(min(len(text), MAX_CONTENT_CHARACTERS) for text in texts)


class TraceExporter:
    """Exports the traces of all tasks until it is cancelled. `holder`: the name of this replica."""

    def __init__(self, pool: Pool, settings: TraceSettings, holder: str) -> None:
        self._pool, self._settings, self._holder = pool, settings, holder
        self._exported = metrics.cell("tenure_trace_spans_exported_total")
        self._failures = metrics.cell("tenure_trace_export_failures_total")
        self._left_out = metrics.cell("tenure_trace_spans_left_out_total")
        self._complete_at = time.monotonic()

    async def run(self) -> None:
        """Runs as a duty."""
        redact = self._settings.redact_function()
        while True:
            lease = await take_lease(self._pool, self._holder)
            if lease is None:
                metrics.gauge("tenure_trace_export_lag_seconds", 0)  # the replica with the lease knows it
                await rest(LEASE_SECONDS / 3 * random.uniform(0.8, 1.2))
                continue
            collector = collector_at(self._settings, redact)
            try:
                await self._work(lease, collector)
            finally:
                collector.close()
                await lease.end()

    async def _work(self, lease: ExportLease, collector: Collector) -> None:
        projections = Projections(self._pool, with_content=self._settings.content)
        self._complete_at = time.monotonic()
        while not lease.is_lost():
            began = time.monotonic()
            await lease.read_changes()
            has_spans = await self._look(lease, collector, projections)
            if lease.is_lost():
                break
            self._complete_at = began
            self._note_lag()
            if not has_spans:
                await rest(INTERVAL_SECONDS * random.uniform(0.8, 1.2))

    async def _look(self, lease: ExportLease, collector: Collector, projections: Projections) -> bool:
        """Exports what is due. Returns whether there were spans."""
        batch, after, has_spans = _Batch(), NO_TASK, False
        while page := await lease.due(after, TASKS_A_PAGE):
            after = page[-1].task.task_id
            batch.exported |= settled(page)
            for due in page:
                async for spans, reached in projections.spans(due):
                    batch.add(due, spans, reached)
                    has_spans = has_spans or bool(spans)
                    if batch.is_full:
                        await self._flush(lease, collector, batch)
                        batch = _Batch()
                    note_progress()  # a task may have many pages, which bring no span if they are exported already
                    await lease.keep()
                    if lease.is_lost():
                        return has_spans
            note_progress()
            await lease.keep()
        await self._flush(lease, collector, batch)
        return has_spans

    async def _flush(self, lease: ExportLease, collector: Collector, batch: _Batch) -> None:
        """Exports a batch, however long it takes, and records it."""
        parts = [batch.spans] if batch.spans else []
        while parts:
            part = parts.pop()
            is_taken = await self._send(lease, collector, part)
            if lease.is_lost():
                return
            if is_taken:
                self._exported.value += len(part)
            elif len(part) > 1:
                half = len(part) // 2
                parts += [part[half:], part[:half]]
            else:
                self._leave_out(part[0])
        if batch.exported:
            await lease.note(batch.exported)
        note_progress()
        await lease.keep()

    async def _send(self, lease: ExportLease, collector: Collector, spans: list[TaskSpan]) -> bool:
        """Sends spans, however long it takes. Returns whether the collector took them; if not, it refuses them."""
        failures = refusals = 0
        while (sent := await collector.send(spans)) is not Sent.TAKEN:
            failures += 1
            self._failures.value += 1
            refusals += sent is Sent.REFUSED
            note_progress()
            await lease.keep()
            if lease.is_lost() or (sent is Sent.REFUSED and (len(spans) > 1 or refusals >= REFUSALS)):
                return False
            if failures == 1:
                _log.warning("the collector does not take traces: they wait in the ledger")
            self._note_lag()
            await rest(AGAIN.wait_seconds(failures, random.random(), None))
            await lease.read_changes()
        return True

    def _leave_out(self, span: TaskSpan) -> None:
        self._left_out.value += 1
        _log.error(
            "the collector refuses a span: it is left out of the traces",
            extra={"task": span.attributes.get(semconv.TASK_ID), "span": span.span_id, "sequence": span.end_sequence},
        )

    def _note_lag(self) -> None:
        metrics.gauge("tenure_trace_export_lag_seconds", time.monotonic() - self._complete_at)
