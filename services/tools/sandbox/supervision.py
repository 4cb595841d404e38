"""Supervises one run from its start to its result. Also the warm sandboxes in which runs begin.

`RunSupervisor` starts the program, reads its output, enforces its limits and names its end. `WorkspaceMonitor` measures
the workspace meanwhile. `WarmSandbox` is a sandbox that was started before its program is known.
"""

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
from services.tools.sandbox.result import (
    Evidence,
    KeptOutput,
    SandboxResult,
    SandboxStatus,
    explain,
    last_line,
    run_status,
)
from services.tools.sandbox.unlinked_files import NO_UNLINKED_FILES, unlinked_files_of
from services.tools.sandbox.workspace import Usage, measure
from tenure.runtime.task_group import TaskGroup

# The workspace monitor. Nothing in the kernel limits the size of a directory, so the service measures it.

log = logging.getLogger(__name__)

_MAX_PAUSE_SECONDS: Final = 2.0

# A separate pool: programs that make measuring slow delay each other, and no other work that needs a thread.
_THREADS: Final = ThreadPoolExecutor(max_workers=4, thread_name_prefix="measure-workspaces")


class WorkspaceMonitor:
    """Measures the workspace of one program repeatedly."""

    def __init__(self, program: SandboxedProgram) -> None:
        self._program = program
        self._in_flight = 0
        self._took_seconds = 0.0

    async def pause(self, seconds: float) -> None:
        """Waits before the next measurement: `seconds`, or longer if the last one took long, but at most 2 s.

        A pause of ten times the last measurement keeps the cost low.
        """
        await asyncio.sleep(min(max(seconds, 10 * self._took_seconds), _MAX_PAUSE_SECONDS))

    async def exceeds_limits(self, init_pid: int | None = None) -> bool:
        """Whether the workspace exceeds its limits or cannot be measured.

        `init_pid`: the sandbox's pid 1 while the program runs; its unlinked files are counted too.
        """
        workspace = self._program.workspace
        if workspace is None:
            return False
        started = time.monotonic()
        exceeds = await asyncio.get_running_loop().run_in_executor(_THREADS, self._measure, workspace, init_pid)
        self._took_seconds = time.monotonic() - started
        return exceeds

    def _measure(self, workspace: Path, init_pid: int | None) -> bool:
        try:
            usage = measure(workspace)
            unlinked = NO_UNLINKED_FILES if init_pid is None else unlinked_files_of(init_pid, workspace.lstat().st_dev)
        except OSError as error:
            log.warning("the workspace of a program cannot be measured; the program is ended: %s", error)
            return True
        disk_bytes = usage.disk_bytes + unlinked.disk_bytes + self._stays_in_flight(unlinked.in_flight)
        usage = replace(usage, disk_bytes=disk_bytes, complete=usage.complete and unlinked.complete)
        limits = self._program.limits
        return usage.exceeds(self._program.usage_before, limits.workspace_bytes, limits.workspace_files)

    def _stays_in_flight(self, descriptors: int) -> int:
        """Returns the most bytes that the files in sockets' queues may take.

        Only descriptors that were also there at the last measurement count: the others may just be passed on. Each of
        them may be a socket whose queue contains as many descriptors as one user may have in flight, which is the
        limit of open files.
        """
        kept, self._in_flight = min(descriptors, self._in_flight), descriptors
        limits = self._program.limits
        return kept * limits.open_files * limits.file_bytes


OnOutput = Callable[[str, str], None]

_PORTION_BYTES = 64 << 10
_COUNTERS_EVERY_SECONDS = 0.1
_FILES_EVERY_SECONDS = 0.25
# A program may handle a few refused forks. A program with this many refused forks is a fork bomb.
_FORK_FLOOD = 256
_KILLED = 128 + 9
_UNSTOPPABLE = "the kernel did not end the run's processes in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxedProgram:
    """A program with its confinement, which is decided before the program starts.

    `process_gate`: the process limit to set when the program starts, or None where another limit counts processes.
    `warm`: the warm sandbox that was prepared for this program, or None.
    """

    code: bytes
    filter_program: bytes
    view: View
    entry: LaunchSpec
    limits: SandboxLimits
    cgroup: Cgroup | None
    guard: ReaperClient
    process_gate: int | None
    workspace: Path | None
    usage_before: Usage
    warm: WarmSandbox | None = None

    @property
    def private_places(self) -> tuple[str, ...]:
        """The paths of the run's tmpfs file systems."""
        return PRIVATE_PLACES if self.workspace is not None else (*PRIVATE_PLACES, WORKSPACE_PATH)


