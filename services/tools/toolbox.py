"""Composes the tools of the service from its settings and its edges."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from services.tools.builtin.files import file_tools
from services.tools.builtin.outputs import output_tools
from services.tools.builtin.python import PYTHON_LANE, python_tools
from services.tools.builtin.records import record_tools
from services.tools.builtin.waiting import waiting_tools
from services.tools.calls.caller_runs import LANE as OWN_LANE
from services.tools.calls.runs import RunningCalls
from services.tools.edge import ToolEdges, ToolHost
from services.tools.output import OutputStore
from services.tools.pins import ToolPins
from services.tools.registry import ToolRegistry
from services.tools.sandbox import Sandbox, SandboxLimits, SandboxUnavailable
from services.tools.settings import ToolsSettings
from services.tools.tool import GENERAL_LANE, Tool
from services.tools.workspace.directories import Workspaces
from services.tools.workspace.requests import FileRequests
from tenure.domain.effect_keys import EffectKey
from tenure.runtime.process import Process
from tenure.runtime.settings import ConfigurationError

_PROGRAM_OUTPUT_BYTES: Final = 1024 * 1024  # of each stream; the model reads less, the workspace keeps all of it
_RECORD_THREADS: Final = 8
_FILE_THREADS: Final = 4
_COPY_THREADS: Final = 2


async def open_toolbox(
    process: Process,
    settings: ToolsSettings,
    edges: ToolEdges,
    sandbox: Sandbox | SandboxUnavailable,
    runs: RunningCalls,
    pins: ToolPins | None = None,
) -> ToolRegistry:
    """Returns the registry with the built-in tools. Tools of a source come when the source is connected.

    `pins` may be None only for edges without connections.
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
    tools = [
        *python_tools(sandbox, workspaces, limits),
        *file_tools(workspaces, settings.workspace_bounds),
        *output_tools(workspaces),
        *record_tools(settings.records_dir, record_threads),
        *waiting_tools(),
        *await edges.built_in(process),
    ]
    registry = ToolRegistry(with_effect_keys(tools, edges.effect_keys))
    output_store = OutputStore(workspaces, settings.workspace_bounds)
    await edges.open(ToolHost(process, registry, output_store, runs, sandbox, workspaces, limits, pins))
    return registry


def with_effect_keys(tools: Sequence[Tool], keys: Mapping[str, EffectKey]) -> list[Tool]:
    """Returns the tools with the effect keys of the config file. Raises ConfigurationError for an unknown tool."""
    if unknown := sorted(keys.keys() - {tool.name for tool in tools}):
        raise ConfigurationError([f"built_in.{name}: there is no such built-in tool" for name in unknown])
    return [
        replace(tool, definition=replace(tool.definition, effect_key=keys[tool.name])) if tool.name in keys else tool
        for tool in tools
    ]


def lanes_of(settings: ToolsSettings, edges: ToolEdges) -> dict[str, int]:
    """Returns how many calls run at once, by lane."""
    return {
        GENERAL_LANE: settings.max_running,
        PYTHON_LANE: settings.sandbox_slots,
        OWN_LANE: settings.max_accepted,  # their work is done elsewhere
        **edges.lanes,
    }


async def open_file_requests(process: Process, settings: ToolsSettings) -> FileRequests:
    """Returns the handler of ListFiles, ReadFile and CopyFiles."""
    reading = await process.open(threads("files", _FILE_THREADS))
    copying = await process.open(threads("copies", _COPY_THREADS))
    return FileRequests(settings.workspace_root, settings.workspace_bounds, reading, copying)


@asynccontextmanager
async def threads(name: str, count: int) -> AsyncIterator[ThreadPoolExecutor]:
    """Yields a thread pool for work that may block long, so that the shared threads stay free."""
    threads = ThreadPoolExecutor(count, thread_name_prefix=name)
    try:
        yield threads
    finally:
        await asyncio.to_thread(threads.shutdown, wait=False, cancel_futures=True)
