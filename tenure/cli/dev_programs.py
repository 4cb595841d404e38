"""The programs of a user that run beside the stack of `tenure dev`, and their restart when their code changes."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, TextIO

from tenure.runtime.running_stack import LOCK_FILE_NAME
from tenure.runtime.task_group import TaskGroup

Report = Callable[[str], None]

LOOK_SECONDS: Final = 0.5
SHARE_OF_LOOKS: Final = 20
"""A look at the files of a large folder takes at most one in so many seconds of the processor."""
DRAIN_SECONDS: Final = 60.0
NOT_OURS: Final = frozenset({"__pycache__", "node_modules", "site-packages"})


async def keep_programs(
    programs: Iterable[Path], environment: Mapping[str, str], output: TextIO, report: Report, *, reload: bool
) -> None:
    """Runs the programs until it is cancelled, and drains them then.

    `reload`: a program is drained and started again when a Python file below its folder changes. Without it, and
    without a change, a program that has ended is started again after a growing wait.
    """
    async with TaskGroup() as tasks:
        for program in programs:
            tasks.create_task(_keep(program, environment, output, report, reload=reload))


async def _keep(program: Path, environment: Mapping[str, str], output: TextIO, report: Report, *, reload: bool) -> None:
    from devstack.supervisor import BACKOFF, HEALTHY_SECONDS, death_of

    files, failures = CodeFiles(program.parent) if reload else None, 0
    while True:
        since, process = time.monotonic(), await _start(program, environment, output)
        ending = asyncio.create_task(process.wait())
        changing = asyncio.create_task(files.next_change() if files else _never())
        try:
            await asyncio.wait({ending, changing}, return_when=asyncio.FIRST_COMPLETED)
            if not changing.done():
                failures = failures + 1 if time.monotonic() - since < HEALTHY_SECONDS else 1
                wait_seconds = BACKOFF.ceiling_seconds(failures)
                again = "when its code changes" if reload else f"in {wait_seconds:g} s"
                report(f"{program} {death_of(ending.result())}; it starts again {again}")
                await asyncio.wait({changing}, timeout=None if reload else wait_seconds)
            if changing.done():
                failures = 0
                report(f"{changing.result()} has changed: {program} starts again")
        finally:
            changing.cancel()
            await _drain(process)


async def _never() -> str:
    return str(await asyncio.Event().wait())


async def _start(program: Path, environment: Mapping[str, str], output: TextIO) -> Process:
    from devstack import watchdog

    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(program)),
        env={"PYDANTIC_AI_NO_BANNER": "1", **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output.fileno(),
        start_new_session=True,  # Ctrl-C in the terminal is for `tenure dev`, which drains the program
    )
    watchdog.watch_process(process.pid)
    return process


async def _drain(process: Process) -> None:
    """Sends SIGTERM, with which a worker gives its tasks back, and waits for the end. Kills it if it takes longer."""
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), DRAIN_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


class CodeFiles:
    """The Python files below a folder, without hidden folders, virtual environments, installed packages and what agents
    write into the data directory of a stack.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._look()

    async def next_change(self) -> str:
        """Waits until a file differs from what was seen before, and then until none changes. Returns its path."""
        changed = ""
        while True:
            began = asyncio.get_running_loop().time()
            seen = await asyncio.to_thread(self._look)
            took = asyncio.get_running_loop().time() - began
            if seen == self._seen and changed:
                return changed
            changed = _first_difference(self._seen, seen) or changed
            self._seen = seen
            await asyncio.sleep(max(LOOK_SECONDS, took * SHARE_OF_LOOKS))

    def _look(self) -> dict[str, int]:
        """Returns when each file was written, in ns."""
        written: dict[str, int] = {}
        for root, folders, files in os.walk(self._folder):
            folders[:] = [name for name in folders if _is_ours(Path(root, name))]
            for path in (Path(root, name) for name in files if name.endswith(".py")):
                try:
                    written[str(path)] = path.stat().st_mtime_ns
                except OSError:  # an editor replaces it at this moment
                    continue
        return written


def _is_ours(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name in NOT_OURS:
        return False
    return not any((folder / mark).exists() for mark in ("pyvenv.cfg", LOCK_FILE_NAME))


def _first_difference(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    return next((path for path in sorted({*before, *after}) if before.get(path) != after.get(path)), "")
