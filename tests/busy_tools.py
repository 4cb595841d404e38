"""The tool service with record tools that say "try later", as files in the directory of records ask for.

`busy-before`: they append nothing and vouch for it. `busy-after`: they append the line, and say so all the same.
"""

from __future__ import annotations

import sys
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

from edges.tools import main
from services.tools import toolbox
from services.tools.builtin.records import record_tools
from services.tools.tool import Arguments, CallContext, RunTool, Tool, ToolAnswer
from tenure.domain.errors import LimitReached
from tenure.domain.tools import CallSettlement

BEFORE, AFTER = "busy-before", "busy-after"


def busy_tools(directory: Path | None, threads: Executor) -> list[Tool]:
    """The record tools, each of which looks for the files at every call. Their calls are not settled."""
    assert directory is not None
    return [
        replace(
            tool,
            run=partial(_run, directory, tool.run),
            definition=replace(tool.definition, settlement=CallSettlement(0.0)),
        )
        for tool in record_tools(directory, threads)
    ]


async def _run(directory: Path, run: RunTool, context: CallContext, arguments: Arguments) -> ToolAnswer:
    if (directory / BEFORE).exists():
        context.mark_not_sent()
        raise _busy()
    answer = await run(context, arguments)
    if (directory / AFTER).exists():
        raise _busy()
    return answer


def _busy() -> LimitReached:
    return LimitReached("the archive has no place now", reason="ARCHIVE_FULL", retry_after_seconds=0.01)


if __name__ == "__main__":
    with patch.object(toolbox, "record_tools", busy_tools):
        sys.exit(main())
