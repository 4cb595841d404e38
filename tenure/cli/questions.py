"""Questions to a person at the terminal, and text from standard input. Ctrl-C ends both at once.

asyncio turns the first Ctrl-C into the cancellation of the main task, which a read that blocks would not notice.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
from typing import Final

import click

from tenure.cli.output import echo

MAX_LINE_BYTES: Final = 4096
"""The most that one read takes: more than one line of a terminal."""


def is_interactive() -> bool:
    """Returns whether a person can be asked: standard input and standard error are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


async def confirm(question: str) -> None:
    """Raises Abort unless the person answers the question with yes."""
    if not await is_confirmed(question):
        raise click.Abort


async def is_confirmed(question: str) -> bool:
    """Returns whether the person answers the question with yes. The end of standard input is a no."""
    while True:
        line = await ask(f"{question} [y/N]: ")
        answer = yes_or_no(line) if line.strip() else False
        if answer is not None:
            return answer


async def ask(question: str) -> str:
    """Returns the line that a person types after they read the question: "" at the end of standard input.

    Lines that were typed before are discarded: they cannot be an answer. The question stands on standard error.
    """
    termios.tcflush(sys.stdin, termios.TCIFLUSH)
    echo(question, nl=False, err=True)
    line = await _read_line()
    if not line:
        echo("", err=True)
    return line


def yes_or_no(line: str) -> bool | None:
    """Returns True for `y` or `yes`, False for `n` or `no`, None for another line."""
    return {"y": True, "yes": True, "n": False, "no": False}.get(line.strip().lower())


async def _read_line() -> str:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(sys.stdin, wake)
    try:
        await ready
    finally:
        loop.remove_reader(sys.stdin)
    # sys.stdin would buffer a second line, and `ask` could not discard it. A terminal gives one line a read.
    return os.read(sys.stdin.fileno(), MAX_LINE_BYTES).decode(errors="replace")


def read_standard_input() -> str:
    """Returns all of standard input, which may be a file: no event loop can wait for one."""
    before = signal.getsignal(signal.SIGINT)
    if before in (signal.SIG_IGN, signal.default_int_handler):  # in the background, or without an event loop
        return sys.stdin.read()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return sys.stdin.read()
    finally:
        signal.signal(signal.SIGINT, before)
