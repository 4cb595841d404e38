"""What has tools as `tenure tools sources` shows it: who is away is seen at once."""

from __future__ import annotations

import io
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console

from tenure.cli.context import Context
from tenure.cli.tools import _show
from tenure.v1 import tool_pb2
from tenure.wire.common import timestamp


def shown(*sources: tool_pb2.ToolSource) -> list[str]:
    console = Console(file=io.StringIO(), width=200)
    _show(Context("127.0.0.1:1", "default", False, Path(), console, os.environ), sources)
    assert isinstance(console.file, io.StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def test_who_is_away_since_when_and_why_and_what_was_left_out() -> None:
    ago = timestamp(datetime.now(UTC) - timedelta(minutes=10, seconds=5))
    away = tool_pb2.ToolSource(
        name="stock",
        kind=tool_pb2.TOOL_SOURCE_KIND_PROVIDER,
        change_time=ago,
        tools=4,
        problems=["'a [b]' is left out: there are two tools of this name"],
        problem_count=3,
        last_error="[red]gone\x1b[2J",
        last_error_time=ago,
    )
    note = tool_pb2.ToolSource(name="note", kind=tool_pb2.TOOL_SOURCE_KIND_HTTP, linked=True, change_time=ago, tools=1)
    assert shown(away, note) == [
        "SOURCE KIND STATE SINCE TOOLS LAST ERROR",
        "stock PROVIDER AWAY 10 min ago 4 10 min ago: [red]gone\\x1b[2J",
        "note HTTP 1",
        "stock: 'a [b]' is left out: there are two tools of this name",
        "stock: 2 problems more",
    ]
