"""`tenure tasks trace`: the waterfall of a task, drawn from its ledger."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import click
from rich.text import Text

from tenure.cli.context import Context, with_client
from tenure.cli.formatting import count_text, one_line, seconds_text
from tenure.cli.parameters import find_task, task_argument
from tenure.cli.tasks import call_order
from tenure.client import Client
from tenure.domain import semconv
from tenure.domain.spans import AttributeValue, SpanEvent, TaskSpan
from tenure.domain.traces import TracedTask, TraceProjection
from tenure.sdk.traces import trace_span
from tenure.v1 import task_pb2
from tenure.wire.ledger import entry_for_trace, record_nanoseconds

MAX_TASKS: Final = 10_000
MAX_NAME: Final = 60
MIN_BAR, MAX_BAR = 20, 60
_WORKS, _WAITS, _MOMENT, _GOES_ON = "━", "┄", "◆", "▸"
_SHOWN_EVENTS: Final = frozenset(
    {
        semconv.EVENT_TAKEOVER,
        semconv.EVENT_MODEL_FAILURE,
        semconv.EVENT_CALL_RETRY,
        semconv.EVENT_ANSWER,
        semconv.EVENT_ESCALATION,
        semconv.EVENT_BUDGET_WARNING,
        semconv.EVENT_QUOTA_WARNING,
        semconv.EVENT_CANCEL,
        semconv.EVENT_OPERATOR,
        semconv.EVENT_FUNCTION_FAILURE,
        semconv.EVENT_RESULT_REJECTED,
        semconv.EVENT_COMPACTION,
    }
)


@click.command(short_help="Draw the waterfall of TASK and its sub-agents.")
@task_argument
@with_client
async def trace(context: Context, client: Client, task: str) -> None:
    """Draw the waterfall of TASK and its sub-agents: model calls, tool calls, waits, kills and takeovers.

    It comes from the ledger and needs no collector. A collector gets the same spans: see docs/tracing.md. With --json,
    one span a line.
    """
    given_task = await client.get(await find_task(client, task))
    task_filter = task_pb2.TaskFilter(root_task_id=given_task.root_task_id)
    tasks = [one async for one in client.list_tasks(task_filter, limit=MAX_TASKS, fresh=True)]
    spans = [span for one in _below(given_task, tasks) for span in await _spans(client, one)]
    if context.as_json:
        for span in sorted(spans, key=lambda span: span.started_ns):
            context.emit(trace_span(span).to_json())
    else:
        Waterfall(spans, time.time_ns(), context.console.width).show(context)


def _below(given_task: task_pb2.Task, tasks: list[task_pb2.Task]) -> list[task_pb2.Task]:
    """Returns the task and all its sub-agents, parents first."""
    tree = {given_task.task_id: given_task}
    for one in sorted(tasks, key=lambda one: (one.depth, call_order(one))):
        if one.parent_task_id in tree:
            tree[one.task_id] = one
    return list(tree.values())


async def _spans(client: Client, task: task_pb2.Task) -> list[TaskSpan]:
    projection = TraceProjection(TracedTask(task.task_id, task.root_task_id, task.tenant))
    spans: list[TaskSpan] = []
    async for message in client.entries(task.task_id):
        entry = entry_for_trace(message, with_content=False)
        if entry is not None:
            spans += projection.apply(entry, record_nanoseconds(message))
    return [*spans, *projection.open_spans()]


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of the waterfall: a span, or a moment of one. `began_ns` equal to `ended_ns`: a moment."""

    depth: int
    name: str
    began_ns: int
    ended_ns: int
    mark: str
    style: str
    goes_on: bool = False


