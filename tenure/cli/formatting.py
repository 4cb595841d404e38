"""How numbers, times, states and texts are said to people."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.timestamp_pb2 import Timestamp
from rich.table import Table

from tenure.domain.budget import money_text, usd
from tenure.domain.states import TERMINAL, WAITING, TaskState
from tenure.v1 import task_pb2, tool_pb2
from tenure.wire.common import seconds, state_name, unix_seconds
from tenure.wire.task import held_back_seconds

# Tables as this command prints them.


def make_table(*columns: str) -> Table:
    """Columns without lines: easy to read, and to cut with awk."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, no_wrap=index == 0)
    return table


def make_grid() -> Table:
    """Names and what belongs to them, which may take more lines."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


_COARSE: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_CONTROLS: Final = (*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0))
_DIRECTIONS: Final = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_HARMFUL: Final = {code: chr(code).encode("unicode_escape").decode() for code in (*_CONTROLS, *_DIRECTIONS)}
SHORT_ID: Final = 13
"""Of a UUIDv7 the first 13 characters are its millisecond: short, and as good as unique in one installation."""


def short_id(task_id: str) -> str:
    return task_id[:SHORT_ID]


def distinct_ids(task_ids: Iterable[str]) -> dict[str, str]:
    """Each with as much of it as tells it from the others."""
    ids = list(task_ids)
    length = next((n for n in (SHORT_ID, 18, 23) if len({one[:n] for one in ids}) == len(set(ids))), 36)
    return {one: one[:length] for one in ids}


def state_style(state: str) -> str:
    """The colour of a state: green is done, red is broken, yellow waits."""
    if state == TaskState.SUCCEEDED:
        return "green"
    if state in TERMINAL:
        return "red"
    if state in WAITING or state == TaskState.RETRY_SCHEDULED:
        return "yellow"
    return "cyan" if state == TaskState.RUNNING else "default"


def seconds_text(seconds: float) -> str:
    """`12 ms`, `0.3 s`, `41 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def count_text(number: int, thing: str, things: str = "") -> str:
    """`1 step`, `2 steps`, `3 entries`."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def ago(moment: Timestamp) -> str:
    """How long ago, in the one unit that matters; `-` when it never was."""
    if not moment.seconds:
        return "-"
    passed = max(0.0, time.time() - unix_seconds(moment))
    unit_seconds, unit = next((size, name) for size, name in _COARSE if passed >= 2 * size or size == 1)
    return f"{passed // unit_seconds:.0f} {unit} ago"


def clock(moment: Timestamp) -> str:
    """The time of day here."""
    return time.strftime("%H:%M:%S", time.localtime(moment.seconds))


def start_text(task: task_pb2.Task) -> str:
    """`not before 2026-11-23 07:00:00, in 2 h 5 min` while a task is held back; else nothing."""
    left_seconds = held_back_seconds(task, time.time())
    if left_seconds is None:
        return ""
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(task.spec.start_time.seconds))
    return f"not before {moment}, in {seconds_text(left_seconds)}"


def program_text(usage: tool_pb2.ProgramUsage) -> str:
    """`0.3 s CPU, 12 MiB`: what a program used, as far as it was counted."""
    parts = [f"{seconds_text(seconds(usage.cpu_time))} CPU"] if usage.HasField("cpu_time") else []
    if usage.HasField("peak_memory_bytes"):
        parts.append(f"{usage.peak_memory_bytes / (1 << 20):,.0f} MiB")
    return ", ".join(parts)


def lasted(task: task_pb2.Task) -> str:
    """From submit to its end, or to now."""
    until = unix_seconds(task.end_time) if task.HasField("end_time") else time.time()
    return seconds_text(max(0.0, until - unix_seconds(task.create_time)))


def tokens_total(usage: task_pb2.TokenUsage) -> int:
    """As a budget counts them."""
    return usage.output_tokens + input_total(usage)


def input_total(usage: task_pb2.TokenUsage) -> int:
    """Read from a cache or not."""
    return usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens


def usage_text(usage: task_pb2.TokenUsage) -> str:
    """`2,310 tokens in (1,900 from the cache, 82 %), 87 out`."""
    cached = ""
    if usage.cache_read_input_tokens:
        share = usage.cache_read_input_tokens * 100 // input_total(usage)
        cached = f" ({usage.cache_read_input_tokens:,} from the cache, {share} %)"
    return f"{input_total(usage):,} tokens in{cached}, {usage.output_tokens:,} out"


def budget_text(budget: task_pb2.BudgetStatus, *, is_exact: bool = False) -> str:
    """`12,300 of 2,000,000 tokens used, 500 set aside · $0.012 of $1.00, $0.0050 set aside`."""
    money = usd if is_exact else money_text
    aside = f", {budget.reserved_tokens:,} set aside" if budget.reserved_tokens else ""
    tokens = f"{budget.used_tokens:,} of {budget.max_tokens:,} tokens used{aside}"
    if not (budget.max_nano_usd or budget.used_nano_usd or budget.reserved_nano_usd):
        return tokens
    cap = f" of {money(budget.max_nano_usd)}" if budget.max_nano_usd else ""
    aside = f", {money(budget.reserved_nano_usd)} set aside" if budget.reserved_nano_usd else ""
    unpriced = f", {count_text(budget.unpriced_calls, 'call')} of unknown price" if budget.unpriced_calls else ""
    return f"{tokens} · {money(budget.used_nano_usd)}{cap}{aside}{unpriced}"


def caps_text(budget: task_pb2.BudgetStatus) -> str:
    """`2,000,000 tokens and $1.00`."""
    return f"{budget.max_tokens:,} tokens{f' and {money_text(budget.max_nano_usd)}' if budget.max_nano_usd else ''}"


def model_text(spec: task_pb2.TaskSpec) -> str:
    """`claude-opus-4-8`; a ledger without a default model leaves the choice to the worker."""
    return spec.agent.model or "the worker's default model"


def money_cap_text(spec: task_pb2.TaskSpec) -> str:
    """Where the cap in money comes from, or why there is none; nothing of a cap that the submit set."""
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
            return "no cap in money: none was wanted"
        case _:
            return "" if spec.limits.max_nano_usd else "no cap in money"


def summary(task: task_pb2.Task) -> str:
    """`12 steps · 34,120 tokens · $0.12 · 41 s`."""
    parts = [count_text(task.step, "step"), count_text(tokens_total(task.usage), "token")]
    return " · ".join([*parts, *([money_text(task.used_nano_usd)] if task.used_nano_usd else []), lasted(task)])


def why(state: int, reason: str, message: str) -> str:
    """`RETRY_SCHEDULED (MODEL_RATE_LIMITED): …`, as far as there is anything to say; agents have a say in messages."""
    if state == task_pb2.TASK_STATE_SUCCEEDED:
        return TaskState.SUCCEEDED.value
    return harmless(f"{state_name(state)}{f' ({reason})' if reason else ''}{f': {message}' if message else ''}")


def one_line(text: str, width: int) -> str:
    """The text on one line, cut with an ellipsis."""
    flat = harmless(" ".join(text.split()))
    return flat if len(flat) <= width else flat[: max(0, width - 1)] + "…"


def harmless(text: str) -> str:
    """Text of agents and their programs as it may be shown: what would move a terminal's cursor, colour it, name it or
    turn its words around is shown as an escape. Line ends and tabs stay.
    """
    return text.replace("\r\n", "\n").translate(_HARMFUL)


def printable(text: str) -> str:
    """What is no printable character as its escape: text from strangers moves no cursor and changes no colour."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def bytes_text(size: int) -> str:
    """`512 B`, `1.5 KiB`, `64 MiB`."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 9.95 else f"{value:.1f} {unit}"


def first_line(text: str, width: int) -> str:
    """The first line that says something, cut with an ellipsis; told how many follow."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    more = f" (+{count_text(len(lines) - 1, 'line')})" if len(lines) > 1 else ""
    return one_line(lines[0], max(20, width - len(more))) + more


def arguments_text(arguments_json: str) -> str:
    """`query="…" num_results=5`; what is no object as it came."""
    try:
        arguments: Any = json.loads(arguments_json or "{}")
    except ValueError:
        return arguments_json
    if not isinstance(arguments, dict):
        return arguments_json
    return " ".join(f"{name}={_value_text(value)}" for name, value in arguments.items())


def _value_text(value: Any) -> str:
    """Lines of code and files are one line here: their ends are shown, not spelled."""
    return json.dumps(value, ensure_ascii=False).replace("\\n", "↵")
