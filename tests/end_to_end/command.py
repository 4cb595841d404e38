"""The `tenure` command as a shell runs it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.support.forked import run_program
from tests.support.patience import PATIENCE_SECONDS

COMMAND: Final = [sys.executable, "-m", "tenure.cli"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it to what it starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else the commands would inherit it, deaf to Ctrl-C


class Done(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def values(self) -> list[Any]:
        """Its lines of JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


async def tenure(*arguments: str, address: str = "", stdin: str = "") -> Done:
    """Runs a command to its end."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        command = _command(address, arguments)
        code, out, err = await run_program(command, environment=_environment(), stdin=stdin.encode())
    done = Done(code, out.decode(), err.decode())
    assert "Traceback" not in done.err
    return done


async def start(*arguments: str, address: str = "", cwd: Path | None = None) -> Process:
    """Starts a command with pipes on all three."""
    return await asyncio.create_subprocess_exec(
        *_command(address, arguments), stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=cwd, env=_environment()
    )


@asynccontextmanager
async def started(*arguments: str, address: str = "", cwd: Path | None = None) -> AsyncIterator[Process]:
    """A command that runs meanwhile; it is interrupted at the end, if it is still there."""
    process = await start(*arguments, address=address, cwd=cwd)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await process.communicate()


async def next_value(process: Process) -> Any:
    """The next line of JSON it prints."""
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = await process.stdout.readline()
    assert line, "the command ended without another line"
    return json.loads(line)


def _command(address: str, arguments: tuple[str, ...]) -> list[str]:
    return [*COMMAND, *(("--address", address) if address else ()), *arguments]


def _environment() -> dict[str, str]:
    """Without what would make it another command: keys, addresses, the width of our terminal."""
    ours = ("ANTHROPIC_", "OPENAI_", "TENURE_", "COLUMNS", "FORCE_COLOR")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}
