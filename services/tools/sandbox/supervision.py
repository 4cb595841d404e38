"""Following one run from its start to its verdict."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from services.tools.sandbox.cgroups import Cgroup, Counters
from services.tools.sandbox.command import PRIVATE_PLACES, WORKSPACE_PATH, LaunchSpec, View
from services.tools.sandbox.limits import SandboxLimits, SandboxUnavailable
from services.tools.sandbox.mount_helper_client import MountHelperClient
from services.tools.sandbox.process import MAX_PRIVATE_FILES, SandboxedProcess, remove_cgroup
from services.tools.sandbox.reaper_client import ReaperClient
from services.tools.sandbox.result import Evidence, KeptOutput, SandboxResult, SandboxStatus, explain, judge, last_line
from services.tools.sandbox.unlinked_files import NO_UNLINKED_FILES, unlinked_files_of
from services.tools.sandbox.workspace import Usage, measure
from tenure.runtime.task_group import TaskGroup

# Looking from outside at what a program makes of its workspace, as nothing in the kernel bounds that.

log = logging.getLogger(__name__)

_MIN_OFTEN_SECONDS: Final = 2.0

# Of their own: programs that make looking slow keep each other waiting, and nothing else that needs a thread.
_THREADS: Final = ThreadPoolExecutor(max_workers=4, thread_name_prefix="look-at-workspaces")


class WorkspaceMonitor:
    """The looks at one program's workspace, one after the other."""

    def __init__(self, program: SandboxedProgram) -> None:
        self._program = program
        self._in_flight = 0
        self._took_seconds = 0.0

    async def pause(self, seconds: float) -> None:
        """Before the next look: longer where looking takes long, so that it stays cheap, but never for long."""
        await asyncio.sleep(min(max(seconds, 10 * self._took_seconds), _MIN_OFTEN_SECONDS))

    async def exceeds_limits(self, init_pid: int | None = None) -> bool:
        """Whether it has outgrown its bounds, or cannot be measured. `init_pid`: while it runs, it may hold more."""
        workspace = self._program.workspace
        if workspace is None:
            return False
        started = time.monotonic()
        usage = await asyncio.get_running_loop().run_in_executor(_THREADS, self._look, workspace, init_pid)
        self._took_seconds = time.monotonic() - started
        return usage

    def _look(self, workspace: Path, init_pid: int | None) -> bool:
        try:
            usage = measure(workspace)
            held = NO_UNLINKED_FILES if init_pid is None else unlinked_files_of(init_pid, workspace.lstat().st_dev)
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


OnOutput = Callable[[str, str], None]

_PORTION_BYTES = 64 << 10
_COUNTERS_EVERY_SECONDS = 0.1
_FILES_EVERY_SECONDS = 0.25
# A program that meets the limit now and then may cope with it; one that was refused this often is a fork bomb.
_FORK_FLOOD = 256
_KILLED = 128 + 9
_UNSTOPPABLE = "the kernel did not end the run's processes in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxedProgram:
    """What is run, and everything decided about its confinement before it starts."""

    code: bytes
    filter_program: bytes
    view: View
    entry: LaunchSpec
    limits: SandboxLimits
    cgroup: Cgroup | None
    guard: ReaperClient
    process_gate: int | None  # the limit of processes to set at the gate, where nothing else limits them
    workspace: Path | None
    usage_before: Usage
    ahead: WarmSandbox | None = None  # one that was started for such a program, and has it

    @property
    def private_places(self) -> tuple[str, ...]:
        """Where the run has file systems of its own, in memory."""
        return PRIVATE_PLACES if self.workspace is not None else (*PRIVATE_PLACES, WORKSPACE_PATH)


class RunSupervisor:
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

    async def run(self, program: SandboxedProgram) -> SandboxResult:
        """Start, follow, end, judge. What the output callback raised is raised, after the run was ended."""
        started = time.monotonic()
        exit_code, counters = None, Counters()
        if self._reason is None:
            exit_code, counters = await self._start_to_end(program)
        if self._callback_failure is not None:
            raise self._callback_failure
        if await WorkspaceMonitor(program).exceeds_limits():
            self.stop(SandboxStatus.WORKSPACE_LIMIT)
        return self._result(exit_code, counters, time.monotonic() - started)

    async def _start_to_end(self, program: SandboxedProgram) -> tuple[int | None, Counters]:
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

    async def _start(self, program: SandboxedProgram) -> SandboxedProcess:
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

    async def _attend(self, process: SandboxedProcess, program: SandboxedProgram) -> None:
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

    async def _follow(self, process: SandboxedProcess, program: SandboxedProgram) -> None:
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

    async def _watch_counters(self, process: SandboxedProcess, program: SandboxedProgram) -> None:
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
                self.stop(SandboxStatus.OUT_OF_MEMORY, f"made more than {MAX_PRIVATE_FILES} files outside of /work")
            used = process.cpu_seconds if counters.cpu_ms is None else counters.cpu_ms / 1000
            if used >= self._limits.cpu_seconds:
                self.stop(SandboxStatus.TIMEOUT, f"used up its {self._limits.cpu_seconds:g} s of CPU time")

    async def _watch_files(self, process: SandboxedProcess, program: SandboxedProgram) -> None:
        """End what fills the workspace. A large one is looked at less often, so that looking stays cheap."""
        monitor = WorkspaceMonitor(program)
        while program.workspace is not None:
            await monitor.pause(_FILES_EVERY_SECONDS)
            if await monitor.exceeds_limits(process.init_pid):
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
            last_output=last_line(errors),
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
            or explain(status, self._limits, _UNSTOPPABLE if self.left_behind else evidence.last_output),
        )