class RunSupervisor:
    """Supervises one run.

    `stop` may be called at any time, also before the start and after the end; the first reason counts. `left_behind`:
    whether the kernel did not end the run's processes in time, so that the run's uid must not be used again.
    """

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
        """Ends the run with this status. `error`: a sentence for the agent, instead of the status's own."""
        if self._reason is None:
            self._reason, self._error = reason, error
            self._stopping.set()

    @property
    def was_cancelled(self) -> bool:
        """Whether the run was cancelled, so that no caller reads the result."""
        return self._reason is SandboxStatus.CANCELLED

    async def run(self, program: SandboxedProgram) -> SandboxResult:
        """Runs the program to its end and returns its result.

        An exception of the output callback ends the run, and is raised afterwards.
        """
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
            await self._supervise(process, program)
        finally:
            exit_code, counters = await self._finish(process)
        return exit_code, counters

    async def _start(self, program: SandboxedProgram) -> SandboxedProcess:
        if program.warm is not None and (process := program.warm.release()) is not None:
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

    async def _supervise(self, process: SandboxedProcess, program: SandboxedProgram) -> None:
        """Reads the program's output and enforces its limits until the program ends or is stopped."""
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
            tasks.create_task(self._read_output(process.stdout, "stdout"))
            tasks.create_task(self._read_output(process.stderr, "stderr"))
            await process.ended()

    async def _read_output(self, stream: asyncio.StreamReader, name: str) -> None:
        """Reads a stream to its end, also after a stop: an unread pipe would keep its transport alive."""
        while portion := await stream.read(_PORTION_BYTES):
            if self._reason is not None:
                continue
            text = self._outputs[name].feed(portion)
            if sum(output.total_bytes for output in self._outputs.values()) > self._limits.flood_bytes:
                self.stop(SandboxStatus.OUTPUT_LIMIT)
            elif self._on_output is not None and text:
                self._call_on_output(name, text)

    def _call_on_output(self, name: str, text: str) -> None:
        assert self._on_output is not None
        try:
            self._on_output(name, text)
        except Exception as error:  # noqa: BLE001  # `run` raises the callback's error when the run has ended
            self._callback_failure = error
            self.stop(SandboxStatus.CANCELLED)

    async def _end_when_stopped(self, process: SandboxedProcess, following: asyncio.Task[None]) -> None:
        await self._stopping.wait()
        if not await process.kill():
            self.left_behind = True
            following.cancel()

    async def _watch_counters(self, process: SandboxedProcess, program: SandboxedProgram) -> None:
        """Ends a fork bomb, a program that used up its CPU time, and a program with too many files in memory.

        The kernel's CPU limit counts each process alone, and its SIGKILL comes a second later. Its SIGXCPU has no
        effect on the program, because a pid 1 ignores signals that it does not handle.
        """
        while True:
            await asyncio.sleep(_COUNTERS_EVERY_SECONDS)
            counters = process.counters()
            if (counters.refused_forks or 0) >= _FORK_FLOOD:
                self.stop(SandboxStatus.TOO_MANY_PROCESSES)
            if process.has_too_many_files_in_memory(program.private_places):
                message = f"created more than {MAX_PRIVATE_FILES} files in memory, outside of the workspace"
                self.stop(SandboxStatus.OUT_OF_MEMORY, message)
            used = process.cpu_seconds if counters.cpu_ms is None else counters.cpu_ms / 1000
            if used >= self._limits.cpu_seconds:
                self.stop(SandboxStatus.TIMEOUT, f"used up its {self._limits.cpu_seconds:g} s of CPU time")

    async def _watch_files(self, process: SandboxedProcess, program: SandboxedProgram) -> None:
        """Ends a program that fills the workspace. A large workspace is measured less often, to limit the cost."""
        monitor = WorkspaceMonitor(program)
        while program.workspace is not None:
            await monitor.pause(_FILES_EVERY_SECONDS)
            if await monitor.exceeds_limits(process.init_pid):
                self.stop(SandboxStatus.WORKSPACE_LIMIT)

    async def _finish(self, process: SandboxedProcess) -> tuple[int | None, Counters]:
        """Kills and reaps everything of the run, whatever ended it. Returns its exit code and counters."""
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
        status = SandboxStatus.SANDBOX_ERROR if self.left_behind else run_status(evidence)
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


