"""Formats numbers, times, states and texts for people."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp
from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tenure.domain.budget import money_text, usd
from tenure.domain.states import TERMINAL, WAITING, TaskState
from tenure.v1 import task_pb2, tool_pb2
from tenure.wire.common import held_back_seconds, seconds, state_name, unix_seconds

# Tables.


class RecordTable(Table):
    """A table with one record a row: a line end in a cell is escaped, or it would begin a row that is not a record."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Adds a record. A cell is a text, styled or not."""
        super().add_row(*map(_in_one_line, cells), **options)


def _in_one_line(cell: RenderableType | None) -> RenderableType | None:
    """Returns the cell escaped: later, the escapes would not fit into the width of the column."""
    if isinstance(cell, str):
        return harmless(cell).translate(_LINE_ENDS)
    if isinstance(cell, Text) and (shown := harmless(cell.plain).translate(_LINE_ENDS)) != cell.plain:
        return Text(shown, cell.style, no_wrap=cell.no_wrap, overflow=cell.overflow)
    return cell


_LINE_ENDS: Final = str.maketrans({"\n": "\\n", "\t": "\\t"})


def make_table(*columns: str, right: Collection[int] = ()) -> Table:
    """Returns a table without lines, which is easy to read and to cut with awk. `right`: the columns of numbers."""
    table = RecordTable(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, no_wrap=index == 0, justify="right" if index in right else "left")
    return table


def make_list(*columns: str, right: Collection[int] = ()) -> Table:
    """Returns a table whose rows take one line. Where it is too wide, only the last column is cut (`cut_text`)."""
    table = make_table(*columns, right=right)
    for column in table.columns[:-1]:
        column.no_wrap = True
    return table


class ListColumn(NamedTuple):
    """A column of a list. `rank`: of those that do not fit, a terminal leaves out the highest first; 0: it stays."""

    name: str
    cells: Sequence[str | Text]
    rank: int = 0
    is_right: bool = False

    @property
    def width(self) -> int:
        return max(cell_len(cell if isinstance(cell, str) else cell.plain) for cell in (self.name, *self.cells))


LAST_COLUMN_WIDTH: Final = 24
"""What other columns leave to the last one, which is cut where it is longer."""


def fitted_list(console_width: int, *columns: ListColumn) -> Table:
    """Returns a list without empty columns of a rank, and without those for which the width has no place."""
    shown = [column for column in columns if not column.rank or any(map(str, column.cells))]
    while _width(shown) > console_width and any(column.rank for column in shown):
        shown.remove(max(shown, key=lambda column: column.rank))
    right = [index for index, column in enumerate(shown) if column.is_right]
    table = make_list(*(column.name for column in shown), right=right)
    for cells in zip(*(column.cells for column in shown), strict=True):
        table.add_row(*cells)
    return table


def _width(columns: Sequence[ListColumn]) -> int:
    *others, last = columns
    return sum(column.width + 2 for column in others) + min(last.width, LAST_COLUMN_WIDTH)


def cut_text(text: str, limit: int) -> Text:
    """Returns at most `limit` characters of text in one line, which a table cuts where it is too wide."""
    return Text(one_line(text, limit), no_wrap=True, overflow="ellipsis")


def goal_text(spec: task_pb2.TaskSpec) -> str:
    """Returns the goal of a task; for a control function without one, the function with its input."""
    return spec.goal or (f"{spec.control.function}({spec.control.input_json})" if spec.HasField("control") else "")


def source_text(source: task_pb2.Source) -> str:
    """Returns a source as `--source` takes it; "" for a task that a person submitted by hand."""
    if not source.source_id and source.kind in {task_pb2.SOURCE_KIND_UNSPECIFIED, task_pb2.SOURCE_KIND_MANUAL}:
        return ""
    kind = task_pb2.SourceKind.Name(source.kind).removeprefix("SOURCE_KIND_").lower()
    source_id = source.source_id.replace("%", "%25").replace("/", "%2F")
    return "/".join(part for part in (kind, source_id, source.source_run_id) if part)


def output_text(output: tool_pb2.TaskOutput) -> str:
    """Returns an output in one line: kind, URI, size, digest, and what is known about it."""
    state = tool_pb2.OutputState.Name(output.state).removeprefix("OUTPUT_STATE_").lower()
    size = f"{output.size_bytes:,} bytes" if output.HasField("size_bytes") else ""
    parts = (f"{output.kind} {output.uri}", size, output.digest, state, output.description)
    return " · ".join(part for part in parts if part)


def make_grid(rows: Iterable[tuple[str, str | Text]]) -> Table:
    """Returns a grid of names and values, without empty values. A value may take several lines."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        if value:
            grid.add_row(name, value)
    return grid


_COARSE: Final = ((86_400, "days"), (3600, "h"), (60, "min"), (1, "s"))
_CONTROLS: Final = (*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0))
UNSEEN: Final = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""Characters beyond ASCII that end lines or change the direction of text."""
_HARMFUL: Final = {code: chr(code).encode("unicode_escape").decode() for code in (*_CONTROLS, *UNSEEN)}
SHORT_ID: Final = 13
"""The first 13 characters of a UUIDv7 are its millisecond: short, and nearly unique in one installation."""


