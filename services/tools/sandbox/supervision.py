"""Following one run from its start to its verdict."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from services.tools.sandbox.cgroups import Cgroup, Counters
from services.tools.sandbox.command import PRIVATE_PLACES, WORKSPACE_PATH, Entry, View
from services.tools.sandbox.guarding import Guard
from services.tools.sandbox.limits import SandboxLimits
from services.tools.sandbox.looking import Looking
from services.tools.sandbox.output import KeptOutput
from services.tools.sandbox.process import MOST_PRIVATE_FILES, SandboxedProcess, remove_cgroup
from services.tools.sandbox.result import Evidence, SandboxResult, SandboxStatus, explain, judge, last_line
from services.tools.sandbox.workspace import Usage
from tenure.runtime.task_group import TaskGroup

if TYPE_CHECKING:
    from services.tools.sandbox.warm import WarmSandbox

log = logging.getLogger(__name__)

OnOutput = Callable[[str, str], None]

_PORTION_BYTES = 64 << 10
_COUNTERS_EVERY_SECONDS = 0.1
_FILES_EVERY_SECONDS = 0.25
# A program that meets the limit now and then may cope with it; one that was refused this often is a fork bomb.
_FORK_FLOOD = 256
_KILLED = 128 + 9
_UNSTOPPABLE = "the kernel did not end the run's processes in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What is run, and everything decided about its confinement before it starts."""

    code: bytes
    filter_program: bytes
    view: View
    entry: Entry
    limits: SandboxLimits
    cgroup: Cgroup | None
    guard: Guard
    process_gate: int | None  # the limit of processes to set at the gate, where nothing else limits them
    workspace: Path | None
    usage_before: Usage
    ahead: WarmSandbox | None = None  # one that was started for such a program, and has it

    @property
    def private_places(self) -> tuple[str, ...]:
        """Where the run has file systems of its own, in memory."""
        return PRIVATE_PLACES if self.workspace is not None else (*PRIVATE_PLACES, WORKSPACE_PATH)