# Warm sandboxes: complete, used for one program, and waiting for that program.

_BOOTSTRAP = Path(__file__).with_name("warm_bootstrap.py")
_STARTS_WITHIN_SECONDS = 60.0
_READY, _GO = b"?", b"!"
_MAX_ERROR_BYTES = 2000


class WarmSandbox:
    """A sandbox that was started before its program is known.

    `start` creates it, `prepare` and `release` give it to one run, `close` ends it unless it was released.
    """

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
        """Starts a warm sandbox with the confinement of `program`, which has neither code nor workspace yet.

        `directory`: a directory that any uid can reach. Raises OSError, TimeoutError and SandboxUnavailable; nothing
        of the sandbox is left then.
        """
        program_fd, file = _program_file(directory, program.entry.uid)
        try:
            with ExitStack() as opened:
                opened.callback(os.close, program_fd)
                own_end, sandbox_end = map(opened.enter_context, socket.socketpair())
                process = await _start_process(program, file, mount_helper, sandbox_end.fileno())
                sandbox_end.close()
                opened.pop_all()
            warm = cls(mount_helper, process, own_end, program_fd)
            await warm._come_up_or_close(program)
            return warm
        finally:
            file.unlink()  # the bind mount in the sandbox keeps the file

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
            message = (await self._process.stderr.read(_MAX_ERROR_BYTES)).decode(errors="replace").strip()
            raise SandboxUnavailable(f"a warm sandbox ended before it had a program: {message or 'no error output'}")
        self._namespace_fd = self._process.open_mount_namespace()
        self._owned.callback(os.close, self._namespace_fd)

    @property
    def is_alive(self) -> bool:
        """Whether the interpreter still waits: its end of the socket is open, and it has sent nothing."""
        try:
            return self._channel.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def on_death(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once when the sandbox dies before its release."""

        def died() -> None:
            loop.remove_reader(self._channel)
            callback()

        loop = asyncio.get_running_loop()
        loop.add_reader(self._channel, died)

    def prepare(self, code: bytes, workspace: Path | None) -> None:
        """Writes the program into its file and mounts the workspace. Blocks for a moment.

        On an error it logs a warning, and `release` returns None.
        """
        try:
            with open(self._program_fd, "wb", closefd=False) as file:
                file.write(code)
            if workspace is not None:
                self._mount_helper.attach(self._namespace_fd, workspace)
        except OSError as error:
            log.warning("a warm sandbox cannot be given its program, which starts cold instead: %s", error)
            return
        self._is_prepared = True

    def release(self) -> SandboxedProcess | None:
        """Lets the program begin and returns its process, which the caller must end.

        Returns None when the sandbox was not prepared or has died.
        """
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
        """Ends the sandbox, unless it was released."""
        if self._is_over:
            return
        self._is_over = True
        self._owned.close()
        ended = await self._process.kill()
        if not (await self._process.close() and ended):
            log.error("a warm sandbox could not be cleaned up: %s", _UNSTOPPABLE)


def _program_file(directory: Path, uid: int | None) -> tuple[int, Path]:
    """Creates an empty file that only `uid` may read (None: the service's uid). Returns a descriptor to write to it.

    A process of the host that could open the file before it is unlinked could read the program later.
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
            _BOOTSTRAP.read_bytes() + f"\n\nwait({channel})\n".encode(),
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