def short_id(task_id: str) -> str:
    return task_id[:SHORT_ID]


def distinct_ids(task_ids: Iterable[str]) -> dict[str, str]:
    """Returns each id with the shortest usual prefix that tells all of them apart."""
    ids = list(task_ids)
    length = next((n for n in (SHORT_ID, 18, 23) if len({task_id[:n] for task_id in ids}) == len(set(ids))), 36)
    return {task_id: task_id[:length] for task_id in ids}


def state_style(state: str) -> str:
    """Returns the colour of a state: green SUCCEEDED, red other terminal states, yellow waits, cyan RUNNING."""
    if state == TaskState.SUCCEEDED:
        return "green"
    if state in TERMINAL:
        return "red"
    if state in WAITING or state == TaskState.RETRY_SCHEDULED:
        return "yellow"
    return "cyan" if state == TaskState.RUNNING else "default"


def seconds_text(seconds: float) -> str:
    """Returns a duration in at most two units: `12 ms`, `0.3 s`, `41 s`, `3 min 20 s`, `2 h`, `3 days 4 h`."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{f'{seconds:.1f}'.removesuffix('.0')} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min{f' {rest} s' if rest else ''}"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h{f' {minutes} min' if minutes else ''}"
    return f"{hours // 24} days{f' {hours % 24} h' if hours % 24 else ''}"


def count_text(number: int, thing: str, things: str = "") -> str:
    """Returns a number with its noun: `1 step`, `2 steps`, `3 entries`. `things` is an irregular plural."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def ago(moment: Timestamp) -> str:
    """Returns how long ago a moment was, in one unit: `41 s ago`; `-` for an unset moment."""
    if not moment.seconds:
        return "-"
    passed = max(0.0, time.time() - unix_seconds(moment))
    unit_seconds, unit = next((size, name) for size, name in _COARSE if passed >= 2 * size or size == 1)
    return f"{passed // unit_seconds:.0f} {unit} ago"


def clock(moment: Timestamp) -> str:
    """Returns the time of day in the local time zone: `12:03:04`."""
    return time.strftime("%H:%M:%S", time.localtime(moment.seconds))


def start_text(task: task_pb2.Task) -> str:
    """Returns `not before 2026-11-23 07:00:00, in 2 h 5 min` for a task before its start time; "": nothing holds it."""
    left_seconds = held_back_seconds(task, time.time())
    if left_seconds is None:
        return "when the line of its source admits it" if task.in_line else ""
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(task.spec.start_time.seconds))
    return f"not before {moment}, in {seconds_text(left_seconds)}"


def program_text(usage: tool_pb2.ProgramUsage) -> str:
    """Returns the CPU time and the peak memory of a program, those that were measured: `0.3 s CPU, 12 MiB`."""
    parts = [f"{seconds_text(seconds(usage.cpu_time))} CPU"] if usage.HasField("cpu_time") else []
    if usage.HasField("peak_memory_bytes"):
        parts.append(f"{usage.peak_memory_bytes / (1 << 20):,.0f} MiB")
    return ", ".join(parts)


def lasted(task: task_pb2.Task) -> str:
    """Returns the time from the submit of a task to its end, or to now."""
    end = unix_seconds(task.end_time) if task.HasField("end_time") else time.time()
    return seconds_text(max(0.0, end - unix_seconds(task.create_time)))


def tokens_total(usage: task_pb2.TokenUsage) -> int:
    """Returns all tokens of a usage, as a budget counts them."""
    return usage.output_tokens + input_total(usage)


def input_total(usage: task_pb2.TokenUsage) -> int:
    """Returns all input tokens, including those that were read from a cache or written to it."""
    return usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens


def usage_text(usage: task_pb2.TokenUsage) -> str:
    """Returns `2,310 tokens in (1,900 from the cache, 82 %), 87 out`."""
    cached = ""
    if usage.cache_read_input_tokens:
        share = usage.cache_read_input_tokens * 100 // input_total(usage)
        cached = f" ({usage.cache_read_input_tokens:,} from the cache, {share} %)"
    return f"{input_total(usage):,} tokens in{cached}, {usage.output_tokens:,} out"


