"""The service's side of the guard, the process that ends sandboxes when the service has died."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path

from services.tools.sandbox.reaper import READY

log = logging.getLogger(__name__)

_SCRIPT = Path(__file__).with_name("reaper.py")
_STARTS_WITHIN_SECONDS = 60.0
_ENDS_WITHIN_SECONDS = 10.0


class ReaperClient:
    """Started when it is first needed, and again when it died."""

    def __init__(self) -> None:
        self._starting = asyncio.Lock()
        self._process: Process | None = None
        self._channel: socket.socket | None = None

    async def ready(self) -> None:
        """Have a process that guards. Raises OSError, TimeoutError."""
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                await self.close()
                try:
                    await self._start()
                except BaseException:
                    await self.close()
                    raise

    def protect(self, process: int) -> None:
        """Have the process of this descriptor killed when the service dies."""
        try:
            if self._channel is None:
                raise BrokenPipeError("it was ended")
            socket.send_fds(self._channel, [b"!"], [process], socket.MSG_DONTWAIT)
        except OSError:
            log.exception("a sandbox is not guarded: its program may outlive this service")

    async def close(self) -> None:
        """End the process, which is reaped when this returns."""
        process, self._process = self._process, None
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        if process is None:
            return
        try:
            async with asyncio.timeout(_ENDS_WITHIN_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _start(self) -> None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here.setblocking(False)
        self._channel = here
        with there:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(_SCRIPT)),
                stdin=there.fileno(),
                stdout=DEVNULL,
                stderr=DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        async with asyncio.timeout(_STARTS_WITHIN_SECONDS):
            if await asyncio.get_running_loop().sock_recv(here, len(READY)) != READY:
                raise OSError("the process that ends sandboxes when the service dies has ended itself")