class Supervision:
    """One run. `stop` may be called at any time, also before the start and after the end; the first reason counts."""

    def __init__(self, limits: SandboxLimits, on_output: OnOutput | None) -> None:
        self._limits = limits
        self._on_output = on_output
        self._outputs = {"stdout": KeptOutput(limits.output_bytes), "stderr": KeptOutput(limits.output_bytes)}
        self._stopping = asyncio.Event()
        self._reason: SandboxStatus | None = None
        self._error: str = ""
        self._callback_failure: Exception | None = None
        self.left_behind = False

    def stop(self, reason: SandboxStatus, error: str = "") -> None:
        """End the run for this reason."""
        if self._reason is None:
            self._reason, self._error = reason, error
            self._stopping.set()

    @property
    def was_cancelled(self) -> bool:
        """Whether nobody waits for the result any more."""
        return self._reason is SandboxStatus.CANCELLED

    async def run(self, program: Program) -> SandboxResult:
        """Start, follow, end, judge. What the output callback raised is raised, after the run was ended."""
        started = time.monotonic()
        exit_code, counters = None, Counters()
        if self._reason is None:
            exit_code, counters = await self._start_to_end(program)
        if self._callback_failure is not None:
            raise self._callback_failure
        if await Looking(program).finds_too_much():
            self.stop(SandboxStatus.WORKSPACE_LIMIT)
        return self._result(exit_code, counters, time.monotonic() - started)

    async def _start_to_end(self, program: Program) -> tuple[int | None, Counters]:
        try:
            process = await self._start(program)
        except OSError as error:
            self.stop(SandboxStatus.SANDBOX_ERROR, f"the sandbox could not be started: {error}")
            return None, Counters()
        try:
            await self._attend(process, program)
        finally:
            exit_code, counters = await self._finish(process)
        return exit_code, counters

    async def _start(self, program: Program) -> SandboxedProcess:
        if program.ahead is not None and (process := program.ahead.release()) is not None:
            return process
        if program.cgroup is not None:
            program.cgroup.create(program.limits)
        try:
            return await SandboxedProcess.start(
                program.code,
                program.filter_program,
                program.view,
                program.entry,
                program.limits,
                cgroup=program.cgroup,
                guard=program.guard,
            )
        except BaseException:
            if program.cgroup is not None:
                self.left_behind = not await remove_cgroup(program.cgroup)
            raise

    async def _attend(self, process: SandboxedProcess, program: Program) -> None:
        """Read its output and watch its limits until it ends or is stopped."""
        timer = asyncio.get_running_loop().call_later(self._limits.wall_seconds, self.stop, SandboxStatus.TIMEOUT)
        try:
            async with TaskGroup() as tasks:
                following = tasks.create_task(self._follow(process, program))
                watchers = [
                    tasks.create_task(self._end_when_stopped(process, following)),
                    tasks.create_task(self._watch_counters(process, program)),
                    tasks.create_task(self._watch_files(process, program)),
                ]
                await asyncio.wait({following})
                for watcher in watchers:
                    watcher.cancel()
        finally:
            timer.cancel()

    async def _follow(self, process: SandboxedProcess, program: Program) -> None:
        async with TaskGroup() as tasks:
            tasks.create_task(process.open_gate(program.process_gate))
            tasks.create_task(self._pump(process.stdout, "stdout"))
            tasks.create_task(self._pump(process.stderr, "stderr"))
            await process.ended()

    async def _pump(self, stream: asyncio.StreamReader, name: str) -> None:
        """Read to the end, also after a stop: a reader that leaves early keeps the pipe's transport alive."""
        while portion := await stream.read(_PORTION_BYTES):
            if self._reason is not None:
                continue
            text = self._outputs[name].feed(portion)
            if sum(output.total_bytes for output in self._outputs.values()) > self._limits.flood_bytes:
                self.stop(SandboxStatus.OUTPUT_LIMIT)
            elif self._on_output is not None and text:
                self._show(name, text)

    def _show(self, name: str, text: str) -> None:
        assert self._on_output is not None
        try:
            self._on_output(name, text)
        except Exception as error:  # noqa: BLE001  # the caller's, kept and raised to it once the run is ended
            self._callback_failure = error
            self.stop(SandboxStatus.CANCELLED)

    async def _end_when_stopped(self, process: SandboxedProcess, following: asyncio.Task[None]) -> None:
        await self._stopping.wait()
        if not await process.kill():
            self.left_behind = True
            following.cancel()

    async def _watch_counters(self, process: SandboxedProcess, program: Program) -> None:
        """End what forks on after refusals, and what has used up its CPU time.

        The kernel's own CPU limit comes a second later and is for each process; its warning is no use here, as a
        pid 1 ignores signals that it does not handle.
        """
        while True:
            await asyncio.sleep(_COUNTERS_EVERY_SECONDS)
            counters = process.counters()
            if (counters.refused_forks or 0) >= _FORK_FLOOD:
                self.stop(SandboxStatus.TOO_MANY_PROCESSES)
            if process.has_too_many_files_in_memory(program.private_places):
                self.stop(SandboxStatus.OUT_OF_MEMORY, f"made more than {MOST_PRIVATE_FILES} files outside of /work")
            used = process.cpu_seconds if counters.cpu_ms is None else counters.cpu_ms / 1000
            if used >= self._limits.cpu_seconds:
                self.stop(SandboxStatus.TIMEOUT, f"used up its {self._limits.cpu_seconds:g} s of CPU time")

    async def _watch_files(self, process: SandboxedProcess, program: Program) -> None:
        """End what fills the workspace. A large one is looked at less often, so that looking stays cheap."""
        looking = Looking(program)
        while program.workspace is not None:
            await looking.pause(_FILES_EVERY_SECONDS)
            if await looking.finds_too_much(process.init_pid):
                self.stop(SandboxStatus.WORKSPACE_LIMIT)

    async def _finish(self, process: SandboxedProcess) -> tuple[int | None, Counters]:
        """Whatever led here, nothing of the run outlives this."""
        ended = await process.kill()
        counters = process.counters()
        exit_code = process.exit_code
        removed = await process.close()
        self.left_behind = self.left_behind or not (ended and removed)
        if self.left_behind:
            log.error("a sandbox could not be cleaned up: %s", _UNSTOPPABLE)
        killed_here = self._reason is not None and exit_code == _KILLED
        return None if killed_here else exit_code, counters

    def _result(self, exit_code: int | None, counters: Counters, wall_seconds: float) -> SandboxResult:
        stdout, stderr = self._outputs["stdout"], self._outputs["stderr"]
        errors = stderr.text()
        evidence = Evidence(
            stopped=self._reason,
            exit_code=exit_code,
            oom_kills=counters.oom_kills,
            refused_forks=counters.refused_forks,
            cpu_ms=counters.cpu_ms,
            cpu_limit_ms=1000 * self._limits.cpu_seconds,
            last_words=last_line(errors),
        )
        status = SandboxStatus.SANDBOX_ERROR if self.left_behind else judge(evidence)
        return SandboxResult(
            status=status,
            exit_code=exit_code,
            stdout=stdout.text(),
            stderr=errors,
            truncated=stdout.truncated or stderr.truncated,
            cpu_ms=counters.cpu_ms,
            wall_ms=round(1000 * wall_seconds),
            memory_peak_bytes=counters.memory_peak_bytes,
            message=self._error
            or explain(status, self._limits, _UNSTOPPABLE if self.left_behind else evidence.last_words),
        )
