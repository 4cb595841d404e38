"""Prints all output of the command, and escapes control characters in it.

Names, goals and results come from agents and from strangers: a control character in them would act on the operator's
terminal.
"""

from __future__ import annotations

import json
import sys
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from tenure.cli.formatting import UNSEEN, harmless
from tenure.cli.streams import has_all_characters

_JSON_ESCAPES: Final = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), *UNSEEN)}
PIPE_WIDTH: Final = 200
"""The width when the output is not a terminal: no table is cut where it matters, and no line is broken."""


def echo(text: str, *, nl: bool = True, err: bool = False) -> None:
    """Prints plain text on stdout, or on stderr with `err`, with control characters escaped. `nl` ends the line."""
    click.echo(harmless(text), nl=nl, err=err)


def echo_result(text: str) -> None:
    """Prints a task's result on stdout: escaped on a terminal, unchanged for a program that reads it."""
    click.echo(harmless(text) if sys.stdout.isatty() else text)


def file_output() -> tuple[Callable[[bytes], Any], Callable[[], Any]]:
    """Returns functions that write a part of a file on stdout and that end it, as `echo_result` shows a result."""
    if not sys.stdout.isatty():
        return sys.stdout.buffer.write, sys.stdout.buffer.flush
    decoder = getincrementaldecoder("utf-8")("replace")
    return lambda part: echo(decoder.decode(part), nl=False), lambda: echo(decoder.decode(b"", final=True), nl=False)


def json_line(value: Mapping[str, Any]) -> str:
    """Returns JSON in one line. Escapes the control characters that JSON allows in strings: a terminal obeys them."""
    return json.dumps(value, ensure_ascii=not has_all_characters(sys.stdout)).translate(_JSON_ESCAPES)


class SafeConsole(Console):
    """A rich console that escapes control characters in every text it prints."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Renders as rich does, with every text escaped. The control codes that rich makes itself stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)


def make_console() -> Console:
    """Returns a console: colour and the terminal's width on a terminal, plain lines of `PIPE_WIDTH` otherwise."""
    console = SafeConsole(highlight=False, markup=False, emoji=False)  # values have [brackets] and :key: of their own
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console
