"""A program in the sandbox that stays and is spoken to over its pipes, such as a server of one task.

Confined as the programs of agents are. It has no end of its own that anybody waits for, so there is no result: who
started it ends it, and is told by the end of its output when it ended itself or was ended for what it used.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from services.tools.sandbox.placement import Stage, show
from services.tools.sandbox.process import SandboxedProcess, remove_cgroup
from services.tools.sandbox.supervision import SandboxedProgram, WorkspaceMonitor
from services.tools.sandbox.uncancellable import uncancellable

log = logging.getLogger(__name__)
_WATCH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Command:
    """`words`: the program's absolute path and its arguments. `read_only`: host paths that it sees where they are."""

    words: tuple[str, ...]
    variables: Mapping[str, str]
    read_only: tuple[Path, ...]

    def put_in(self, program: SandboxedProgram, stage: Stage | None) -> SandboxedProgram:
        """Where a Python program would be, this one. Raises OSError for a path that is not there."""
        pairs, binds = show(self.read_only, stage)
        view = replace(
            program.view, command=self.words, variables=tuple(self.variables.items()), read_only=tuple(pairs)
        )
        rlimits = dict(program.entry.rlimits)
        del rlimits["CPU"]
        if "AS" in rlimits:
            # Runtimes reserve far more addresses than they use: what they can write to is bounded instead.
            rlimits["DATA"] = rlimits.pop("AS")
        entry = replace(program.entry, rlimits=rlimits, binds=[*program.entry.binds, *binds])
        return replace(program, view=view, entry=entry)


class LongRunningProgram:
    """Runs while its `async with` is open; at the end all of it is gone, or `left_behind` says that it is not."""

    def __init__(self, program: SandboxedProgram) -> None:
        self._program = program
        self._process: SandboxedProcess | None = None
        self._watching: tuple[asyncio.Task[None], ...] = ()
        self.left_behind = False

    @property
    def process(self) -> SandboxedProcess:
        """Its pipes are this one's."""
        assert self._process is not None
        return self._process

    async def __aenter__(self) -> Self:
        program = self._program
        if program.cgroup is not None:
            program.cgroup.create(program.limits)
        try:
            self._process = await SandboxedProcess.start(
                program.code,
                program.filter_program,
                program.view,
                program.entry,
                program.limits,
                cgroup=program.cgroup,
                guard=program.guard,
                stdin=PIPE,
            )
        except BaseException:
            if program.cgroup is not None:
                self.left_behind = not await remove_cgroup(program.cgroup)
            raise
        self._watching = (
            asyncio.create_task(self._watch(), name="watch a long-running program"),
            asyncio.create_task(self._process.ended(), name="note the end of a long-running program"),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self.left_behind = not await uncancellable(self._end())

    async def _end(self) -> bool:
        for watching in self._watching:
            watching.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        assert self.process.stdin is not None
        self.process.stdin.close()
        reading = [asyncio.ensure_future(_read_away(pipe)) for pipe in (self.process.stdout, self.process.stderr)]
        try:
            ended = await self.process.kill()
            removed = await self.process.close()
        finally:
            for one in reading:
                one.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
        return ended and removed

    async def _watch(self) -> None:
        """What nothing else bounds: the files that it writes. It ends what has too many, and says so."""
        program, monitor = self._program, WorkspaceMonitor(self._program)
        await self.process.open_gate(program.process_gate)
        while True:
            await monitor.pause(_WATCH_SECONDS)
            if self.process.has_too_many_files_in_memory(program.private_places):
                trouble = "it made too many files in memory"
            elif await monitor.exceeds_limits(self.process.init_pid):
                trouble = "the workspace has outgrown its bounds"
            else:
                continue
            log.warning("ending a long-running program: %s", trouble)
            await self.process.kill()
            return


async def _read_away(pipe: asyncio.StreamReader) -> None:
    """A pipe that nobody reads would keep its transport alive."""
    while await pipe.read(64 * 1024):
        pass
