"""`tenure tools list` and `show`: which tools agents may be given, and what each of them takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

import click
from rich.text import Text

from tenure.cli.context import Context, pass_context
from tenure.cli.tables import make_grid, make_table
from tenure.cli.words import harmless, one_line, seconds_text
from tenure.client import Client
from tenure.domain.errors import NotFound
from tenure.v1 import tool_pb2
from tenure.wire.enums import EFFECT_CLASSES
from tenure.wire.times import seconds

_MOST_DESCRIPTION: Final = 160
_NEAREST: Final = 3


@click.command("list", short_help="Show the tools that agents may be given.")
@pass_context
def list_tools(context: Context) -> None:
    """Show the tools that agents may be given: what has them, and what becomes of a call whose runner dies.

    `tenure submit --tools a,b` gives a task only these. EFFECT is the effect class: PURE, IDEMPOTENT and KEYED calls
    are run again, an UNSAFE one is in doubt.
    """

    async def work(client: Client) -> None:
        tools = (await client.tools()).tools
        if context.as_json:
            for tool in tools:
                context.emit(tool)
        else:
            _show_table(context, tools)

    context.run(work)


@click.command(short_help="Show one tool: its description and the schema of its arguments.")
@click.argument("name", metavar="NAME")
@pass_context
def show(context: Context, name: str) -> None:
    """Show the tool NAME as agents get it: its description, the schema of its arguments, and its limits."""

    async def work(client: Client) -> None:
        tools = {tool.definition.name: tool for tool in (await client.tools()).tools}
        if name not in tools:
            raise NotFound(_unknown(name, list(tools)), reason="NO_SUCH_TOOL")
        if context.as_json:
            context.emit(tools[name])
        else:
            _show_tool(context, tools[name])

    context.run(work)


def _unknown(name: str, names: Sequence[str]) -> str:
    nearest = get_close_matches(name, names, _NEAREST)
    advice = f"the nearest: {', '.join(nearest)}" if nearest else "tenure tools list shows those that there are"
    return f"there is no tool {harmless(name)}; {advice}"


def _effect(tool: tool_pb2.OfferedTool) -> str:
    effect = EFFECT_CLASSES.find(tool.definition.effect_class)
    return "?" if effect is None else effect.value


def _show_table(context: Context, tools: Sequence[tool_pb2.OfferedTool]) -> None:
    table = make_table("TOOL", "EFFECT", "SOURCE", "DESCRIPTION")
    for tool in tools:
        name, source = Text(harmless(tool.definition.name)), Text(harmless(tool.source))
        description = Text(one_line(tool.definition.description, _MOST_DESCRIPTION), no_wrap=True, overflow="ellipsis")
        table.add_row(name, _effect(tool), source, description)
    context.console.print(table)


def _show_tool(context: Context, tool: tool_pb2.OfferedTool) -> None:
    definition = tool.definition
    rows = {
        "tool": harmless(definition.name),
        "source": harmless(tool.source),
        "effect": _effect(tool),
        "timeout": seconds_text(seconds(definition.timeout)),
        "output": f"at most {definition.output_limit_bytes:,} bytes are shown to the model",
    }
    grid = make_grid()
    for name, value in rows.items():
        grid.add_row(name, Text(value))
    context.console.print(grid)
    for text in (definition.description, _pretty(definition.input_schema_json)):
        context.console.print()
        context.console.print(Text(harmless(text.strip())), soft_wrap=not context.console.is_terminal)


def _pretty(schema_json: str) -> str:
    """Indented; as it came when it is no JSON."""
    try:
        return json.dumps(json.loads(schema_json), indent=2, ensure_ascii=False)
    except ValueError:
        return schema_json
