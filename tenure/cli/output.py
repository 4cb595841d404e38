"""All that this command prints goes through here: names, goals and results come from agents and strangers, and a
control character in them would act on the operator's terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from tenure.cli.formatting import harmless

_JSON_ESCAPES: Final = {
    code: f"\\u{code:04x}"
    for code in (0x7F, *range(0x80, 0xA0), *range(0x200E, 0x2010), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}
PIPE_WIDTH: Final = 200
"""Columns when nobody looks: tables are cut nowhere that matters, and lines stay lines."""


def echo(text: str, *, nl: bool = True, err: bool = False) -> None:
    """Plain text on stdout or stderr, with control characters escaped; with `nl` a line of its own."""
    click.echo(harmless(text), nl=nl, err=err)


def echo_result(text: str) -> None:
    """A task's result on stdout: as it is for a program that reads it, escaped on a terminal."""
    click.echo(harmless(text) if sys.stdout.isatty() else text)


def json_line(value: Mapping[str, Any]) -> str:
    """JSON in one line. The control characters that JSON allows in strings are escaped: they act on a terminal."""
    return json.dumps(value, ensure_ascii=False).translate(_JSON_ESCAPES)


class SafeConsole(Console):
    """Escapes control characters in everything it prints: names, goals and results come from agents and strangers."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As in rich, with every text made harmless; rich's own control codes stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)


def make_console() -> Console:
    """Colour and the terminal's width for people, plain lines for pipes."""
    console = SafeConsole(highlight=False, markup=False)  # what is in brackets is the text of agents and their tools
    return console if console.is_terminal else SafeConsole(highlight=False, markup=False, width=PIPE_WIDTH)
