"""A server as a program outside of the sandbox: with a keeper that ends all of it, also when this service dies."""

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

from services.tools.mcp.settings import McpServer
from services.tools.mcp.subprocess_reaper import ASKED_SECONDS, KILLING_SECONDS
from services.tools.sandbox.uncancellable import uncancellable

_KEEPER: Final = Path(__file__).with_name("subprocess_reaper.py")
_ENDS_BY_ITSELF_SECONDS: Final = 1.0
_KEEPER_SECONDS: Final = ASKED_SECONDS + KILLING_SECONDS + 1.0


ReadErrors = Callable[[asyncio.StreamReader], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Pipes:
    """A running program, as who talks to it sees it."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader


@asynccontextmanager
async def program(settings: McpServer, inherited: Mapping[str, str], read_errors: ReadErrors) -> AsyncIterator[Pipes]:
    """The server's program while it is open. `inherited`: the only variables it has besides those of its settings.

    `read_errors` reads its stderr. At the end its stdin is closed; if it does not end by that, it is told to, and then
    killed with all its descendants.
    """
    lifeline, ours = os.pipe()
    try:
        process = await _start(settings, inherited, lifeline)
    except BaseException:
        os.close(ours)
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
        await uncancellable(_end(process, ours))
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _start(settings: McpServer, inherited: Mapping[str, str], lifeline: int) -> asyncio.subprocess.Process:
    assert settings.command is not None
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(_KEEPER), str(lifeline), "--", settings.command, *settings.args),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        pass_fds=[lifeline],
        env={**inherited, **settings.env},
        cwd=settings.cwd,
        start_new_session=True,
    )


async def _end(process: asyncio.subprocess.Process, lifeline: int) -> None:
    """Nothing of it outlives this, and it takes a bounded time."""
    assert process.stdin is not None
    process.stdin.close()
    ended = await _ends_within(process, _ENDS_BY_ITSELF_SECONDS)
    os.close(lifeline)
    if not ended and not await _ends_within(process, _KEEPER_SECONDS):
        with suppress(ProcessLookupError):  # it ended in the last moment
            os.killpg(process.pid, signal.SIGKILL)
        await _ends_within(process, KILLING_SECONDS)
    # A descendant that outlived even the keeper may hold the pipes: they are closed here all the same.
    process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001  nothing public closes them


async def _ends_within(process: asyncio.subprocess.Process, seconds: float) -> bool:
    """Whether the keeper has ended. Its pipes have to be read on meanwhile, or it may wait for us."""
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
