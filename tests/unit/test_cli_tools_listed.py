"""The tools as `tenure tools list` and `show` print them."""

from __future__ import annotations

import io
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from rich.console import Console

from tenure.cli.context import Context
from tenure.cli.entry_lines import describe
from tenure.cli.tasks import _show_entries
from tenure.cli.tools import _show_table, _show_tool, _unknown
from tenure.v1 import ledger_pb2, tool_pb2
from tenure.wire.common import duration

LONG = "crm__" + "a_very_long_name_of_a_tool_" * 2
MOVE = tool_pb2.OfferedTool(
    source="stock",
    definition=tool_pb2.ToolDefinition(
        name="stock__move_stock",
        description="Move [b]items[/b].\x1b[2J\n\nBack again with a negative delta. " + "More of it. " * 30,
        input_schema_json='{"type":"object","properties":{"item":{"type":"string"}}}',
        timeout=duration(90),
        output_limit_bytes=8000,
        effect_class=tool_pb2.EFFECT_CLASS_KEYED,
    ),
)


def context_of(width: int) -> Context:
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    return Context("127.0.0.1:1", "default", False, Path(), console, os.environ)


def printed(context: Context) -> list[str]:
    assert isinstance(context.console.file, io.StringIO)
    return context.console.file.getvalue().splitlines()


def test_a_list_has_whole_names_and_cut_descriptions() -> None:
    definition = tool_pb2.ToolDefinition(name=LONG, description="x" * 500, effect_class=tool_pb2.EFFECT_CLASS_UNSAFE)
    context = context_of(100)
    _show_table(context, [tool_pb2.OfferedTool(source="crm", definition=definition), MOVE])
    head, crm, stock = printed(context)
    assert head.split() == ["TOOL", "EFFECT", "TIMEOUT", "SOURCE", "DESCRIPTION"]
    assert crm.split()[:3] == [LONG, "UNSAFE", "0"]
    assert stock.split()[:5] == ["stock__move_stock", "KEYED", "90", "s", "stock"]
    assert "[b]items[/b].\\x1b[2J" in stock or "…" in stock


def test_one_tool_is_shown_with_description_and_schema() -> None:
    context = context_of(200)
    _show_tool(context, MOVE)
    text = "\n".join(printed(context))
    assert "KEYED" in text
    assert "at most 8,000 bytes" in text
    assert "Move [b]items[/b].\\x1b[2J\n\nBack again with a negative delta." in text
    assert '"properties": {\n    "item": {' in text


def test_an_unknown_name_is_answered_with_the_nearest_ones() -> None:
    assert _unknown("raed_file", ["read_file", "web_search"]) == "there is no tool raed_file; the nearest: read_file"
    assert "tenure tools list" in _unknown("zzz", ["read_file"])


async def test_the_ledgers_line_of_a_tasks_tools_cuts_no_name() -> None:
    names = [f"files__tool_number_{number}" for number in range(40)]
    tools = ledger_pb2.ToolsDefined(tools=[tool_pb2.ToolDefinition(name=name) for name in names])
    entry = ledger_pb2.Entry(sequence=4, body=ledger_pb2.EntryBody(tools_defined=tools))

    async def entries() -> AsyncGenerator[Any]:
        yield entry

    context = context_of(80)
    await _show_entries(context, entries())
    assert describe(entry) in "".join(printed(context))
