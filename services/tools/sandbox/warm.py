"""A sandbox that was started ahead of its program: complete, used once, and only waiting for what to run.

It has namespaces, a cgroup, a uid and a system-call filter of its own like any other; its interpreter has started and
waits on a socket (`waiting.py`). What differs from a cold start is the order: the workspace is mounted by the attacher
once it is known, and the program is written into a file that was bound into the sandbox while it was empty.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self

from services.tools.sandbox.attaching import Attacher
from services.tools.sandbox.errors import SandboxUnavailable
from services.tools.sandbox.process import SandboxedProcess, remove_cgroup
from services.tools.sandbox.supervision import Program

log = logging.getLogger(__name__)

_HOOK = Path(__file__).with_name("waiting.py")
_STARTS_WITHIN_SECONDS = 60.0
_READY, _GO = b"?", b"!"
_MOST_WORDS = 2000


class WarmSandbox:
    """Made by `start`, given to one run by `prepare` and `release`, ended by `close` unless it was released."""

    def __init__(self, attacher: Attacher, process: SandboxedProcess, channel: socket.socket, program_fd: int) -> None:
        self._attacher, self._process = attacher, process
        self._channel, self._program_fd, self._namespace_fd = channel, program_fd, -1
        self._owned = ExitStack()
        self._owned.callback(os.close, program_fd)
        self._owned.enter_context(channel)
        self._owned.callback(asyncio.get_running_loop().remove_reader, channel.fileno())
        self._is_prepared = self._is_over = self.is_released = False

    @classmethod
    async def start(cls, program: Program, attacher: Attacher, directory: Path) -> Self:
        """Start one that is confined as `program` says, which has neither code nor workspace yet.

        `directory` is one that any uid can reach. Raises OSError, TimeoutError and SandboxUnavailable, leaving
        nothing behind.
        """
        program_fd, file = _program_file(directory, program.entry.uid)
        try:
            with ExitStack() as opened:
                opened.callback(os.close, program_fd)
                here, there = map(opened.enter_context, socket.socketpair())
                process = await _start_process(program, file, attacher, there.fileno())
                there.close()
                opened.pop_all()
            warm = cls(attacher, process, here, program_fd)
            await warm._come_up_or_close(program)
            return warm
        finally:
            file.unlink()  # what is bound into the sandbox stays there

    async def _come_up_or_close(self, program: Program) -> None:
        try:
            async with asyncio.timeout(_STARTS_WITHIN_SECONDS):
                await self._come_up(program)
        except BaseException:
            await self.close()
            raise

    async def _come_up(self, program: Program) -> None:
        self._channel.setblocking(False)
        await self._process.open_gate(program.process_gate)
        if await asyncio.get_running_loop().sock_recv(self._channel, 1) != _READY:
            words = (await self._process.stderr.read(_MOST_WORDS)).decode(errors="replace").strip()
            raise SandboxUnavailable(f"a sandbox ended before it had a program: {words or 'it said nothing'}")
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
                self._attacher.attach(self._namespace_fd, workspace)
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


async def _start_process(program: Program, file: Path, attacher: Attacher, channel: int) -> SandboxedProcess:
    if program.cgroup is not None:
        program.cgroup.create(program.limits)
    try:
        return await SandboxedProcess.start(
            _HOOK.read_bytes() + f"\n\nwait({channel})\n".encode(),
            program.filter_program,
            replace(program.view, program=file),
            replace(program.entry, namespaces=attacher.namespaces),
            program.limits,
            cgroup=program.cgroup,
            guard=program.guard,
            channel=channel,
        )
    except BaseException:
        if program.cgroup is not None:
            await remove_cgroup(program.cgroup)
        raise
