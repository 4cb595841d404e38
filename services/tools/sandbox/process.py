"""Starts, observes and ends the process tree of one run.

`SandboxedProcess` is the tree: the launcher, which becomes bubblewrap's monitor, and below it the pid namespace with
the program. It uses `Child` for the launcher's process and pipes, `StatusReport` for bubblewrap's reports, and
`NamespaceInit` for pid 1 of the namespace.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import resource
import signal
from asyncio.subprocess import DEVNULL, PIPE, SubprocessStreamProtocol
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, Final, Self

from services.tools.sandbox.cgroups import Cgroup, Counters
from services.tools.sandbox.command import (
    Descriptors,
    LaunchSpec,
    View,
    bubblewrap_command,
    launcher_command,
    variable_options,
)
from services.tools.sandbox.limits import SandboxLimits
from services.tools.sandbox.procfs import children_of, count_private_files, stat_fields
from services.tools.sandbox.reaper_client import ReaperClient

# The launcher's process and its pipes. The end of the process is known without the end of its pipes.

_BUFFER_BYTES = 64 << 10
_OUTPUTS = (1, 2)


class _Protocol(SubprocessStreamProtocol):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=_BUFFER_BYTES, loop=loop)
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


class Child:
    """A child process with pipes. Readers of `stdout` and `stderr` reach the end with `cut_pipes` at the latest."""

    def __init__(self, transport: asyncio.SubprocessTransport, protocol: _Protocol) -> None:
        self._transport, self._protocol = transport, protocol
        assert protocol.stdout is not None
        assert protocol.stderr is not None
        self.stdin, self.stdout, self.stderr = protocol.stdin, protocol.stdout, protocol.stderr
        self.pid = transport.get_pid()

    @classmethod
    async def start(cls, command: Sequence[str], stdin: int, pass_fds: Iterable[int]) -> Self:
        """Starts `command` with an empty environment, in a new session, with only these descriptors. Raises OSError."""
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.subprocess_exec(
            lambda: _Protocol(loop),
            *command,
            stdin=stdin,
            stdout=PIPE,
            stderr=PIPE,
            pass_fds=tuple(pass_fds),
            env={},
            cwd="/",
            start_new_session=True,
        )
        return cls(transport, protocol)

    @property
    def has_exited(self) -> bool:
        """Whether the process has ended and is reaped."""
        return self._transport.get_returncode() is not None

    async def exited(self) -> None:
        """Waits until the process has ended and is reaped."""
        await self._protocol.exited.wait()

    def cut_pipes(self) -> None:
        """Reads what the output pipes contain now, and closes all pipes.

        Call this when all processes of the run have ended. Another process may still hold a pipe open, so the end of
        the output is not awaited.
        """
        for number in _OUTPUTS:
            pipe: Any = self._transport.get_pipe_transport(number)
            if pipe is not None and not pipe.is_closing():
                if remaining := _read_all(pipe.get_extra_info("pipe").fileno()):
                    self._protocol.pipe_data_received(number, remaining)
                pipe.close()
        stdin: Any = self._transport.get_pipe_transport(0)
        if stdin is not None and (stdin.get_write_buffer_size() or not stdin.is_closing()):
            stdin.abort()


def _read_all(pipe: int) -> bytes:
    with suppress(BlockingIOError):  # the pipe is empty
        return os.read(pipe, fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ))
    return b""


# The pid namespace of a run, as the service sees it: bubblewrap's status report, and the namespace's pid 1.

_STATUS_BYTES = 16 << 10


class StatusReport:
    """Bubblewrap's status report: first the host pid of the namespace's pid 1, at the end the program's exit code.

    `started` is set when the pid is known, or when bubblewrap ended without reporting one. `found_init(pid)` is called
    with the pid.
    """

    def __init__(self, fd: int, found_init: Callable[[int], None]) -> None:
        self.started = asyncio.Event()
        self.init_pid: int | None = None
        self.exit_code: int | None = None
        self.mount_namespace: int | None = None
        self._fd = fd
        self._found_init = found_init
        self._text = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self.read)

    def read(self) -> None:
        """Reads the reports that have arrived."""
        try:
            portion = os.read(self._fd, _STATUS_BYTES)
        except BlockingIOError:
            return
        *lines, self._text = (self._text + portion).split(b"\n")
        for line in lines:
            self._apply(json.loads(line))
        if not portion:
            self._loop.remove_reader(self._fd)
            self.started.set()

    def _apply(self, report: dict[str, int]) -> None:
        if "child-pid" in report:
            self.init_pid = report["child-pid"]
            self.mount_namespace = report.get("mnt-namespace")
            self._found_init(self.init_pid)
            self.started.set()
        self.exit_code = report.get("exit-code", self.exit_code)

    def close(self) -> None:
        """Stops the reader and closes the descriptor."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)


