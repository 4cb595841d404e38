"""`tenure tasks trace`: the waterfall of a task, drawn from its ledger."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import click
from rich.text import Text

from tenure.cli.context import Context, with_client
from tenure.cli.formatting import count_text, one_line, seconds_text
from tenure.cli.parameters import find_task, task_argument
from tenure.client import Client
from tenure.domain.spans import TaskSpan
from tenure.domain.waterfall import Row, RowKind, waterfall
from tenure.sdk.traces import read_spans, trace_span

MAX_NAME: Final = 60
MIN_BAR, MAX_BAR = 20, 60
_WORKS, _WAITS, _MOMENT, _GOES_ON = "━", "┄", "◆", "▸"
_STYLES: Final = {RowKind.WAIT: "dim", RowKind.MOMENT: "yellow"}


@click.command(short_help="Draw the waterfall of TASK and its sub-agents.")
@task_argument
@with_client
async def trace(context: Context, client: Client, task: str) -> None:
    """Draw the waterfall of TASK and its sub-agents: model calls, tool calls, waits, kills and takeovers.

    It comes from the ledger and needs no collector. A collector gets the same spans: see docs/tracing.md. With --json,
    one span a line.
    """
    task_id = await find_task(client, task)
    spans, _ = await read_spans(lambda method, request: method(request), client.tasks, client.admin, task_id)
    if context.as_json:
        for span in sorted(spans, key=lambda span: span.started_ns):
            context.emit(trace_span(span).to_json())
    else:
        Waterfall(spans, time.time_ns(), context.console.width).show(context)


class Waterfall:
    """The spans in lines, children below their parents, in the order of their beginnings."""

    def __init__(self, spans: Sequence[TaskSpan], now_ns: int, width: int) -> None:
        self._now_ns, self._spans = now_ns, spans
        self._rows = waterfall(spans)
        self._began_ns = min((row.began_ns for row in self._rows), default=0)
        self._total_ns = max(1, max(map(self._end_ns, self._rows), default=0) - self._began_ns)
        longest = max((2 * row.depth + len(row.text) for row in self._rows), default=0)
        self._name_width = min(MAX_NAME, longest, max(20, width // 2))
        self._bar_width = max(MIN_BAR, min(MAX_BAR, width - self._name_width - 16))

    def show(self, context: Context) -> None:
        for row in self._rows:
            context.console.print(self._line(row), no_wrap=True, soft_wrap=True)
        took = seconds_text(self._total_ns / 10**9)
        trace_id = self._spans[0].trace_id if self._spans else ""
        context.console.print(Text(f"{count_text(len(self._spans), 'span')}, {took}, trace {trace_id}", "dim"))

    def _line(self, row: Row) -> Text:
        indent, style = "  " * row.depth, _style(row)
        name = f"{indent}{one_line(row.text, self._name_width - len(indent))}".ljust(self._name_width)
        first = self._column(row.began_ns)
        if row.kind is RowKind.MOMENT:
            took, bar = f"at {seconds_text((row.began_ns - self._began_ns) / 10**9)}", _MOMENT
        else:
            took = seconds_text((self._end_ns(row) - row.began_ns) / 10**9)
            mark = _WAITS if row.kind is RowKind.WAIT else _WORKS
            bar = mark * max(1, self._column(self._end_ns(row)) - first)
            bar = bar[:-1] + _GOES_ON if row.ended_ns is None else bar
        line = f"{' ' * first}{bar}".ljust(self._bar_width)
        return Text.assemble((name, style), "  ", (line, style), f"  {took}")

    def _end_ns(self, row: Row) -> int:
        return max(self._now_ns, row.began_ns) if row.ended_ns is None else row.ended_ns

    def _column(self, at_ns: int) -> int:
        return min(self._bar_width - 1, (at_ns - self._began_ns) * self._bar_width // self._total_ns)


def _style(row: Row) -> str:
    if row.failed:
        return "red"
    return _STYLES.get(row.kind, "cyan" if row.ended_ns is None else "default")
