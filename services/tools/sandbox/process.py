"""One sandboxed process tree: started, told apart from its launcher, ended for certain."""

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

# A child process and its pipes, whose end is known by itself.

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
    """`stdout` and `stderr` are read to their ends, which come with `cut_pipes` at the latest."""

    def __init__(self, transport: asyncio.SubprocessTransport, protocol: _Protocol) -> None:
        self._transport, self._protocol = transport, protocol
        assert protocol.stdout is not None
        assert protocol.stderr is not None
        self.stdin, self.stdout, self.stderr = protocol.stdin, protocol.stdout, protocol.stderr
        self.pid = transport.get_pid()

    @classmethod
    async def start(cls, command: Sequence[str], stdin: int, pass_fds: Iterable[int]) -> Self:
        """With an empty environment, in a session of its own, and with these descriptors alone. Raises OSError."""
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
        """Whether it is gone and reaped."""
        return self._transport.get_returncode() is not None

    async def exited(self) -> None:
        """Wait until it is gone and reaped."""
        await self._protocol.exited.wait()

    def cut_pipes(self) -> None:
        """Take what is in its pipes by now, and wait for no more. Once everything that wrote there has ended."""
        for number in _OUTPUTS:
            pipe: Any = self._transport.get_pipe_transport(number)
            if pipe is not None and not pipe.is_closing():
                if rest := _read_all(pipe.get_extra_info("pipe").fileno()):
                    self._protocol.pipe_data_received(number, rest)
                pipe.close()
        stdin: Any = self._transport.get_pipe_transport(0)
        if stdin is not None and (stdin.get_write_buffer_size() or not stdin.is_closing()):
            stdin.abort()


def _read_all(pipe: int) -> bytes:
    with suppress(BlockingIOError):  # it is empty
        return os.read(pipe, fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ))
    return b""


# The pid namespace of a run, seen from outside: what bubblewrap reports about it, and its pid 1.

_STATUS_BYTES = 16 << 10


class StatusReport:
    """What bubblewrap reports: the pid of the namespace's pid 1 when it is made, the program's exit code at the end.

    `started` is set with the pid, or when bubblewrap ended without one.
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
        """Take in what has been reported by now."""
        try:
            portion = os.read(self._fd, _STATUS_BYTES)
        except BlockingIOError:
            return
        *lines, self._text = (self._text + portion).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        if not portion:
            self._loop.remove_reader(self._fd)
            self.started.set()

    def _take(self, facts: dict[str, int]) -> None:
        if "child-pid" in facts:
            self.init_pid = facts["child-pid"]
            self.mount_namespace = facts.get("mnt-namespace")
            self._found_init(self.init_pid)
            self.started.set()
        self.exit_code = facts.get("exit-code", self.exit_code)

    def close(self) -> None:
        """Stop listening."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)


class NamespaceInit:
    """The namespace's pid 1, held by a descriptor: its pid outside may be somebody else's by now.

    `protect` is given that descriptor, before the process may do anything.
    """

    def __init__(self, protect: Callable[[int], None]) -> None:
        self._protect = protect
        self._fd: int | None = None
        self._gone = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def was_found(self, pid: int) -> None:
        """Hold on to it."""
        with suppress(ProcessLookupError):  # gone already
            self._fd = os.pidfd_open(pid)
            self._protect(self._fd)
            self._loop.add_reader(self._fd, self._died)

    def kill(self) -> bool:
        """False when there is nothing to kill."""
        if self._fd is None:
            return False
        with suppress(ProcessLookupError):  # gone already
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)
        return True

    async def gone(self) -> None:
        """Wait for its death, and with it that of all in the namespace."""
        if self._fd is not None:
            await self._gone.wait()

    def _died(self) -> None:
        """When its parent died first it is inherited by the nearest reaper.

        That may be this service, as pid 1 of a container: then it is reaped here.
        """
        assert self._fd is not None
        self._loop.remove_reader(self._fd)
        with suppress(ChildProcessError):  # its parent's or another reaper's to reap
            os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG)
        self._gone.set()

    def close(self) -> None:
        """Let go of it."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None


# The first way to kill nearly always takes milliseconds. After that there is nothing left but to wait: a kernel under
# load may need seconds to take a namespace with many files down.
_REPORT_SECONDS = 0.15
_ORDERLY_SECONDS = 0.3
_FORCED_SECONDS = 30.0
_REMOVAL_SECONDS = 10.0
_POLL_SECONDS = 0.005
MAX_PRIVATE_FILES: Final = 50_000
"""A file takes a kilobyte of the kernel's, which no size of a tmpfs bounds. Three million were seen in one run."""