class NamespaceInit:
    """The namespace's pid 1, referred to by a pidfd, because the kernel may reuse its host pid.

    `protect(pidfd)` is called before the process may run the program.
    """

    def __init__(self, protect: Callable[[int], None]) -> None:
        self._protect = protect
        self._fd: int | None = None
        self._gone = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def was_found(self, pid: int) -> None:
        """Opens the pidfd of this host pid, protects the process, and waits for its end."""
        with suppress(ProcessLookupError):  # the process has ended
            self._fd = os.pidfd_open(pid)
            self._protect(self._fd)
            self._loop.add_reader(self._fd, self._died)

    def kill(self) -> bool:
        """Kills pid 1, and with it the namespace. Returns False when no pid 1 is known."""
        if self._fd is None:
            return False
        with suppress(ProcessLookupError):  # the process has ended
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)
        return True

    async def gone(self) -> None:
        """Waits until pid 1, and so every process of the namespace, has ended."""
        if self._fd is not None:
            await self._gone.wait()

    def _died(self) -> None:
        """Notes the end of pid 1, and reaps it if it is this service's child.

        If its parent died first, the nearest subreaper inherits it. In a container that may be this service, as pid 1.
        """
        assert self._fd is not None
        self._loop.remove_reader(self._fd)
        with suppress(ChildProcessError):  # another process is its parent
            os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG)
        self._gone.set()

    def close(self) -> None:
        """Closes the pidfd."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None


# A kill of pid 1 nearly always takes milliseconds. After a kill of all processes the service can only wait: a kernel
# under load may need seconds to take down a namespace with many files.
_REPORT_SECONDS = 0.15
_ORDERLY_SECONDS = 0.3
_FORCED_SECONDS = 30.0
_REMOVAL_SECONDS = 10.0
_POLL_SECONDS = 0.005
MAX_PRIVATE_FILES: Final = 50_000
"""The number of files in a run's tmpfs file systems where no cgroup limits memory.

