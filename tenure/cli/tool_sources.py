"""`tenure tools sources`: which MCP servers, providers and HTTP tools there are, and which of them is away."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.text import Text

from tenure.cli.context import Context, pass_context
from tenure.cli.output import echo
from tenure.cli.tables import make_table
from tenure.cli.words import ago, count_text, harmless
from tenure.client import Client
from tenure.domain.tools import ToolSourceKind
from tenure.v1 import tool_pb2
from tenure.wire.enums import TOOL_SOURCES


@click.command(short_help="Show what has tools, and which of it is away.")
@pass_context
def sources(context: Context) -> None:
    """Show what has tools (MCP servers, providers, HTTP tools), whether it is there, and what went wrong the last time.

    It is what one replica of the tool service sees: the next time another may answer.
    """

    async def work(client: Client) -> None:
        told = await client.tool_sources()
        if context.as_json:
            context.emit(told)
        else:
            _show(context, told.sources)
            echo(f"as {told.instance} sees it")

    context.run(work)


def _show(context: Context, sources: Sequence[tool_pb2.ToolSource]) -> None:
    table = make_table("SOURCE", "KIND", "STATE", "SINCE", "TOOLS", "LAST ERROR")
    for source in sources:
        kind = TOOL_SOURCES.find(source.kind)
        # Nothing is connected to before a call of the others: nobody knows whether they would answer.
        is_linked_to = kind in (ToolSourceKind.MCP, ToolSourceKind.PROVIDER)
        table.add_row(
            source.name,
            "?" if kind is None else kind.name,
            ("linked" if source.linked else "AWAY") if is_linked_to else "",
            ago(source.change_time) if is_linked_to else "",
            f"{source.tools:,}",
            Text(_last_error(source)),
        )
    context.console.print(table)
    for source in sources:
        for problem in source.problems:
            context.console.print(f"{source.name}: {harmless(problem)}", markup=False)
        if more := source.problem_count - len(source.problems):
            context.console.print(f"{source.name}: {count_text(more, 'problem')} more", markup=False)


def _last_error(source: tool_pb2.ToolSource) -> str:
    return f"{ago(source.last_error_time)}: {harmless(source.last_error)}" if source.last_error else ""