class SandboxedProcess:
    """The launcher, which becomes bubblewrap's monitor, and below it a pid namespace whose pid 1 is the program.

    Three ways lead to its end, each of which is enough: the death of pid 1 takes everything in the namespace along,
    cgroup.kill reaches what never got that far, and the monitor's death is the program's death signal, as long as the
    program keeps it. When the service dies it is the guard that ends what has given it up.
    """

    def __init__(
        self, process: Child, status_fd: int, gate_fd: int, cgroup: Cgroup | None, guard: ReaperClient
    ) -> None:
        self._process = process
        self._gate_fd = gate_fd
        self._is_open = False
        self._cpu_ms_before, self._cpu_seconds_before = 0, 0.0
        self._monitor_fd: int | None = None
        with suppress(ProcessLookupError):  # ended and reaped already
            self._monitor_fd = os.pidfd_open(process.pid)
        self._cgroup = cgroup
        self._init = NamespaceInit(guard.protect)
        self._report = StatusReport(status_fd, self._init.was_found)
        self.stdout, self.stderr = process.stdout, process.stderr
        self.stdin = process.stdin  # of what is spoken to only

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
        """Start the launcher with an empty environment and nothing but the descriptors it needs.

        The program waits before its first instruction until `open_gate`. `channel` goes through to the
        interpreter of a sandbox that is started ahead of its program. Raises OSError.
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
        """Let the program start, once it is guarded; with its namespace's processes bounded from outside, if asked.

        Since Linux 5.14 RLIMIT_NPROC counts per user namespace, so a limit set now counts this sandbox alone, even
        when its host uid has other processes.
        """
        if self._is_open:
            return
        await self._report.started.wait()
        self._is_open = True
        with suppress(ProcessLookupError, BrokenPipeError):  # killed meanwhile: its end is noticed elsewhere
            if processes is not None and self._report.init_pid is not None:
                resource.prlimit(self._report.init_pid, resource.RLIMIT_NPROC, (processes, processes))
            os.write(self._gate_fd, b"\n")

    async def ended(self) -> None:
        """Wait until the program and all its descendants are gone and reaped, also when the monitor died first.

        Its output ends then, though somebody else may hold the pipe.
        """
        await self._process.exited()
        self._report.read()
        self._init.kill()
        await self._init.gone()
        self._process.cut_pipes()

    def begin_counting(self) -> None:
        """What was used until now was not used by the program."""
        self._cpu_ms_before = self.counters().cpu_ms or 0
        self._cpu_seconds_before = self.cpu_seconds

    def counters(self) -> Counters:
        """What the kernel counted, if anything: CPU time since `begin_counting`, the rest since the start."""
        if self._cgroup is None:
            return Counters()
        counted = self._cgroup.counters()
        return counted if counted.cpu_ms is None else replace(counted, cpu_ms=counted.cpu_ms - self._cpu_ms_before)

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the program and of those children which it has waited for; 0 before it runs."""
        used = _cpu_seconds(self._report.init_pid) if self._report.init_pid is not None else 0.0
        return max(0.0, used - self._cpu_seconds_before)

    def open_mount_namespace(self) -> int:
        """A descriptor of its mount namespace. Raises OSError, also when it is gone and its pid is another's by now."""
        self._report.read()  # its interpreter may be heard of before
        fd = os.open(f"/proc/{self._report.init_pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        if os.fstat(fd).st_ino != self._report.mount_namespace:
            os.close(fd)
            raise ProcessLookupError(errno.ESRCH, "the process has another mount namespace than was reported")
        return fd

    def has_too_many_files_in_memory(self, places: Iterable[str]) -> bool:
        """Whether the private file systems at these places hold more than may be where nothing counts the memory."""
        init = self._report.init_pid
        if init is None or self.counters().oom_kills is not None:
            return False
        return sum(count_private_files(init, place) for place in places) > MAX_PRIVATE_FILES

    @property
    def init_pid(self) -> int | None:
        """The namespace's first process as the host sees it; None before there is one."""
        return self._report.init_pid

    @property
    def exit_code(self) -> int | None:
        """The program's exit code; None when it was never started or bubblewrap itself was killed."""
        self._report.read()
        return self._report.exit_code

    async def kill(self) -> bool:
        """End the whole tree and reap it; False when the kernel does not let go of it in half a minute."""
        is_dead = self._process.has_exited or await _within(_REPORT_SECONDS, self._kill_program())
        if not is_dead or not await _within(_ORDERLY_SECONDS, self.ended()):
            await self._kill_all()
        return await _within(_FORCED_SECONDS, self.ended())

    async def close(self) -> bool:
        """Give back descriptors and the cgroup; False when something still lives in the cgroup."""
        self._report.close()
        self._init.close()
        self._process.cut_pipes()
        os.close(self._gate_fd)
        if self._monitor_fd is not None:
            os.close(self._monitor_fd)
        return await remove_cgroup(self._cgroup) if self._cgroup is not None else True

    async def _kill_program(self) -> None:
        """Kill pid 1 of the namespace: the monitor reaps it and ends in order, and no orphan is left to anybody.

        Its pid is reported milliseconds after the launcher's start, and before it may do anything.
        """
        self._report.read()
        await self._report.started.wait()
        self._init.kill()

    async def _kill_all(self) -> None:
        if self._cgroup is not None:
            self._cgroup.kill()
        if not self._process.has_exited:
            # Killed while it starts a child, the monitor would leave behind one that waits for it for ever. Stopped,
            # it starts no more, and those it has can be listed.
            self._signal_monitor(signal.SIGSTOP)
            await _within(_ORDERLY_SECONDS, _stopped(self._process.pid))
            for child in children_of(self._process.pid):
                with suppress(ProcessLookupError):  # gone already
                    os.kill(child, signal.SIGKILL)
        if not self._process.has_exited:
            self._signal_monitor(signal.SIGKILL)

    def _signal_monitor(self, number: signal.Signals) -> None:
        """Not by asyncio's way, which looks for the process's end first and so takes it from who waits for it."""
        if self._monitor_fd is not None:
            with suppress(ProcessLookupError):  # gone already
                signal.pidfd_send_signal(self._monitor_fd, number)


async def remove_cgroup(cgroup: Cgroup) -> bool:
    """Kill what is left in a group and remove it. The kernel empties it a moment after the last process was reaped."""
    try:
        async with asyncio.timeout(_REMOVAL_SECONDS):
            while not cgroup.remove():
                cgroup.kill()
                await asyncio.sleep(_POLL_SECONDS)  # v1 offers nothing to wait for
    except TimeoutError:
        return False
    return True


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    read_end, write_end = os.pipe()
    reader.callback(os.close, read_end)
    writer.callback(os.close, write_end)
    return read_end, write_end


def _memory_file(owner: ExitStack, name: str, content: bytes) -> int:
    """A nameless file with `content`, positioned at its start; one per run, as readers share its position."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    owner.callback(os.close, fd)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


async def _within(seconds: float, action: Coroutine[Any, Any, None]) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await action
    except TimeoutError:
        return False
    return True


async def _stopped(pid: int) -> None:
    """Until a process has taken note of SIGSTOP, or is gone."""
    while (fields := stat_fields(pid)) is not None and fields[0] not in "TZ":  # noqa: ASYNC110  # no event says so
        await asyncio.sleep(_POLL_SECONDS)


def _cpu_seconds(pid: int) -> float:
    fields = stat_fields(pid)
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") if fields is not None else 0.0