class Waterfall:
    """The spans in lines, children below their parents, in the order of their beginnings."""

    def __init__(self, spans: list[TaskSpan], now_ns: int, width: int) -> None:
        self._now_ns, self._spans = now_ns, spans
        ids = {span.span_id for span in spans}
        self._children: dict[str, list[TaskSpan]] = defaultdict(list)
        for span in spans:
            self._children[span.parent_span_id if span.parent_span_id in ids else ""].append(span)
        self._rows = list(self._rows_of("", 0))
        self._began_ns = min((row.began_ns for row in self._rows), default=0)
        self._total_ns = max(1, max((row.ended_ns for row in self._rows), default=0) - self._began_ns)
        longest = max((2 * row.depth + len(row.name) for row in self._rows), default=0)
        self._name_width = min(MAX_NAME, longest, max(20, width // 2))
        self._bar_width = max(MIN_BAR, min(MAX_BAR, width - self._name_width - 16))

    def show(self, context: Context) -> None:
        for row in self._rows:
            context.console.print(self._line(row), no_wrap=True, soft_wrap=True)
        took = seconds_text(self._total_ns / 10**9)
        trace_id = self._spans[0].trace_id if self._spans else ""
        context.console.print(Text(f"{count_text(len(self._spans), 'span')}, {took}, trace {trace_id}", "dim"))

    def _rows_of(self, parent_id: str, depth: int) -> Iterator[_Row]:
        for span in sorted(self._children[parent_id], key=lambda span: (span.started_ns, _sequence(span))):
            yield self._row(span, depth)
            below = [*_moments(span, depth + 1), *self._rows_of(span.span_id, depth + 1)]
            # Stable: rows of children stay behind their parent, and a moment comes before the first later child.
            yield from _in_time(below, depth + 1)

    def _row(self, span: TaskSpan, depth: int) -> _Row:
        state, is_wait = str(span.attributes.get(semconv.STATE, "")), span.name.split()[0] not in _OPERATIONS
        end = span.error_type or (state if span.name.startswith(semconv.INVOKE_AGENT) else "")
        reason = str(span.attributes.get(semconv.REASON, "")) if is_wait and not span.name.startswith("step ") else ""
        name = " ".join(part for part in (span.name, reason, end) if part)
        goes_on = span.ended_ns is None
        style = "red" if span.error_type else "dim" if is_wait else "cyan" if goes_on else "default"
        ended_ns = self._now_ns if span.ended_ns is None else span.ended_ns
        mark = _WAITS if is_wait and not span.name.startswith("step ") else _WORKS
        return _Row(depth, name, span.started_ns, max(ended_ns, span.started_ns), mark, style, goes_on)

    def _line(self, row: _Row) -> Text:
        indent = "  " * row.depth
        name = f"{indent}{one_line(row.name, self._name_width - len(indent))}".ljust(self._name_width)
        first = self._column(row.began_ns)
        if row.mark == _MOMENT:
            took, bar = f"at {seconds_text((row.began_ns - self._began_ns) / 10**9)}", _MOMENT
        else:
            took = seconds_text((row.ended_ns - row.began_ns) / 10**9)
            bar = row.mark * max(1, self._column(row.ended_ns) - first)
            bar = bar[:-1] + _GOES_ON if row.goes_on else bar
        line = f"{' ' * first}{bar}".ljust(self._bar_width)
        return Text.assemble((name, row.style), "  ", (line, row.style), f"  {took}")

    def _column(self, at_ns: int) -> int:
        return min(self._bar_width - 1, (at_ns - self._began_ns) * self._bar_width // self._total_ns)


_OPERATIONS: Final = frozenset({semconv.INVOKE_AGENT, semconv.CHAT, semconv.EXECUTE_TOOL, "step"})


def _sequence(span: TaskSpan) -> int:
    return int(str(span.attributes.get(semconv.SEQUENCE, 0)))


def _in_time(rows: list[_Row], depth: int) -> Iterator[_Row]:
    """Yields the rows of one depth in the order of their beginnings, each with what is below it."""
    groups: list[list[_Row]] = []
    for row in rows:
        if row.depth == depth:
            groups.append([row])
        else:
            groups[-1].append(row)
    for group in sorted(groups, key=lambda group: group[0].began_ns):
        yield from group


def _moments(span: TaskSpan, depth: int) -> Iterator[_Row]:
    """Yields what happened within a span. A takeover is shown once, at the task, and an answer at its wait."""
    is_agent = span.name.startswith(semconv.INVOKE_AGENT)
    for event in span.events:
        if event.name not in _SHOWN_EVENTS or (event.name == semconv.EVENT_TAKEOVER and not is_agent):
            continue
        if event.name == semconv.EVENT_ANSWER and span.name.startswith(semconv.EXECUTE_TOOL):
            continue
        yield _Row(depth, _event_text(event), event.at_ns, event.at_ns, _MOMENT, "yellow")


def _event_text(event: SpanEvent) -> str:
    attributes = event.attributes
    if event.name == semconv.EVENT_TAKEOVER:
        workers = f"{attributes[semconv.FROM_WORKER]} → {attributes[semconv.WORKER]}"
        return f"takeover {workers} ({attributes[semconv.REASON]})"
    values = " ".join(_value_text(value) for value in attributes.values() if not isinstance(value, bool))
    return f"{event.name.removeprefix('tenure.').replace('_', ' ')} {values}".strip()


def _value_text(value: AttributeValue) -> str:
    return ", ".join(value) if isinstance(value, tuple) else f"{value:,}" if isinstance(value, int) else str(value)
