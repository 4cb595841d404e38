"""Composes the tools of the service from its settings and its config file."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from services.tools.builtin.files import file_tools
from services.tools.builtin.outputs import output_tools
from services.tools.builtin.python import PYTHON_LANE, python_tools
from services.tools.builtin.records import record_tools
from services.tools.builtin.waiting import waiting_tools
from services.tools.calls.caller_runs import LANE as OWN_LANE
from services.tools.calls.runs import RunningCalls
from services.tools.http_fetch.fetch import FETCH_LANE, FETCHES_AT_ONCE, Fetcher, fetch_tools
from services.tools.http_tools.http_tool import lane_of as lane_of_http_tool
from services.tools.http_tools.http_tool import open_http_tools
from services.tools.mcp.settings import lane_of_server
from services.tools.output import OutputStore
from services.tools.providers.provider import lane_of as lane_of_provider
from services.tools.providers.provider import open_providers
from services.tools.registry import ToolRegistry
from services.tools.sandbox import Sandbox, SandboxLimits, SandboxUnavailable
from services.tools.tool import GENERAL_LANE
from services.tools.web_search.search import SEARCH_LANE, SEARCHES_AT_ONCE, Searcher, search_tools
from services.tools.web_search.settings import WebSearchSettings
from services.tools.workspace.directories import Workspaces
from services.tools.workspace.requests import FileRequests
from tenure.runtime.settings import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from services.tools.config import ToolsConfig
    from services.tools.pins import ToolPins
    from services.tools.settings import ToolsSettings
    from tenure.runtime.process import Process

_PROGRAM_OUTPUT_BYTES: Final = 1024 * 1024  # of each stream; the model reads less, the workspace keeps all of it
_ANSWER_THREADS: Final = 2
_RECORD_THREADS: Final = 8
_FILE_THREADS: Final = 4
_COPY_THREADS: Final = 2
_READING_THREADS: Final = 2
_SERVER_PROCESSES: Final = 64  # threads count too, and a runtime such as Node starts with a dozen
_SERVER_OPEN_FILES: Final = 1024
_PROCESSES_OF_CONFINED: Final = 2
_MAX_SLOTS: Final = 1024  # the uids that each replica on a host has


async def open_toolbox(
    process: Process,
    settings: ToolsSettings,
    config: ToolsConfig,
    sandbox: Sandbox | SandboxUnavailable,
    runs: RunningCalls,
    environment: Mapping[str, str],
    pins: ToolPins | None = None,
) -> ToolRegistry:
    """Returns the registry with the built-in tools. Tools of the config file come when their source is connected.

    `pins` may be None only without MCP servers.
    """
    workspaces = Workspaces(settings.workspace_root)
    limits = SandboxLimits(
        wall_seconds=settings.python_wall_seconds,
        cpu_seconds=settings.python_wall_seconds,
        workspace_bytes=settings.workspace_bytes,
        workspace_files=settings.workspace_files,
        output_bytes=_PROGRAM_OUTPUT_BYTES,
    )
    record_threads = await process.open(threads("records", _RECORD_THREADS))
    registry = ToolRegistry(
        [
            *python_tools(sandbox, workspaces, limits),
            *file_tools(workspaces, settings.workspace_bounds),
            *search_tools(await _searcher(process, settings, config)),
            *fetch_tools(await _fetcher(process, config)),
            *output_tools(workspaces),
            *record_tools(settings.records_dir, record_threads),
            *waiting_tools(),
        ]
    )
    await open_http_tools(process, config.http_tools, registry)
    if config.mcp_servers:
        # The import of the MCP package costs half a second and memory: only where the config file has MCP servers.
        from services.tools.mcp.sources import McpHost, open_mcp_servers

        output_store = OutputStore(workspaces, settings.workspace_bounds)
        limits = replace(limits, processes=_SERVER_PROCESSES, open_files=_SERVER_OPEN_FILES)
        answer_threads = await process.open(threads("parts of answers", _ANSWER_THREADS))
        assert pins is not None
        host = McpHost(registry, output_store, answer_threads, runs, sandbox, workspaces, limits, environment, pins)
        await open_mcp_servers(process, config.mcp_servers, host)
    await open_providers(process, config.providers, registry)
    return registry


def long_running_slots(settings: ToolsSettings, config: ToolsConfig) -> int:
    """Returns how many programs of MCP servers may run in the sandbox at once.

    A sandboxed server has one more than its tasks' processes, which lists its tools. A confined server has two: one may
    still end while the next one starts. Raises ConfigurationError when the sandbox has too few uids for them.
    """
    servers = [server for server in config.mcp_servers.values() if not server.disabled]
    slots = sum(server.max_servers + 1 for server in servers if server.sandbox)
    slots += sum(_PROCESSES_OF_CONFINED for server in servers if server.is_confined)
    if settings.sandbox_slots + slots > _MAX_SLOTS:
        problem = (
            "mcp_servers: TENURE_TOOLS_SANDBOX_SLOTS plus max_servers + 1 of each sandboxed server and 2 of each "
            f"confined one is {settings.sandbox_slots + slots}, and may be {_MAX_SLOTS} at most: lower max_servers"
        )
        raise ConfigurationError([problem])
    return slots


def lanes_of(settings: ToolsSettings, config: ToolsConfig) -> dict[str, int]:
    """Returns how many calls run at once, by lane."""
    lanes = {
        GENERAL_LANE: settings.max_running,
        PYTHON_LANE: settings.sandbox_slots,
        SEARCH_LANE: SEARCHES_AT_ONCE,
        FETCH_LANE: FETCHES_AT_ONCE,
        OWN_LANE: settings.max_accepted,  # their work is done elsewhere
    }
    lanes |= {lane_of_server(name): server.max_calls for name, server in config.mcp_servers.items()}
    lanes |= {lane_of_provider(name): provider.max_calls for name, provider in config.providers.items()}
    return lanes | {lane_of_http_tool(name): tool.max_calls for name, tool in config.http_tools.items()}


async def _searcher(process: Process, settings: ToolsSettings, config: ToolsConfig) -> Searcher | None:
    """Returns the searcher of the config file's section, or of TENURE_TOOLS_SEARCH_URL, or None."""
    chosen = config.web_search
    if settings.search_url and chosen is None:
        try:
            chosen = WebSearchSettings(provider="plain", url=settings.search_url, allow_private=True)
        except ValidationError as error:
            raise ConfigurationError([f"TENURE_TOOLS_SEARCH_URL: {error.errors()[0]['msg']}"]) from error
    return await process.open(Searcher.open(chosen)) if chosen else None


async def open_file_requests(process: Process, settings: ToolsSettings) -> FileRequests:
    """Returns the handler of ListFiles, ReadFile and CopyFiles."""
    reading = await process.open(threads("files", _FILE_THREADS))
    copying = await process.open(threads("copies", _COPY_THREADS))
    return FileRequests(settings.workspace_root, settings.workspace_bounds, reading, copying)


async def _fetcher(process: Process, config: ToolsConfig) -> Fetcher | None:
    if config.http_fetch is None:
        return None
    reading = await process.open(threads("fetched", _READING_THREADS))
    return await process.open(Fetcher.open(config.http_fetch, reading))


@asynccontextmanager
async def threads(name: str, count: int) -> AsyncIterator[ThreadPoolExecutor]:
    """Yields a thread pool for work that may block long, so that the shared threads stay free."""
    threads = ThreadPoolExecutor(count, thread_name_prefix=name)
    try:
        yield threads
    finally:
        await asyncio.to_thread(threads.shutdown, wait=False, cancel_futures=True)
