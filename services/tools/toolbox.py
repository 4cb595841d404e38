"""All tools of the service, put together from its settings and its config file."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from services.tools.builtin.files import file_tools
from services.tools.builtin.python import python_tools
from services.tools.builtin.records import record_tools
from services.tools.builtin.search import search_tools
from services.tools.builtin.waiting import waiting_tools
from services.tools.registry import Registry
from services.tools.sandbox import Sandbox, SandboxLimits, SandboxUnavailable
from services.tools.workspace import Workspaces

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from services.tools.config import ToolsConfig
    from services.tools.settings import Settings
    from tenure.runtime.process import Process

SEARCH_THREADS: Final = 8
_PROGRAM_OUTPUT_BYTES: Final = 1024 * 1024  # of each stream; the model is shown less, all of it is in the workspace
_RECORD_THREADS: Final = 8


async def open_toolbox(
    process: Process, settings: Settings, config: ToolsConfig, sandbox: Sandbox | SandboxUnavailable
) -> Registry:
    """All tools: the built-in ones at once, those of the config file as soon as what has them is reached."""
    del config  # no section yet
    workspaces = Workspaces(settings.workspace_root)
    limits = SandboxLimits(
        wall_seconds=settings.python_wall_seconds,
        cpu_seconds=settings.python_wall_seconds,
        workspace_bytes=settings.workspace_bytes,
        output_bytes=_PROGRAM_OUTPUT_BYTES,
    )
    search_threads = await process.open(threads("search", SEARCH_THREADS))
    record_threads = await process.open(threads("records", _RECORD_THREADS))
    return Registry(
        [
            *python_tools(sandbox, workspaces, limits),
            *file_tools(workspaces, limits.workspace_bytes),
            *search_tools(settings.search_url, search_threads),
            *record_tools(settings.records_dir, record_threads),
            *waiting_tools(),
        ]
    )


@asynccontextmanager
async def threads(name: str, count: int) -> AsyncIterator[ThreadPoolExecutor]:
    """Threads of their own for what may block long: the shared ones stay free for what does not."""
    threads = ThreadPoolExecutor(count, thread_name_prefix=name)
    try:
        yield threads
    finally:
        await asyncio.to_thread(threads.shutdown, wait=False, cancel_futures=True)