A file takes a kilobyte of kernel memory, which the size of a tmpfs does not limit. One run created three million files.
"""


class SandboxedProcess:
    """The launcher, which becomes bubblewrap's monitor, and below it a pid namespace whose pid 1 is the program.

    There are three ways to end the tree, and each is enough: the death of pid 1 ends everything in the namespace;
    cgroup.kill also reaches processes that are not in the namespace yet; and the monitor's death sends the program its
    death signal, unless the program removed it. When the service dies, the reaper ends programs that removed it.
    """

    def __init__(
        self, process: Child, status_fd: int, gate_fd: int, cgroup: Cgroup | None, guard: ReaperClient
    ) -> None:
        self._process = process
        self._gate_fd = gate_fd
        self._is_open = False
        self._cpu_ms_before, self._cpu_seconds_before = 0, 0.0
        self._monitor_fd: int | None = None
        with suppress(ProcessLookupError):  # the process has ended and is reaped
            self._monitor_fd = os.pidfd_open(process.pid)
        self._cgroup = cgroup
        self._init = NamespaceInit(guard.protect)
        self._report = StatusReport(status_fd, self._init.was_found)
        self.stdout, self.stderr = process.stdout, process.stderr
        self.stdin = process.stdin  # only for a long-running program

    @classmethod
    async def start(
        cls,
        code: bytes,
        filter_program: bytes,
        view: View,
        entry: LaunchSpec,
        limits: SandboxLimits,
        *,
        cgroup: Cgroup | None,
        guard: ReaperClient,
        channel: int | None = None,
        stdin: int = DEVNULL,
    ) -> Self:
        """Starts the launcher with an empty environment and only the descriptors that it needs.

        The program waits before its first instruction until `open_gate`. `channel`: the descriptor of the socket on
        which the interpreter of a warm sandbox waits. Raises OSError, and TimeoutError when the reaper does not start.
        """
        await guard.ready()
        with ExitStack() as kept, ExitStack() as passed:
            status_fd, status_end = _pipe(kept, passed)
            gate_end, gate_fd = _pipe(passed, kept)
            descriptors = Descriptors(
                program=_memory_file(passed, "program", code),
                variables=_memory_file(passed, "variables", variable_options(view)),
                filter=_memory_file(passed, "filter", filter_program),
                status=status_end,
                gate=gate_end,
            )
            os.set_blocking(status_fd, False)
            channels = () if channel is None else (channel,)
            command = launcher_command(entry, bubblewrap_command(view, descriptors, limits))
            process = await Child.start(command, stdin, (*descriptors.all, *entry.namespaces, *channels))
            started = cls(process, status_fd, gate_fd, cgroup, guard)
            kept.pop_all()
            return started

    async def open_gate(self, processes: int | None) -> None:
        """Lets the program start after the reaper protects it. `processes`: the limit to set on its processes, or None.

        Since Linux 5.14 RLIMIT_NPROC counts per user namespace. A limit that is set now, after the user namespace was
        created, counts the processes of this sandbox alone, even when its host uid has others.
        """
        if self._is_open:
            return
        await self._report.started.wait()
        self._is_open = True
        with suppress(ProcessLookupError, BrokenPipeError):  # the program was killed; `ended` notices that
            if processes is not None and self._report.init_pid is not None:
                resource.prlimit(self._report.init_pid, resource.RLIMIT_NPROC, (processes, processes))
            os.write(self._gate_fd, b"\n")

    async def ended(self) -> None:
        """Waits until the program and all its descendants have ended and are reaped, even if the monitor died first.

        Then ends the output, though another process may still hold the pipe open.
        """
        await self._process.exited()
        self._report.read()
        self._init.kill()
        await self._init.gone()
        self._process.cut_pipes()

    def begin_counting(self) -> None:
        """Starts the count of CPU time for the program: what the interpreter used before is not counted."""
        self._cpu_ms_before = self.counters().cpu_ms or 0
        self._cpu_seconds_before = self.cpu_seconds

    def counters(self) -> Counters:
        """Returns the cgroup's counters: CPU time since `begin_counting`, the rest since the start of the sandbox."""
        if self._cgroup is None:
            return Counters()
        counted = self._cgroup.counters()
        return counted if counted.cpu_ms is None else replace(counted, cpu_ms=counted.cpu_ms - self._cpu_ms_before)

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the program and of the children that it has waited for; 0 before the program runs."""
        used = _cpu_seconds(self._report.init_pid) if self._report.init_pid is not None else 0.0
        return max(0.0, used - self._cpu_seconds_before)

    def open_mount_namespace(self) -> int:
        """Returns a descriptor of the sandbox's mount namespace.

        Raises OSError, also when pid 1 has ended and another process has its host pid.
        """
        self._report.read()  # the interpreter may report on its channel before bubblewrap's report was read
        fd = os.open(f"/proc/{self._report.init_pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        if os.fstat(fd).st_ino != self._report.mount_namespace:
            os.close(fd)
            raise ProcessLookupError(errno.ESRCH, "the sandbox has ended; its pid has a different mount namespace now")
        return fd

    def has_too_many_files_in_memory(self, paths: Iterable[str]) -> bool:
        """Whether the run's tmpfs file systems at these paths have more than MAX_PRIVATE_FILES files.

        Always False where a cgroup limits memory, because the cgroup counts the kernel memory of files too.
        """
        init = self._report.init_pid
        if init is None or self.counters().oom_kills is not None:
            return False
        return sum(count_private_files(init, path) for path in paths) > MAX_PRIVATE_FILES

    @property
    def init_pid(self) -> int | None:
        """The host pid of the namespace's pid 1; None before bubblewrap reports it."""
        return self._report.init_pid

    @property
    def exit_code(self) -> int | None:
        """The program's exit code; None when the program did not start or bubblewrap itself was killed."""
        self._report.read()
        return self._report.exit_code

    async def kill(self) -> bool:
        """Ends and reaps the whole tree. Returns False when the kernel has not ended it within half a minute."""
        is_dead = self._process.has_exited or await within(_REPORT_SECONDS, self._kill_program())
        if not is_dead or not await within(_ORDERLY_SECONDS, self.ended()):
            await self._kill_all()
        return await within(_FORCED_SECONDS, self.ended())

    async def close(self) -> bool:
        """Closes the descriptors and removes the cgroup. Returns False when the cgroup still has a process."""
        self._report.close()
        self._init.close()
        self._process.cut_pipes()
        os.close(self._gate_fd)
        if self._monitor_fd is not None:
            os.close(self._monitor_fd)
        return await remove_cgroup(self._cgroup) if self._cgroup is not None else True

    async def _kill_program(self) -> None:
        """Kills pid 1 of the namespace. The monitor reaps it and ends normally, so no process is orphaned.

        Bubblewrap reports the pid milliseconds after the launcher's start, and before the program may run.
        """
        self._report.read()
        await self._report.started.wait()
        self._init.kill()

    async def _kill_all(self) -> None:
        if self._cgroup is not None:
            self._cgroup.kill()
        if not self._process.has_exited:
            # A monitor that is killed while it starts a child leaves a child that waits for it for ever. A stopped
            # monitor starts no more children, so the service stops it first and lists the children that it has.
            self._signal_monitor(signal.SIGSTOP)
            await within(_ORDERLY_SECONDS, _stopped(self._process.pid))
            for child in children_of(self._process.pid):
                with suppress(ProcessLookupError):  # the child has ended
                    os.kill(child, signal.SIGKILL)
        if not self._process.has_exited:
            self._signal_monitor(signal.SIGKILL)

    def _signal_monitor(self, number: signal.Signals) -> None:
        """Sends a signal by pidfd, because asyncio's `send_signal` may reap the process before its waiters."""
        if self._monitor_fd is not None:
            with suppress(ProcessLookupError):  # the monitor has ended
                signal.pidfd_send_signal(self._monitor_fd, number)


