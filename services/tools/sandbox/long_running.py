"""Runs a long-running program in the sandbox, such as an MCP server of one task; the caller uses its pipes.

A long-running program is confined like the programs of agents. It has no result, because no caller waits for its exit:
the caller that started the program ends it. The end of the program's output tells the caller that the program exited,
or that the service ended it because it exceeded a limit.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from services.tools.sandbox.command import ENVIRONMENT
from services.tools.sandbox.placement import Stage, show
from services.tools.sandbox.process import SandboxedProcess, remove_cgroup, within
from services.tools.sandbox.supervision import SandboxedProgram, WorkspaceMonitor
from services.tools.sandbox.uncancellable import uncancellable

log = logging.getLogger(__name__)
_WATCH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Command:
    """The command of a long-running program.

    `argv`: the program's absolute path and its arguments. `variables`: its environment, in addition to ENVIRONMENT
    where it starts in /work. `read_only`, `writable`: host paths that the program sees at the same paths. `directory`:
    its current directory, one of these paths or /tmp; None: /work. `network`: whether it has the host's network.
    `leave_seconds`: how long it may run on after its stdin closed.
    """

    argv: tuple[str, ...]
    variables: Mapping[str, str]
    read_only: tuple[Path, ...]
    writable: tuple[Path, ...] = ()
    directory: Path | None = None
    network: bool = False
    leave_seconds: float = 0.0

    def applied_to(self, program: SandboxedProgram, stage: Stage | None) -> SandboxedProgram:
        """Returns `program` with this command instead of a Python program. Raises OSError for a missing path."""
        variables = {**ENVIRONMENT, **self.variables} if self.directory is None else self.variables
        read_only, binds = show(self.read_only, stage)
        writable, more_binds = show(self.writable, stage)
        view = replace(
            program.view,
            command=self.argv,
            variables=tuple(variables.items()),
            read_only=tuple(read_only),
            writable=tuple(writable),
            directory=self.directory,
            network=self.network,
        )
        rlimits = dict(program.entry.rlimits)
        del rlimits["CPU"]
        if "AS" in rlimits:
            # Runtimes reserve far more address space than they use, so the limit applies to writable memory instead.
            rlimits["DATA"] = rlimits.pop("AS")
        binds = [*program.entry.binds, *binds, *more_binds]
        entry = replace(program.entry, rlimits=rlimits, binds=binds, network=self.network)
        return replace(program, view=view, entry=entry)


class LongRunningProgram:
    """A program that runs while its `async with` block is open.

    `left_behind` is true after the block when a process or the cgroup of the program could not be removed.
    """

    def __init__(self, program: SandboxedProgram, leave_seconds: float = 0.0) -> None:
        self._program, self._leave_seconds = program, leave_seconds
        self._process: SandboxedProcess | None = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self.left_behind = False

    @property
    def process(self) -> SandboxedProcess:
        """The process of the program, with its pipes. Valid inside the `async with` block."""
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
        self._tasks = (
            asyncio.create_task(self._watch(), name="watch a long-running program"),
            asyncio.create_task(self._process.ended(), name="note the end of a long-running program"),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self.left_behind = not await uncancellable(self._end())

    async def _end(self) -> bool:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert self.process.stdin is not None
        self.process.stdin.close()
        readers = [asyncio.ensure_future(_drain(pipe)) for pipe in (self.process.stdout, self.process.stderr)]
        try:
            if self._leave_seconds:
                await within(self._leave_seconds, self.process.ended())
            ended = await self.process.kill()
            removed = await self.process.close()
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
        return ended and removed

    async def _watch(self) -> None:
        """Ends the program, with a warning, when its files exceed their bounds, which no other limit enforces."""
        program, monitor = self._program, WorkspaceMonitor(self._program)
        await self.process.open_gate(program.process_gate)
        while True:
            await monitor.pause(_WATCH_SECONDS)
            if self.process.has_too_many_files_in_memory(program.private_places):
                violation = "it made too many files in memory"
            elif await monitor.exceeds_limits(self.process.init_pid):
                violation = "the workspace exceeds its bounds"
            else:
                continue
            log.warning("ending a long-running program: %s", violation)
            await self.process.kill()
            return


async def _drain(pipe: asyncio.StreamReader) -> None:
    """Reads a pipe to its end. A pipe with unread output would keep its transport open."""
    while await pipe.read(64 * 1024):
        pass
