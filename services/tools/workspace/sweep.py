"""Removes the files of forgotten tasks: at once if this replica forgot the task, otherwise in the next sweep.

Every replica sweeps the root that it sees, whether it is shared or its own. The sweep lists the directories themselves,
so it also finds a directory that is half removed, or that a late effect made again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from services.tools.statements import QUERIES
from services.tools.workspace.copying import UNFINISHED
from services.tools.workspace.removal import remove_some
from tenure.runtime.failpoints import failpoint
from tenure.runtime.observability import metrics
from tenure.runtime.process import note_progress, resting
from tenure.runtime.store.postgres import Pool, pool_connection

_log: Final = logging.getLogger(__name__)
_TASK_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_Result = TypeVar("_Result")
_TASKS_A_QUERY: Final = 500
_MAX_HANDED_IN: Final = 10_000
_DEAD_AFTER_SECONDS: Final = 3600.0


class Workspace(NamedTuple):
    """The workspace of a task, in the directory `<root>/<tenant>/<task_id>`."""

    tenant: str
    task_id: str


class WorkspaceSweep:
    """Removes directories as the duty `run`. It has its own `threads`: no other work waits for a removal."""

    def __init__(self, pool: Pool, root: Path, threads: ThreadPoolExecutor, interval_seconds: float) -> None:
        self._pool, self._root, self._threads = pool, root, threads
        self._interval_seconds = interval_seconds
        self._handed_in: deque[Workspace] = deque(maxlen=_MAX_HANDED_IN)
        self._woken = asyncio.Event()
        self._removed = metrics.cell("tenure_removed_workspaces_total")

    def enqueue(self, tenant: str, task_id: str) -> None:
        """Queues the directory of a task that was just forgotten. The sweep finds those that do not fit."""
        self._handed_in.append(Workspace(tenant, task_id))
        self._woken.set()

    async def run(self) -> None:
        """Sweeps until it is cancelled."""
        while True:
            await self.sweep()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_seconds * random.uniform(0.8, 1.2)):
                    await self._serve_handed_in()

    async def sweep(self) -> None:
        """Looks at all directories once."""
        for left in await self._in_thread(_list_dead_copies, self._root):
            await self._remove(left)
        workspaces = await self._in_thread(_list_workspaces, self._root)
        for start in range(0, len(workspaces), _TASKS_A_QUERY):
            note_progress()
            some = workspaces[start : start + _TASKS_A_QUERY]
            async with pool_connection(self._pool) as postgres:
                parameters = {"task_ids": [UUID(one.task_id) for one in some]}
                rows = await (await postgres.execute(QUERIES.forgotten_tasks, parameters)).fetchall()
            forgotten = {Workspace(tenant, str(task_id)) for task_id, tenant in rows}
            for workspace in some:
                if workspace in forgotten:
                    await self._remove(workspace)

    async def _serve_handed_in(self) -> None:
        while True:
            with resting():
                await self._woken.wait()
            self._woken.clear()
            while self._handed_in:
                await self._remove(self._handed_in.popleft())

    async def _remove(self, workspace: Workspace) -> None:
        """Removes one directory in steps. A failure is logged and counted, and the next sweep tries again."""
        path = self._root / workspace.tenant / workspace.task_id
        note_progress()
        if not await self._in_thread(os.path.lexists, path):
            return
        await failpoint("tools.before_removal")
        try:
            while not await self._in_thread(remove_some, path):
                note_progress()
        except OSError as error:
            metrics.count("tenure_unremoved_workspaces_total")
            _log.warning("a task's files could not be removed", extra={"task": workspace.task_id, "error": str(error)})
        else:
            self._removed.value += 1

    async def _in_thread(self, work: Callable[[Path], _Result], path: Path) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, path)


def _list_workspaces(root: Path) -> list[Workspace]:
    """Returns all directories that have a task's id as their name."""
    workspaces = []
    for tenant in _directories(root):
        workspaces += [Workspace(tenant, name) for name in _directories(root / tenant) if _TASK_ID.fullmatch(name)]
    return workspaces


def _list_dead_copies(root: Path) -> list[Workspace]:
    """Returns the directories of incomplete copies that are older than any copy may take."""
    now, copies = time.time(), []
    for tenant in _directories(root):
        for name in _directories(root / tenant):
            if name.startswith(UNFINISHED):
                with suppress(FileNotFoundError):
                    if now - (root / tenant / name).lstat().st_mtime > _DEAD_AFTER_SECONDS:
                        copies.append(Workspace(tenant, name))
    return copies


def _directories(parent: Path) -> list[str]:
    try:
        with os.scandir(parent) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
