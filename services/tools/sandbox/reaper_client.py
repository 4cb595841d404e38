"""The client of the reaper, the process that kills the sandboxes when the tool service has died."""

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
    """Starts the reaper when it is first needed, and again after the reaper died."""

    def __init__(self) -> None:
        self._starting = asyncio.Lock()
        self._process: Process | None = None
        self._channel: socket.socket | None = None

    async def ready(self) -> None:
        """Starts the reaper unless it runs. Raises OSError or TimeoutError when the reaper does not start."""
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                await self.close()
                try:
                    await self._start()
                except BaseException:
                    await self.close()
                    raise

    def protect(self, process: int) -> None:
        """Registers a process, given by its pidfd, which the reaper kills when the service dies. Logs a failure."""
        try:
            if self._channel is None:
                raise BrokenPipeError("the reaper was closed")
            socket.send_fds(self._channel, [b"!"], [process], socket.MSG_DONTWAIT)
        except OSError:
            log.exception("the reaper does not know a sandbox: its program may outlive this service")

    async def close(self) -> None:
        """Ends the reaper and waits for its exit. Kills a reaper that does not exit in time."""
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
                raise OSError("the reaper, which kills the sandboxes when the service dies, ended while it started")
