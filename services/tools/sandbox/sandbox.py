"""The sandbox as the tool service uses it: `Sandbox.open`, `run_python`, `long_running`, `close`.

A run takes a slot and a uid, gets the slot's warm sandbox if there is one, and is supervised until all its processes
are gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from services.tools.sandbox.command import LaunchSpec, rlimits
from services.tools.sandbox.detection import Detection, SandboxSettings, detect
from services.tools.sandbox.limits import MIB, SandboxLimits, SandboxUnavailable
from services.tools.sandbox.long_running import Command, LongRunningProgram
from services.tools.sandbox.placement import Stage, choose_paths, sweep
from services.tools.sandbox.reaper_client import ReaperClient
from services.tools.sandbox.result import SandboxResult, SandboxStatus
from services.tools.sandbox.self_test import require_no_escape
from services.tools.sandbox.slots import RunSlots, Slot
from services.tools.sandbox.supervision import OnOutput, RunSupervisor, SandboxedProgram, WarmSandbox
from services.tools.sandbox.uid_locks import UidLease
from services.tools.sandbox.warm_pool import WarmStart
from services.tools.sandbox.workspace import NOTHING, Usage, identity, take_over

log = logging.getLogger(__name__)

OnEnd = Callable[[SandboxResult], None]

MAX_CODE_BYTES = MIB
# No run starts in a workspace of more than this many times its limit: each run could add a little before the
# workspace monitor stops it.
_MAX_OVERFULL_FACTOR = 2
_TOO_LARGE_TO_START = (
    "not started: the workspace contains too many bytes or files, directories that are nested too deep, or directories "
    "that the service cannot read; delete files first with the tool delete_file, not with a program"
)
_CANCEL_SECONDS = 0.9


@dataclass(frozen=True, slots=True)
class _Run:
    """A program that has a slot, and the slot's warm sandbox if there is one."""

    code: bytes
    workspace: Path | None
    limits: SandboxLimits
    uid: int | None
    warm: WarmSandbox | None
    is_slot_uid: bool  # the run has its slot's uid, which the slot's warm sandbox has too