# A sandbox that was started ahead of its program: complete, used once, and only waiting for what to run.

_HOOK = Path(__file__).with_name("warm_bootstrap.py")
_STARTS_WITHIN_SECONDS = 60.0
_READY, _GO = b"?", b"!"
_MAX_WORDS = 2000


class WarmSandbox:
    """Made by `start`, given to one run by `prepare` and `release`, ended by `close` unless it was released."""

    def __init__(
        self, mount_helper: MountHelperClient, process: SandboxedProcess, channel: socket.socket, program_fd: int
    ) -> None:
        self._mount_helper, self._process = mount_helper, process
        self._channel, self._program_fd, self._namespace_fd = channel, program_fd, -1
        self._owned = ExitStack()
        self._owned.callback(os.close, program_fd)
        self._owned.enter_context(channel)
        self._owned.callback(asyncio.get_running_loop().remove_reader, channel.fileno())
        self._is_prepared = self._is_over = self.is_released = False

    @classmethod
    async def start(cls, program: SandboxedProgram, mount_helper: MountHelperClient, directory: Path) -> Self:
        """Start one that is confined as `program` says, which has neither code nor workspace yet.

        `directory` is one that any uid can reach. Raises OSError, TimeoutError and SandboxUnavailable, leaving
        nothing behind.
        """
        program_fd, file = _program_file(directory, program.entry.uid)
        try:
            with ExitStack() as opened:
                opened.callback(os.close, program_fd)
                here, there = map(opened.enter_context, socket.socketpair())
                process = await _start_process(program, file, mount_helper, there.fileno())
                there.close()
                opened.pop_all()
            warm = cls(mount_helper, process, here, program_fd)
            await warm._come_up_or_close(program)
            return warm
        finally:
            file.unlink()  # what is bound into the sandbox stays there

    async def _come_up_or_close(self, program: SandboxedProgram) -> None:
        try:
            async with asyncio.timeout(_STARTS_WITHIN_SECONDS):
                await self._come_up(program)
        except BaseException:
            await self.close()
            raise

    async def _come_up(self, program: SandboxedProgram) -> None:
        self._channel.setblocking(False)
        await self._process.open_gate(program.process_gate)
        if await asyncio.get_running_loop().sock_recv(self._channel, 1) != _READY:
            message = (await self._process.stderr.read(_MAX_WORDS)).decode(errors="replace").strip()
            raise SandboxUnavailable(f"a sandbox ended before it had a program: {message or 'it said nothing'}")
        self._namespace_fd = self._process.open_mount_namespace()
        self._owned.callback(os.close, self._namespace_fd)

    @property
    def is_alive(self) -> bool:
        """Whether its interpreter still waits: it says nothing, and the socket is open."""
        try:
            return self._channel.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def on_death(self, tell: Callable[[], None]) -> None:
        """Have `tell` called, once, when it dies before it was released."""

        def died() -> None:
            loop.remove_reader(self._channel)
            tell()

        loop = asyncio.get_running_loop()
        loop.add_reader(self._channel, died)

    def prepare(self, code: bytes, workspace: Path | None) -> None:
        """Put program and workspace in their places, or find that this sandbox is of no use. Blocks a moment."""
        try:
            with open(self._program_fd, "wb", closefd=False) as file:
                file.write(code)
            if workspace is not None:
                self._mount_helper.attach(self._namespace_fd, workspace)
        except OSError as error:
            log.warning("a sandbox that waits for a program cannot be given one: %s", error)
            return
        self._is_prepared = True

    def release(self) -> SandboxedProcess | None:
        """Let the program begin; its process is the caller's to end. None when it was not prepared, or died before."""
        if not (self._is_prepared and self.is_alive):
            return None
        self._process.begin_counting()
        try:
            self._channel.send(_GO)
        except OSError:
            return None
        self._owned.close()
        self._is_over = self.is_released = True
        return self._process

    async def close(self) -> None:
        """End it, unless it was released."""
        if self._is_over:
            return
        self._is_over = True
        self._owned.close()
        ended = await self._process.kill()
        if not (await self._process.close() and ended):
            log.error("a sandbox that had no program could not be cleaned up")


def _program_file(directory: Path, uid: int | None) -> tuple[int, Path]:
    """An empty file that nobody but `uid` may read (None: the service's own), and our descriptor to write into it.

    Whoever on the host could open it before it is unlinked would read the program later.
    """
    fd, name = tempfile.mkstemp(prefix="program-", dir=directory)
    try:
        if uid is not None:
            os.fchown(fd, uid, uid)
        os.fchmod(fd, 0o400)
    except BaseException:
        os.close(fd)
        Path(name).unlink()
        raise
    return fd, Path(name)


async def _start_process(
    program: SandboxedProgram, file: Path, mount_helper: MountHelperClient, channel: int
) -> SandboxedProcess:
    if program.cgroup is not None:
        program.cgroup.create(program.limits)
    try:
        return await SandboxedProcess.start(
            _HOOK.read_bytes() + f"\n\nwait({channel})\n".encode(),
            program.filter_program,
            replace(program.view, program=file),
            replace(program.entry, namespaces=mount_helper.namespaces),
            program.limits,
            cgroup=program.cgroup,
            guard=program.guard,
            channel=channel,
        )
    except BaseException:
        if program.cgroup is not None:
            await remove_cgroup(program.cgroup)
        raise