def budget_text(budget: task_pb2.BudgetStatus, *, is_verbose: bool = False) -> str:
    """Returns `12,300 of 2,000,000 tokens used · $0.12 of $1.00`.

    A cap is always exact, as it was set. With `is_verbose` all amounts are, and what is reserved for calls in flight is
    shown, too: `, 500 reserved`.
    """
    money = usd if is_verbose else money_text
    reserved = f", {budget.reserved_tokens:,} reserved" if is_verbose and budget.reserved_tokens else ""
    tokens = f"{budget.used_tokens:,} of {budget.max_tokens:,} tokens used{reserved}"
    if not (budget.max_nano_usd or budget.used_nano_usd or (is_verbose and budget.reserved_nano_usd)):
        return tokens
    cap = f" of {usd(budget.max_nano_usd)}" if budget.max_nano_usd else ""
    reserved = f", {money(budget.reserved_nano_usd)} reserved" if is_verbose and budget.reserved_nano_usd else ""
    unpriced = f", {count_text(budget.unpriced_calls, 'call')} of unknown price" if budget.unpriced_calls else ""
    return f"{tokens} · {money(budget.used_nano_usd)}{cap}{reserved}{unpriced}"


def caps_text(budget: task_pb2.BudgetStatus) -> str:
    """Returns the caps of a budget: `2,000,000 tokens and $1.00`."""
    return f"{budget.max_tokens:,} tokens{f' and {usd(budget.max_nano_usd)}' if budget.max_nano_usd else ''}"


def model_text(spec: task_pb2.TaskSpec) -> str:
    """Returns the model of a task. A ledger without a default model leaves the choice to the worker."""
    return spec.agent.model or "the worker's default model"


def money_cap_text(spec: task_pb2.TaskSpec) -> str:
    """Returns where the cap in money comes from, or why there is none; "" for a cap that the submit set."""
    match spec.limits.money_cap:
        case task_pb2.MONEY_CAP_DEFAULT:
            return "the cap in money is the default"
        case task_pb2.MONEY_CAP_NONE_UNPRICED:
            model = spec.agent.model
            why = f"the price of {model} is unknown" if model else "the ledger does not know the worker's default model"
            return f"no cap in money: {why}"
        case task_pb2.MONEY_CAP_NONE_SET:
            return "no cap in money: the ledger sets none by default"
        case task_pb2.MONEY_CAP_NONE_SUBMITTED:
            return "no cap in money: the submit asked for none"
        case _:
            return "" if spec.limits.max_nano_usd else "no cap in money"


def summary(task: task_pb2.Task) -> str:
    """Returns the work of a task: `12 steps · 34,120 tokens · $0.12 · 41 s`."""
    parts = [count_text(task.step, "step"), count_text(tokens_total(task.usage), "token")]
    return " · ".join([*parts, *([money_text(task.used_nano_usd)] if task.used_nano_usd else []), lasted(task)])


def tree_cost(task: task_pb2.Task) -> str:
    """Returns what a root used together with its sub-agents; "" if they used nothing."""
    used_tokens = task.budget.used_tokens
    if task.parent_task_id or used_tokens <= tokens_total(task.usage):
        return ""
    cost = [money_text(task.budget.used_nano_usd)] if task.budget.used_nano_usd else []
    return f"with its sub-agents: {' · '.join([count_text(used_tokens, 'token'), *cost])}"


def why(state: int, reason: str, message: str) -> str:
    """Returns a state with its reason and message: `RETRY_SCHEDULED (MODEL_RATE_LIMITED): …`. SUCCEEDED stands alone.

    Agents write parts of messages, so control characters are escaped.
    """
    if state == task_pb2.TASK_STATE_SUCCEEDED:
        return TaskState.SUCCEEDED.value
    return harmless(f"{state_name(state)}{f' ({reason})' if reason else ''}{f': {message}' if message else ''}")


def one_line(text: str, width: int) -> str:
    """Returns the text on one line of at most `width` characters, with an ellipsis if it is longer."""
    flat = harmless(" ".join(text.split()))
    return flat if len(flat) <= width else flat[: max(0, width - 1)] + "…"


def harmless(text: str) -> str:
    """Returns text of agents and their programs that is safe to print.

    Characters that move a terminal's cursor, colour it, name its window or reverse the direction of its text are
    escaped. Line ends and tabs stay.
    """
    return text.replace("\r\n", "\n").translate(_HARMFUL)


def printable(text: str) -> str:
    """Returns the text with every unprintable character escaped, also line ends and tabs."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def first_line(text: str, width: int) -> str:
    """Returns the first line that is not empty, cut with an ellipsis, and the number of lines that follow it."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    more = f" (+{count_text(len(lines) - 1, 'line')})" if len(lines) > 1 else ""
    return one_line(lines[0], max(20, width - len(more))) + more


def arguments_text(arguments_json: str) -> str:
    """Returns the arguments of a call: `query="…" num_results=5`. Anything but a JSON object is returned unchanged."""
    try:
        arguments: Any = json.loads(arguments_json or "{}")
    except ValueError:
        return arguments_json
    if not isinstance(arguments, dict):
        return arguments_json
    return " ".join(f"{name}={_value_text(value)}" for name, value in arguments.items())


def _value_text(value: Any) -> str:
    """Returns a value as JSON. The line ends of code and of files are shown as ↵."""
    return json.dumps(value, ensure_ascii=False).replace("\\n", "↵")
