"""Runs a server program outside of the sandbox, under a reaper that ends the program even when this service dies."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edges.mcp_client.settings import McpServer
from edges.mcp_client.subprocess_reaper import KILL_SECONDS, TERM_SECONDS
from services.tools.sandbox.uncancellable import uncancellable

_REAPER: Final = Path(__file__).with_name("subprocess_reaper.py")
_EXIT_SECONDS: Final = 1.0
_REAPER_SECONDS: Final = TERM_SECONDS + KILL_SECONDS + 1.0


ReadErrors = Callable[[asyncio.StreamReader], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Pipes:
    """The stdin and stdout of a running program."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader


@asynccontextmanager
async def program(settings: McpServer, inherited: Mapping[str, str], read_errors: ReadErrors) -> AsyncIterator[Pipes]:
    """Runs the server's program while the context is open.

    inherited: the only environment variables of the program besides those of its settings.
    read_errors: reads the program's stderr.
    At the end the program's stdin is closed. If the program does not exit then, it gets SIGTERM, and is then killed
    with all its descendants.
    """
    lifeline, lifeline_write = os.pipe()
    try:
        process = await _start(settings, inherited, lifeline)
    except BaseException:
        os.close(lifeline_write)
        raise
    finally:
        os.close(lifeline)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    reading = asyncio.ensure_future(read_errors(process.stderr))
    try:
        yield Pipes(process.stdin, process.stdout)
    finally:
        await uncancellable(_end(process, lifeline_write))
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _start(settings: McpServer, inherited: Mapping[str, str], lifeline: int) -> asyncio.subprocess.Process:
    assert settings.command is not None
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(_REAPER), str(lifeline), "--", settings.command, *settings.args),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        pass_fds=[lifeline],
        env={**inherited, **settings.env},
        cwd=settings.cwd,
        start_new_session=True,
    )


async def _end(process: asyncio.subprocess.Process, lifeline: int) -> None:
    """Ends the program and the reaper in a bounded time. `lifeline`: the write end of the reaper's pipe."""
    assert process.stdin is not None
    process.stdin.close()
    ended = await _ends_within(process, _EXIT_SECONDS)
    os.close(lifeline)
    if not ended and not await _ends_within(process, _REAPER_SECONDS):
        with suppress(ProcessLookupError):  # the reaper has just ended
            os.killpg(process.pid, signal.SIGKILL)
        await _ends_within(process, KILL_SECONDS)
    # A descendant that outlived even the reaper may still hold the pipes, so this process closes its ends.
    process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001  no public method closes them


async def _ends_within(process: asyncio.subprocess.Process, seconds: float) -> bool:
    """Waits until the reaper has ended. Reads stdout meanwhile, because a full pipe would block the program."""
    assert process.stdout is not None
    draining = asyncio.ensure_future(_drain(process.stdout))
    waiting = asyncio.ensure_future(process.wait())
    try:
        done, _ = await asyncio.wait({waiting}, timeout=seconds)
        return bool(done)
    finally:
        for task in (draining, waiting):
            task.cancel()
        await asyncio.gather(draining, waiting, return_exceptions=True)


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.read(64 * 1024):
        pass
