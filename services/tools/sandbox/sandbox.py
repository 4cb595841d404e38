"""The sandbox as the tool service uses it."""

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
from services.tools.sandbox.placement import Stage, place, sweep
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
# A workspace this many times over its bound takes no further run: each could add a little before it is noticed.
_OVERFULL = 2
_TOO_MUCH = (
    "not started: the workspace holds too much, directories that are too deep, or closed ones; delete files first, "
    "without a program"
)
_CANCEL_SECONDS = 0.9


@dataclass(frozen=True, slots=True)
class _Run:
    """A program that has a place, and perhaps a sandbox that was started ahead."""

    code: bytes
    workspace: Path | None
    limits: SandboxLimits
    uid: int | None
    ahead: WarmSandbox | None
    is_own_uid: bool  # the place's, which a sandbox that was started ahead has


class Sandbox(AbstractAsyncContextManager["Sandbox"]):
    """Runs agents' programs, `settings.slots` at a time, each without the host's files, network and processes.

    Made by `open`, which proves that it holds; there is no way to run a program without it.
    """

    def __init__(self, settings: SandboxSettings, detection: Detection) -> None:
        self._settings = settings
        self.detection = detection
        self._tools = detection.require()
        first_uid = settings.first_uid if detection.per_slot_uids else None
        self._places = RunSlots(settings.slots, settings.long_running, first_uid, settings.locks)
        self._stage = Stage() if detection.per_slot_uids else None
        self._guard = ReaperClient()
        self._running: dict[asyncio.Task[SandboxResult], RunSupervisor] = {}
        self._warm = WarmStart(settings.warm, settings.slots, self._program_of, is_root=detection.per_slot_uids)
        self.warm_runs = 0  # programs that began in a sandbox which was waiting for them

    @classmethod
    async def open(cls, settings: SandboxSettings) -> Self:
        """Look at the machine, remove what a dead instance left, and try to break out.

        Raises SandboxUnavailable where something is missing, SandboxEscaped when a probe got out.
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
        log.info("the sandbox holds here: %s", present, extra={"limits": detection.cgroups.describe()})
        for sentence in sandbox.detection.weakened:
            log.warning("sandbox: %s", sentence)
        return sandbox

    async def self_test(self) -> None:
        """Run the probes. Raises SandboxEscaped that names each one which got out."""
        await require_no_escape(partial(self.run_python, workspace=None, limits=SandboxLimits()))

    async def warm_up(self) -> bool:
        """Start the sandboxes that wait for programs, and try to break out of one. Raises SandboxEscaped.

        False, and a sentence among what is weakened, when there can be none on this machine.
        """
        if not self._settings.warm:
            return False
        before, trouble = self.warm_runs, await self._warm.start()
        if not trouble:
            try:
                with tempfile.TemporaryDirectory(prefix="tenure-probe-") as directory:
                    workspace = Path(directory)
                    await require_no_escape(partial(self.run_python, workspace=workspace, limits=SandboxLimits()))
            except SandboxUnavailable as unavailable:
                trouble = str(unavailable)
        detection = self.detection
        if self.warm_runs == before:
            sentence = f"no sandbox is started ahead of its program: {trouble or 'it could not be given one'}"
            self.detection = replace(detection, weakened=(*detection.weakened, sentence))
            await self._warm.close()
            return False
        self.detection = replace(
            detection, present=(*detection.present, "sandboxes started ahead of the programs in them")
        )
        return True

    async def run_python(
        self,
        code: str,
        workspace: Path | None,
        limits: SandboxLimits,
        on_output: OnOutput | None = None,
        on_end: OnEnd | None = None,
    ) -> SandboxResult:
        """Run a program to its end, with `workspace` (a directory, not a link) as its current directory.

        `on_output(stream, text)` is called in the event loop as "stdout" and "stderr" arrive; it must not block.
        `on_end(result)` is called also when the run is cancelled, which returns nothing.
        Whatever the program does is a result. Raises ValueError for code over MAX_CODE_BYTES and NotADirectoryError.
        When the awaiting task is cancelled, all processes are killed and gone before CancelledError goes on; this
        takes less than a second, and a kernel that needs longer for it goes on with it in the background.
        """
        encoded = code.encode("utf-8", errors="surrogatepass")
        if len(encoded) > MAX_CODE_BYTES:
            raise ValueError(f"the program has {len(encoded)} bytes, more than {MAX_CODE_BYTES}")
        key = identity(workspace) if workspace is not None else None
        slot, lease = await self._places.enter(key, workspace, lambda: self._preferred(workspace))
        ahead = self._warm.pool.occupy(slot.number, limits) if self._is_for_runs(slot) else None
        supervision = RunSupervisor(limits, on_output)
        # A task of its own: cancelling the caller must not cancel the cleaning up, and the slot is the run's until
        # that is done, even when the kernel takes so long over it that the caller has gone on.
        run = _Run(encoded, workspace, limits, lease.uid, ahead, lease.uid == self._places.uid(slot.number))
        task = asyncio.create_task(self._run(supervision, run))
        self._running[task] = supervision
        task.add_done_callback(partial(self._vacate, key, slot, lease))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            supervision.stop(SandboxStatus.CANCELLED)
            await _gone(task, _CANCEL_SECONDS)
            raise
        finally:
            if on_end is not None and task.done() and task.exception() is None:
                on_end(task.result())

    @asynccontextmanager
    async def long_running(
        self, command: Command, workspace: Path | None, limits: SandboxLimits
    ) -> AsyncIterator[LongRunningProgram]:
        """Run a program that is spoken to over its pipes, for as long as the context is open, confined like any other.

        Without bounds on its time. Waits for a place among the `lasting` ones. Raises OSError when it does not start.
        """
        key = identity(workspace) if workspace is not None else None
        slot, lease = await self._places.enter(key, workspace, lambda: None, long_running=True)
        try:
            usage = await asyncio.to_thread(take_over, workspace, lease.uid)
            program = command.put_in(self._program(b"", workspace, limits, lease.uid, usage), self._stage)
            running = LongRunningProgram(program)
            try:
                async with running:
                    yield running
            finally:
                slot.retired = slot.retired or running.left_behind
        finally:
            self._places.leave(key, slot, lease, long_running=True)

    async def close(self) -> None:
        """End all runs and remove everything that belongs to this sandbox."""
        running = dict(self._running)
        for supervision in running.values():
            supervision.stop(SandboxStatus.CANCELLED)
        if running:
            await asyncio.wait(running)
        await self._warm.close()
        await self._guard.close()
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
        self._places.leave(key, slot, lease)
        if self._is_for_runs(slot):
            self._warm.pool.vacate(slot.number, retired=slot.retired)
        if not task.cancelled() and supervision.was_cancelled and (error := task.exception()) is not None:
            log.error("a cancelled run failed while it was cleaned up", exc_info=error)

    async def _run(self, supervision: RunSupervisor, run: _Run) -> SandboxResult:
        try:
            usage, limits = await asyncio.to_thread(self._prepare, run), run.limits
            disk_bytes, entries = _OVERFULL * limits.workspace_bytes, _OVERFULL * limits.workspace_files
            if not usage.complete or usage.disk_bytes > disk_bytes or usage.entries > entries:
                supervision.stop(SandboxStatus.WORKSPACE_LIMIT, _TOO_MUCH)
            program = self._program(run.code, run.workspace, limits, run.uid, usage)
            result = await supervision.run(replace(program, ahead=run.ahead))
            return replace(result, warm=run.ahead is not None and run.ahead.is_released)
        finally:
            if run.ahead is not None:
                self.warm_runs += run.ahead.is_released
                await run.ahead.close()

    def _prepare(self, run: _Run) -> Usage:
        usage = take_over(run.workspace, run.uid)
        if run.ahead is not None and run.is_own_uid:
            run.ahead.prepare(run.code, run.workspace)
        return usage

    def _program_of(self, place: int, limits: SandboxLimits) -> SandboxedProgram:
        """How a program in this place is confined, before there is one."""
        return self._program(b"", None, limits, self._places.uid(place), NOTHING)

    def _program(
        self, code: bytes, workspace: Path | None, limits: SandboxLimits, uid: int | None, usage: Usage
    ) -> SandboxedProgram:
        placement = place(self._tools.bubblewrap, self._tools.interpreter, workspace, self._stage)
        cgroup = self.detection.cgroups.new()
        limited = self.detection.cgroups.limits
        gated = self.detection.gate_processes
        by_uid = limits.processes if "pids" not in limited and not gated else None
        entry = LaunchSpec(
            parent_pid=os.getpid(),
            uid=uid,
            join_files=cgroup.join_files if cgroup is not None else [],
            rlimits=rlimits(limits, memory="memory" not in limited, processes=by_uid),
            binds=placement.binds,
        )
        return SandboxedProgram(
            code=code,
            filter_program=self._tools.filter_program,
            view=placement.view,
            entry=entry,
            limits=limits,
            cgroup=cgroup,
            guard=self._guard,
            process_gate=limits.processes if gated else None,
            workspace=workspace,
            usage_before=usage,
        )

    def _preferred(self, workspace: Path | None) -> int | None:
        """The place whose uid owns the files already, so that no ownership has to change; or one that is warm."""
        former = None if workspace is None else self._places.former(workspace)
        return self._warm.pool.preferred(former)

    def _is_for_runs(self, slot: Slot) -> bool:
        return slot.number < self._settings.slots


async def _gone(task: asyncio.Task[SandboxResult], seconds: float) -> None:
    """Wait for a run's cleaning up, however often the waiting itself is cancelled: its caller raises afterwards."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not task.done() and loop.time() < deadline:
        try:
            await asyncio.wait({task}, timeout=deadline - loop.time())
        except asyncio.CancelledError:
            continue
    if not task.done():
        log.warning("a cancelled run is killed, but the kernel is still taking it down after %g s", seconds)


__all__ = ["MAX_CODE_BYTES", "Sandbox", "SandboxUnavailable", "sweep"]
