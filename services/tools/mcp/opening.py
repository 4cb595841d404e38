"""How a link to each kind of server is opened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx2
from mcp.client.streamable_http import streamable_http_client

from services.tools.mcp.complaints import Complaints
from services.tools.mcp.exchanges import Exchanges
from services.tools.mcp.lines import MOST_MESSAGE_BYTES, LineReads, LineWrites
from services.tools.mcp.link import Link, open_link
from services.tools.mcp.program import Pipes, program
from services.tools.mcp.settings import McpServer
from services.tools.sandbox import Command, Sandbox, SandboxLimits
from tenure.runtime.h11_patterns import read_in_one_pass

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

_TIMES: Final = httpx2.Timeout(connect=10.0, write=30.0, pool=10.0, read=None)
"""An answer may take as long as its call's timeout, and events may stay away for ever."""


_LAST_WORDS_SECONDS: Final = 0.5


@asynccontextmanager
async def program_link(name: str, settings: McpServer, inherited: Mapping[str, str]) -> AsyncIterator[Link]:
    """To a program that is started for it. Raises ServerEnded with its last words when it ends before it answers."""
    complaints = Complaints(name)
    async with program(settings, inherited, complaints.read) as pipes, piped_link(name, pipes, complaints) as link:
        yield link


@asynccontextmanager
async def piped_link(name: str, pipes: Pipes, complaints: Complaints) -> AsyncIterator[Link]:
    """To a program that runs."""
    try:
        ended = asyncio.Event()
        async with open_link(_over(name, pipes, ended), ended) as link:
            yield link
    except Exception as error:
        with suppress(TimeoutError):  # what it said last may still be on its way
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await complaints.ended.wait()
        if complaints.last_words:
            error.add_note(complaints.last_words)
        raise


@asynccontextmanager
async def sandboxed_link(
    name: str, settings: McpServer, sandbox: Sandbox, workspace: Path | None, limits: SandboxLimits
) -> AsyncIterator[Link]:
    """To a program in the sandbox, with the workspace at /work."""
    assert settings.command is not None
    command = Command((settings.command, *settings.args), settings.env, settings.read_only_paths)
    complaints = Complaints(name)
    async with sandbox.lasting(command, workspace, limits) as running:
        pipes = running.process
        assert pipes.stdin is not None
        reading = asyncio.ensure_future(complaints.read(pipes.stderr))
        try:
            async with piped_link(name, Pipes(pipes.stdin, pipes.stdout), complaints) as link:
                yield link
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


@asynccontextmanager
async def http_link(settings: McpServer) -> AsyncIterator[Link]:
    """To a server at a URL. Proxies of the environment are not asked; redirects stay at the server."""
    assert settings.url is not None
    read_in_one_pass()
    ended = asyncio.Event()
    limits = httpx2.Limits(max_connections=settings.max_calls + 8)
    network = Exchanges(httpx2.AsyncHTTPTransport(limits=limits, trust_env=False), ended)
    headers = {"accept-encoding": "identity", **settings.headers}  # bounds are of what was sent
    async with httpx2.AsyncClient(transport=network, headers=headers, timeout=_TIMES, trust_env=False) as client:
        transport = streamable_http_client(settings.url, http_client=client, max_sse_event_size=MOST_MESSAGE_BYTES)
        async with open_link(transport, ended) as link:
            yield link


@asynccontextmanager
async def _over(name: str, pipes: Pipes, ended: asyncio.Event) -> AsyncIterator[TransportStreams]:
    yield LineReads(pipes.stdout, name), LineWrites(pipes.stdin, ended)