class Sandbox(AbstractAsyncContextManager["Sandbox"]):
    """Runs agents' programs, `settings.slots` at a time, each without the host's files, network and processes.

    Create a sandbox with `open`, which runs the self-test first. There is no way to run a program without a sandbox.
    """

    def __init__(self, settings: SandboxSettings, detection: Detection) -> None:
        self._settings = settings
        self.detection = detection
        self._tools = detection.require()
        first_uid = settings.first_uid if detection.per_slot_uids else None
        self._slots = RunSlots(settings.slots, settings.long_running, first_uid, settings.locks)
        self._stage = Stage() if detection.per_slot_uids else None
        self._reaper = ReaperClient()
        self._running: dict[asyncio.Task[SandboxResult], RunSupervisor] = {}
        self._warm = WarmStart(settings.warm, settings.slots, self._program_of, is_root=detection.per_slot_uids)
        self.warm_runs = 0  # programs that began in a warm sandbox

    @classmethod
    async def open(cls, settings: SandboxSettings) -> Self:
        """Detects what the machine offers, removes the leftovers of dead services, and runs the self-test.

        Raises SandboxUnavailable when a requirement is missing, SandboxEscaped when a probe escaped.
        """
        detection = await asyncio.to_thread(detect, settings)
        detection.require()
        await sweep(detection)
        sandbox = cls(settings, detection)
        try:
            await sandbox.self_test()
            await sandbox.warm_up()
        except BaseException:
            await sandbox.close()
            raise
        present = "; ".join(sandbox.detection.present)
        log.info("the sandbox passed its self-test: %s", present, extra={"limits": detection.cgroups.describe()})
        for sentence in sandbox.detection.weakened:
            log.warning("sandbox: %s", sentence)
        return sandbox

    async def self_test(self) -> None:
        """Runs the probes. Raises SandboxEscaped, which names each probe that escaped."""
        await require_no_escape(partial(self.run_python, workspace=None, limits=SandboxLimits()))

    async def warm_up(self) -> bool:
        """Starts the warm sandboxes and runs the probes in one of them.

        Returns False when warm sandboxes are turned off or not possible on this machine; in the second case
        `detection.weakened` gets a sentence with the reason. Raises SandboxEscaped.
        """
        if not self._settings.warm:
            return False
        before, problem = self.warm_runs, await self._warm.start()
        if not problem:
            try:
                with tempfile.TemporaryDirectory(prefix="tenure-probe-") as directory:
                    workspace = Path(directory)
                    await require_no_escape(partial(self.run_python, workspace=workspace, limits=SandboxLimits()))
            except SandboxUnavailable as unavailable:
                problem = str(unavailable)
        detection = self.detection
        if self.warm_runs == before:
            reason = problem or "the test program could not be passed to its warm sandbox"
            sentence = f"no sandbox is started ahead of its program, so all starts are cold: {reason}"
            self.detection = replace(detection, weakened=(*detection.weakened, sentence))
            await self._warm.close()
            return False
        self.detection = replace(
            detection, present=(*detection.present, "warm sandboxes, started ahead of their programs")
        )
        return True

    def on_slot_lost(self, call: Callable[[], None]) -> None:
        """Sets what to call when a slot is retired: from then on one program less runs at once."""
        self._slots.on_lost(call)

    async def run_python(
        self,
        code: str,
        workspace: Path | None,
        limits: SandboxLimits,
        on_output: OnOutput | None = None,
        on_end: OnEnd | None = None,
    ) -> SandboxResult:
        """Runs a Python program to its end and returns its result, whatever the program does.

        `workspace` (a directory, not a link) is the program's current directory.
        `on_output(stream, text)` is called in the event loop when text of "stdout" or "stderr" arrives; the callback
        must not block. `on_end(result)` is called at the end, also after a cancellation if the clean-up is done then.
        Raises ValueError for code over MAX_CODE_BYTES, NotADirectoryError, and SandboxUnavailable.
        When the awaiting task is cancelled, all processes are killed and reaped before CancelledError is raised again.
        That wait is shorter than a second; if the kernel needs longer, the clean-up continues in the background.
        """
        encoded = code.encode("utf-8", errors="surrogatepass")
        if len(encoded) > MAX_CODE_BYTES:
            raise ValueError(f"the program has {len(encoded)} bytes, more than {MAX_CODE_BYTES}")
        key = identity(workspace) if workspace is not None else None
        slot, lease = await self._slots.enter(key, workspace, lambda: self._preferred(workspace))
        warm = self._warm.pool.occupy(slot.number, limits) if self._is_for_runs(slot) else None
        supervision = RunSupervisor(limits, on_output)
        # A separate task: a cancellation of the caller must not cancel the clean-up, and the run keeps its slot until
        # the clean-up is done, even when the kernel takes so long that the caller no longer waits.
        run = _Run(encoded, workspace, limits, lease.uid, warm, lease.uid == self._slots.uid(slot.number))
        task = asyncio.create_task(self._run(supervision, run))
        self._running[task] = supervision
        task.add_done_callback(partial(self._vacate, key, slot, lease))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            supervision.stop(SandboxStatus.CANCELLED)
            await _wait_for_cleanup(task, _CANCEL_SECONDS)
            raise
        finally:
            if on_end is not None and task.done() and task.exception() is None:
                on_end(task.result())

    @asynccontextmanager
    async def long_running(
        self, command: Command, workspace: Path | None, limits: SandboxLimits
    ) -> AsyncIterator[LongRunningProgram]:
        """Runs a program with pipes for stdin, stdout and stderr while the context is open, confined like all others.

        The program has no time limit. Waits for one of the `settings.long_running` slots. Raises OSError when the
        program does not start, NotADirectoryError, and SandboxUnavailable.
        """
        key = identity(workspace) if workspace is not None else None
        slot, lease = await self._slots.enter(key, workspace, lambda: None, long_running=True)
        try:
            usage = await asyncio.to_thread(take_over, workspace, lease.uid)
            for path in command.writable:
                await asyncio.to_thread(take_over, path, lease.uid)
            program = command.applied_to(self._program(b"", workspace, limits, lease.uid, usage), self._stage)
            if command.network:
                program = replace(program, filter_program=self._tools.network_filter)
            running = LongRunningProgram(program, command.leave_seconds)
            try:
                async with running:
                    yield running
            finally:
                slot.retired = slot.retired or running.left_behind
        finally:
            self._slots.leave(key, slot, lease, long_running=True)

    async def close(self) -> None:
        """Ends all runs and removes everything that belongs to this sandbox."""
        running = dict(self._running)
        for supervision in running.values():
            supervision.stop(SandboxStatus.CANCELLED)
        if running:
            await asyncio.wait(running)
        await self._warm.close()
        await self._reaper.close()
        if self._stage is not None:
            self._stage.remove()
            self._stage = None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _vacate(
        self, key: tuple[int, int] | None, slot: Slot, lease: UidLease, task: asyncio.Task[SandboxResult]
    ) -> None:
        supervision = self._running.pop(task)
        slot.retired = slot.retired or supervision.left_behind
        self._slots.leave(key, slot, lease)
        if self._is_for_runs(slot):
            self._warm.pool.vacate(slot.number, retired=slot.retired)
        if not task.cancelled() and supervision.was_cancelled and (error := task.exception()) is not None:
            log.error("the clean-up of a cancelled run failed", exc_info=error)

    async def _run(self, supervision: RunSupervisor, run: _Run) -> SandboxResult:
        try:
            usage, limits = await asyncio.to_thread(self._prepare, run), run.limits
            disk_bytes, entries = (
                _MAX_OVERFULL_FACTOR * limits.workspace_bytes,
                _MAX_OVERFULL_FACTOR * limits.workspace_files,
            )
            if not usage.complete or usage.disk_bytes > disk_bytes or usage.entries > entries:
                supervision.stop(SandboxStatus.WORKSPACE_LIMIT, _TOO_LARGE_TO_START)
            program = self._program(run.code, run.workspace, limits, run.uid, usage)
            result = await supervision.run(replace(program, warm=run.warm))
            return replace(result, warm=run.warm is not None and run.warm.is_released)
        finally:
            if run.warm is not None:
                self.warm_runs += run.warm.is_released
                await run.warm.close()

    def _prepare(self, run: _Run) -> Usage:
        usage = take_over(run.workspace, run.uid)
        if run.warm is not None and run.is_slot_uid:
            run.warm.prepare(run.code, run.workspace)
        return usage

    def _program_of(self, slot: int, limits: SandboxLimits) -> SandboxedProgram:
        """Returns the confinement of programs in this slot, for a warm sandbox whose program is not known yet."""
        return self._program(b"", None, limits, self._slots.uid(slot), NOTHING)

    def _program(
        self, code: bytes, workspace: Path | None, limits: SandboxLimits, uid: int | None, usage: Usage
    ) -> SandboxedProgram:
        placement = choose_paths(self._tools.bubblewrap, self._tools.interpreter, workspace, self._stage)
        cgroup = self.detection.cgroups.new()
        limited = self.detection.cgroups.limits
        gated = self.detection.gate_processes
        processes_by_uid = limits.processes if "pids" not in limited and not gated else None
        entry = LaunchSpec(
            parent_pid=os.getpid(),
            uid=uid,
            join_files=cgroup.join_files if cgroup is not None else [],
            rlimits=rlimits(limits, memory="memory" not in limited, processes=processes_by_uid),
            binds=placement.binds,
        )
        return SandboxedProgram(
            code=code,
            filter_program=self._tools.filter_program,
            view=placement.view,
            entry=entry,
            limits=limits,
            cgroup=cgroup,
            guard=self._reaper,
            process_gate=limits.processes if gated else None,
            workspace=workspace,
            usage_before=usage,
        )

    def _preferred(self, workspace: Path | None) -> int | None:
        """Returns the slot to ask for, or None.

        That is the slot whose uid owns the workspace's files, because then no file has to change its owner. Another
        slot with a warm sandbox is preferred to it if it has none.
        """
        former = None if workspace is None else self._slots.former(workspace)
        return self._warm.pool.preferred(former)

    def _is_for_runs(self, slot: Slot) -> bool:
        return slot.number < self._settings.slots


async def _wait_for_cleanup(task: asyncio.Task[SandboxResult], seconds: float) -> None:
    """Waits for the clean-up of a run. Absorbs cancellations of the wait, because the caller raises one afterwards."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not task.done() and loop.time() < deadline:
        try:
            await asyncio.wait({task}, timeout=deadline - loop.time())
        except asyncio.CancelledError:
            continue
    if not task.done():
        log.warning("a cancelled run was killed, but the kernel has not ended all its processes after %g s", seconds)


__all__ = ["MAX_CODE_BYTES", "Sandbox", "SandboxUnavailable", "sweep"]