async def remove_cgroup(cgroup: Cgroup) -> bool:
    """Kills the processes of a cgroup and removes the cgroup. Returns False when that takes longer than 10 s.

    The kernel empties the cgroup a moment after the last process is reaped, so the removal is repeated.
    """
    try:
        async with asyncio.timeout(_REMOVAL_SECONDS):
            while not cgroup.remove():
                cgroup.kill()
                await asyncio.sleep(_POLL_SECONDS)  # cgroup v1 offers no event to wait for
    except TimeoutError:
        return False
    return True


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    read_end, write_end = os.pipe()
    reader.callback(os.close, read_end)
    writer.callback(os.close, write_end)
    return read_end, write_end


def _memory_file(owner: ExitStack, name: str, content: bytes) -> int:
    """Returns a memfd with `content`, at its start. Readers share the position: one memfd per run."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    owner.callback(os.close, fd)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


async def within(seconds: float, action: Coroutine[Any, Any, None]) -> bool:
    """Awaits the action for so many seconds at most. Returns whether it was done in time."""
    try:
        async with asyncio.timeout(seconds):
            await action
    except TimeoutError:
        return False
    return True


async def _stopped(pid: int) -> None:
    """Waits until a process is stopped or has ended."""
    while (fields := stat_fields(pid)) is not None and fields[0] not in "TZ":  # noqa: ASYNC110  # there is no event for it
        await asyncio.sleep(_POLL_SECONDS)


def _cpu_seconds(pid: int) -> float:
    fields = stat_fields(pid)
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") if fields is not None else 0.0
