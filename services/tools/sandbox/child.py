"""A child process and its pipes, whose end is known by itself.

Programs that share a workspace can hand each other descriptors through a socket in it. So the pipes of one that has
ended may be held open by another, and asyncio's own way to wait for a process waits for its pipes, too.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from asyncio.subprocess import PIPE, SubprocessStreamProtocol
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Self

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
