"""One sandboxed process tree: started, told apart from its launcher, ended for certain."""

from __future__ import annotations

import asyncio
import json
import logging
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

log = logging.getLogger(__name__)

# Three stages of a kill, together below the second in which a cancelled run must be gone.
_INIT_GRACE_SECONDS = 0.3
_MONITOR_GRACE_SECONDS = 0.3
_REMOVAL_SECONDS = 0.3
_POLL_SECONDS = 0.005
_STATUS_BYTES = 16 << 10


class SandboxedProcess:
    """The launcher, which becomes bubblewrap's monitor, and below it the pid namespace with the program.

    Three ways lead to its end, each of which is enough: the death of the namespace's init takes everything in it
    along, cgroup.kill reaches what never got that far, and the monitor's death is init's death signal.
    """

    def __init__(self, process: Process, status_fd: int, gate_fd: int | None, cgroup: Cgroup | None) -> None:
        self._process = process
        self._status_fd = status_fd
        self._gate_fd = gate_fd
        self._cgroup = cgroup
        self._status = b""
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
        when its host uid has other processes. bubblewrap's init is one of them.
        """
        assert self._gate_fd is not None
        while (init := self._init_pid()) is None and self._process.returncode is None:
            await _readable(self._status_fd)
            if not self._read_status():
                return  # bubblewrap ended before it had made the namespace
        with suppress(ProcessLookupError, BrokenPipeError):  # killed meanwhile: its end is noticed elsewhere
            if init is not None:
                resource.prlimit(init, resource.RLIMIT_NPROC, (processes + 1, processes + 1))
            os.write(self._gate_fd, b"\n")

    async def ended(self) -> None:
        """Wait until bubblewrap has ended; the program and all its descendants are gone then."""
        await self._process.wait()

    @property
    def exit_code(self) -> int | None:
        """The program's exit code; None when it was never started or did not end by itself."""
        self._read_status()
        return next((line["exit-code"] for line in self._status_lines() if "exit-code" in line), None)

    async def kill(self) -> bool:
        """End the whole tree and reap it; False when the kernel does not let go of it in time."""
        if await self._has_ended_after(self._kill_init, _INIT_GRACE_SECONDS):
            return True
        return await self._has_ended_after(self._kill_all, _MONITOR_GRACE_SECONDS)

    async def close(self) -> bool:
        """Give back descriptors and the cgroup; False when something still lives in the cgroup."""
        for fd in (self._status_fd, self._gate_fd):
            if fd is not None:
                os.close(fd)
        return await remove_cgroup(self._cgroup) if self._cgroup is not None else True

    async def _has_ended_after(self, kill: Callable[[], None], seconds: float) -> bool:
        if self._process.returncode is not None:
            return True
        kill()
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            return False
        return True

    def _kill_init(self) -> None:
        """Kill pid 1 of the namespace. Its parent reaps it and ends in order: no orphan is left to anybody else."""
        self._read_status()
        init = self._init_pid()
        if init is None:
            self._kill_all()
        elif _parent_of(init) == self._process.pid:
            with suppress(ProcessLookupError):  # ended by itself just now
                os.kill(init, signal.SIGKILL)

    def _kill_all(self) -> None:
        if self._cgroup is not None:
            self._cgroup.kill()
        if self._process.returncode is None:
            self._process.kill()

    def _init_pid(self) -> int | None:
        return next((line["child-pid"] for line in self._status_lines() if "child-pid" in line), None)

    def _read_status(self) -> bool:
        """Take in what bubblewrap has reported; False once it will report nothing more."""
        try:
            portion = os.read(self._status_fd, _STATUS_BYTES)
        except BlockingIOError:
            return True
        self._status += portion
        return bool(portion)

    def _status_lines(self) -> list[dict[str, int]]:
        whole, _, _ = self._status.rpartition(b"\n")
        return [json.loads(line) for line in whole.splitlines()]


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


def _parent_of(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(text.rpartition(")")[2].split()[1])


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
