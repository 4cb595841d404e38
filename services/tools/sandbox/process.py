"""One sandboxed process tree: started, told apart from its launcher, ended for certain."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from services.tools.sandbox.cgroups import Cgroup
from services.tools.sandbox.command import Descriptors, Entry, View, bubblewrap_command, launcher_command
from services.tools.sandbox.limits import SandboxLimits

# Two attempts and the removal, together below the second in which a cancelled run must be gone.
_GRACE_SECONDS = 0.3
_REMOVAL_SECONDS = 0.3
_POLL_SECONDS = 0.005
_STATUS_BYTES = 16 << 10


class SandboxedProcess:
    """The launcher, which becomes bubblewrap's monitor, and below it a pid namespace whose pid 1 is the program.

    Three ways lead to its end, each of which is enough: the death of pid 1 takes everything in the namespace along,
    cgroup.kill reaches what never got that far, and the monitor's death is the program's death signal.
    """

    def __init__(self, process: Process, status_fd: int, gate_fd: int | None, cgroup: Cgroup | None) -> None:
        self._process = process
        self._gate_fd = gate_fd
        self._cgroup = cgroup
        self._init = _Init()
        self._report = StatusReport(status_fd, self._init.found)
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdout, self.stderr = process.stdout, process.stderr

    @classmethod
    async def start(
        cls,
        code: bytes,
        filter_program: bytes,
        view: View,
        entry: Entry,
        limits: SandboxLimits,
        *,
        cgroup: Cgroup | None,
        gated: bool,
    ) -> Self:
        """Start the launcher with an empty environment and nothing but the descriptors it needs.

        A gated program waits before its first instruction until `open_gate`.
        """
        with ExitStack() as kept, ExitStack() as passed:
            status_fd, status_end = _pipe(kept, passed)
            gate_end, gate_fd = _pipe(passed, kept) if gated else (None, None)
            descriptors = Descriptors(
                program=_memory_file(passed, "program", code),
                filter=_memory_file(passed, "filter", filter_program),
                status=status_end,
                gate=gate_end,
            )
            os.set_blocking(status_fd, False)
            command = launcher_command(entry, bubblewrap_command(view, descriptors, limits))
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                pass_fds=[
                    fd for fd in (descriptors.program, descriptors.filter, status_end, gate_end) if fd is not None
                ],
                env={},
                cwd="/",
                start_new_session=True,
            )
            started = cls(process, status_fd, gate_fd, cgroup)
            kept.pop_all()
            return started

    async def open_gate(self, processes: int) -> None:
        """Bound the namespace's processes from outside, then let the program start.

        Since Linux 5.14 RLIMIT_NPROC counts per user namespace, so a limit set now counts this sandbox alone, even
        when its host uid has other processes.
        """
        assert self._gate_fd is not None
        await self._report.started.wait()
        with suppress(ProcessLookupError, BrokenPipeError):  # killed meanwhile: its end is noticed elsewhere
            if self._report.init_pid is not None:
                resource.prlimit(self._report.init_pid, resource.RLIMIT_NPROC, (processes, processes))
            os.write(self._gate_fd, b"\n")

    async def ended(self) -> None:
        """Wait until the program and all its descendants are gone and reaped, also when the monitor died first."""
        await self._process.wait()
        self._report.read()
        self._init.kill()
        await self._init.gone()

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the program and of those children which it has waited for; 0 before it runs."""
        return _cpu_seconds(self._report.init_pid) if self._report.init_pid is not None else 0.0

    @property
    def exit_code(self) -> int | None:
        """The program's exit code; None when it was never started or bubblewrap itself was killed."""
        self._report.read()
        return self._report.exit_code

    async def kill(self) -> bool:
        """End the whole tree and reap it; False when the kernel does not let go of it in time."""
        for kill in (self._kill_init, self._kill_all):
            kill()
            try:
                async with asyncio.timeout(_GRACE_SECONDS):
                    await self.ended()
            except TimeoutError:
                continue
            return True
        return False

    async def close(self) -> bool:
        """Give back descriptors and the cgroup; False when something still lives in the cgroup."""
        self._report.close()
        self._init.close()
        if self._gate_fd is not None:
            os.close(self._gate_fd)
        return await remove_cgroup(self._cgroup) if self._cgroup is not None else True

    def _kill_init(self) -> None:
        """Kill the program: the monitor reaps it and ends in order, and no orphan is left to anybody."""
        self._report.read()
        if not self._init.kill():
            self._kill_all()

    def _kill_all(self) -> None:
        if self._process.returncode is None:
            if self._cgroup is not None:
                self._cgroup.kill()
            self._process.kill()


class StatusReport:
    """What bubblewrap reports: the pid of the namespace's pid 1 when it is made, the program's exit code at the end.

    `started` is set with the pid, or when bubblewrap ended without one.
    """

    def __init__(self, fd: int, found_init: Callable[[int], None]) -> None:
        self.started = asyncio.Event()
        self.init_pid: int | None = None
        self.exit_code: int | None = None
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
            self._found_init(self.init_pid)
            self.started.set()
        self.exit_code = facts.get("exit-code", self.exit_code)

    def close(self) -> None:
        """Stop listening."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)


class _Init:
    """The namespace's pid 1, held by a descriptor: its pid outside may be somebody else's by now."""

    def __init__(self) -> None:
        self._fd: int | None = None
        self._gone = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def found(self, pid: int) -> None:
        """Hold on to it."""
        with suppress(ProcessLookupError):  # gone already
            self._fd = os.pidfd_open(pid)
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


def _cpu_seconds(pid: int) -> float:
    """Fields 14 to 17 of /proc/PID/stat, counted after the command name."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, text.rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")
