"""The trace of a task and its sub-agents, as the public API shows it: made of the ledger, without a collector."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from tenure.domain.access import Permission
from tenure.domain.spans import TaskSpan
from tenure.domain.traces import TracedTask, TraceProjection
from tenure.domain.waterfall import Row, waterfall, with_refused_writes
from tenure.sdk.json_shape import PublicValue
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.access import PERMISSIONS
from tenure.wire.ledger import entry_for_trace, record_nanoseconds

if TYPE_CHECKING:
    from tenure.v1.admin_service_pb2_grpc import AdminServiceAsyncStub
    from tenure.v1.task_service_pb2_grpc import TaskServiceAsyncStub

MAX_TASKS: Final = 10_000
"""The tasks of a tree that are listed."""
_PAGE: Final = 500
Ask = Callable[[Any, Any], Awaitable[Any]]
"""Makes a unary call: of this method, with this request."""


@dataclass(frozen=True, slots=True)
class TraceEvent(PublicValue):
    """Something that happened at one moment of a span. `attributes`: see docs/tracing.md."""

    name: str
    recorded_at: datetime
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TraceLink(PublicValue):
    """A span of another trace, or another attempt of the task."""

    trace_id: str
    span_id: str


@dataclass(frozen=True, slots=True)
class TraceSpan(PublicValue):
    """A span. `parent_span_id` "": it has none. `ended_at` and `duration_seconds` None: it has not ended.

    `error_type` "": nothing failed. `attributes`: see docs/tracing.md.
    """

    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    kind: str
    started_at: datetime
    ended_at: datetime | None
    duration_seconds: float | None
    error_type: str
    attributes: Mapping[str, Any]
    events: tuple[TraceEvent, ...]
    links: tuple[TraceLink, ...]


@dataclass(frozen=True, slots=True)
class TraceRow(PublicValue):
    """A row of the waterfall: a span, or a moment of one. `kind`: AGENT, MODEL, TOOL, STEP, WAIT or MOMENT.

    `depth`: how deep it is below the task. `ended_at` None: it goes on.
    """

    kind: str
    depth: int
    text: str
    started_at: datetime
    ended_at: datetime | None
    span_id: str
    failed: bool


@dataclass(frozen=True, slots=True)
class Trace(PublicValue):
    """The trace of a task and its sub-agents. `rows`: its waterfall. `more`: sub-agents are missing, or spans."""

    trace_id: str
    spans: tuple[TraceSpan, ...]
    rows: tuple[TraceRow, ...]
    more: bool


def trace_of(spans: Sequence[TaskSpan], *, most_spans: int, more: bool = False) -> Trace:
    """Returns the trace of these spans, of which the oldest are shown."""
    shown = sorted(spans, key=lambda span: span.started_ns)[:most_spans]
    rows = tuple(map(trace_row, waterfall(shown)))
    trace_id = shown[0].trace_id if shown else ""
    return Trace(trace_id, tuple(map(trace_span, shown)), rows, more or len(spans) > most_spans)


def trace_row(row: Row) -> TraceRow:
    """Converts a row of the waterfall."""
    ended_at = None if row.ended_ns is None else _moment(row.ended_ns)
    return TraceRow(row.kind.value, row.depth, row.text, _moment(row.began_ns), ended_at, row.span_id, row.failed)


def trace_span(span: TaskSpan) -> TraceSpan:
    """Converts a span of the projection."""
    return TraceSpan(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_span_id,
        name=span.name,
        kind=span.kind.value,
        started_at=_moment(span.started_ns),
        ended_at=None if span.ended_ns is None else _moment(span.ended_ns),
        duration_seconds=None if span.ended_ns is None else (span.ended_ns - span.started_ns) / 10**9,
        error_type=span.error_type,
        attributes=span.attributes,
        events=tuple(TraceEvent(one.name, _moment(one.at_ns), one.attributes) for one in span.events),
        links=tuple(TraceLink(*link) for link in span.links),
    )


def _moment(nanoseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=nanoseconds // 1000)


# Reading.


async def read_spans(
    ask: Ask, tasks: TaskServiceAsyncStub, admins: AdminServiceAsyncStub, task_id: str, *, most_tasks: int = MAX_TASKS
) -> tuple[list[TaskSpan], bool]:
    """Returns the spans of a task and its sub-agents, and whether sub-agents were left out. Raises NotFound.

    The refused writes of stale workers are events of the spans, where the caller may read them.
    """
    given = (await ask(tasks.GetTask, api.GetTaskRequest(task_id=task_id))).task
    caller = await ask(admins.GetCaller, admin.GetCallerRequest())
    reads_refusals = PERMISSIONS.to_wire(Permission.TENANT_ADMIN) in caller.permissions
    tree = _below(given, [one async for one in _tree(ask, tasks, given)])
    spans: list[TaskSpan] = []
    for task in tree[:most_tasks]:
        of_task = await _spans_of(task, entries_of(ask, tasks, task.task_id))
        spans += await _with_refusals(ask, admins, task.task_id, of_task) if reads_refusals else of_task
    return spans, len(tree) > most_tasks


def _below(given: task_pb2.Task, tasks: Sequence[task_pb2.Task]) -> list[task_pb2.Task]:
    """Returns the task and all its sub-agents, parents first."""
    tree = {given.task_id: given}
    for one in sorted(tasks, key=lambda one: one.depth):
        if one.parent_task_id in tree:
            tree[one.task_id] = one
    return list(tree.values())


async def _tree(ask: Ask, tasks: TaskServiceAsyncStub, given: task_pb2.Task) -> AsyncIterator[task_pb2.Task]:
    wanted = task_pb2.TaskFilter(root_task_id=given.root_task_id or given.task_id)
    request = api.ListTasksRequest(filter=wanted, page_size=_PAGE, fresh=True)
    for _ in range(MAX_TASKS // _PAGE):
        page = await ask(tasks.ListTasks, request)
        for task in page.tasks:
            yield task
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


async def entries_of(ask: Ask, tasks: TaskServiceAsyncStub, task_id: str) -> AsyncIterator[ledger_pb2.Entry]:
    """Yields the entries of a task so far, the oldest first."""
    request, more = api.ListTaskEntriesRequest(task_id=task_id), True
    while more:
        page = await ask(tasks.ListTaskEntries, request)
        for entry in page.entries:
            yield entry
            request.after_sequence = entry.sequence
        more = page.more


async def _spans_of(task: task_pb2.Task, entries: AsyncIterator[ledger_pb2.Entry]) -> list[TaskSpan]:
    projection = TraceProjection(TracedTask(task.task_id, task.root_task_id or task.task_id, task.tenant))
    spans: list[TaskSpan] = []
    async for message in entries:
        entry = entry_for_trace(message, with_content=False)
        if entry is not None:
            spans += projection.apply(entry, record_nanoseconds(message))
    return [*spans, *projection.open_spans()]


async def _with_refusals(
    ask: Ask, admins: AdminServiceAsyncStub, task_id: str, spans: Sequence[TaskSpan]
) -> list[TaskSpan]:
    listed = await ask(admins.ListRefusals, admin.ListRefusalsRequest(task_id=task_id))
    writes = [(one.refuse_time.ToNanoseconds(), one.holder, one.method) for one in (*listed.ledger, *listed.tools)]
    return with_refused_writes(spans, sorted(writes))
