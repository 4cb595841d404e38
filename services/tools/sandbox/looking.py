"""Looking from outside at what a program makes of its workspace, as nothing in the kernel bounds that."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from services.tools.sandbox.hidden import NOTHING_HELD, held_by
from services.tools.sandbox.workspace import measure

if TYPE_CHECKING:
    from services.tools.sandbox.supervision import Program

log = logging.getLogger(__name__)

_LEAST_OFTEN_SECONDS: Final = 2.0

# Of their own: programs that make looking slow keep each other waiting, and nothing else that needs a thread.
_THREADS: Final = ThreadPoolExecutor(max_workers=4, thread_name_prefix="look-at-workspaces")


class Looking:
    """The looks at one program's workspace, one after the other."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._in_flight = 0
        self._took_seconds = 0.0

    async def pause(self, seconds: float) -> None:
        """Before the next look: longer where looking takes long, so that it stays cheap, but never for long."""
        await asyncio.sleep(min(max(seconds, 10 * self._took_seconds), _LEAST_OFTEN_SECONDS))

    async def finds_too_much(self, init_pid: int | None = None) -> bool:
        """Whether it has outgrown its bounds, or cannot be measured. `init_pid`: while it runs, it may hold more."""
        workspace = self._program.workspace
        if workspace is None:
            return False
        started = time.monotonic()
        found = await asyncio.get_running_loop().run_in_executor(_THREADS, self._look, workspace, init_pid)
        self._took_seconds = time.monotonic() - started
        return found

    def _look(self, workspace: Path, init_pid: int | None) -> bool:
        try:
            usage = measure(workspace)
            held = NOTHING_HELD if init_pid is None else held_by(init_pid, workspace.lstat().st_dev)
        except OSError as error:
            log.warning("a program is ended whose workspace cannot be measured: %s", error)
            return True
        disk_bytes = usage.disk_bytes + held.disk_bytes + self._stays_in_flight(held.in_flight)
        usage = replace(usage, disk_bytes=disk_bytes, complete=usage.complete and held.complete)
        limits = self._program.limits
        return usage.exceeds(self._program.usage_before, limits.workspace_bytes, limits.workspace_files)

    def _stays_in_flight(self, descriptors: int) -> int:
        """The most that these may be: only what was there at the look before, too, is kept and not just handed on.

        Each may be a socket on whose way are as many as one user may have on their way: as many as may be open.
        """
        kept, self._in_flight = min(descriptors, self._in_flight), descriptors
        limits = self._program.limits
        return kept * limits.open_files * limits.file_bytes
